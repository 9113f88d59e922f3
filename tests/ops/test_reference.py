"""The reference runs opaque ops on their argument data as torch runs the call."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tofuse.ir.graph import Value
from tofuse.ir.line_reader import LineReader
from tofuse.ir.parse_arguments import read_size
from tofuse.ir.parse_graph import parse_graph
from tofuse.ir.size_expression import ArgumentSize
from tofuse.ops.reference import bind_symbols, run_graph

X = torch.tensor([[1.0, -2.0, math.inf], [0.0, -0.0, math.nan]])
A = torch.ops.aten

CALLS: list[tuple[str, str, Callable[[Tensor], Tensor]]] = [
    ("sum.dim_IntList", "$0, [0, -1], True", lambda x: A.sum.dim_IntList(x, [0, -1], True)),
    ("sum.dim_IntList", "$0, None, dtype=torch.float64", lambda x: x.double().sum()),
    ("cat.default", "[$0, $0], 1", lambda x: torch.cat([x, x], 1)),
    ("clamp.default", "$0, -0.0, inf", lambda x: torch.clamp(x, -0.0, math.inf)),
    ("nan_to_num.default", "$0, -0.0, nan, 1e-05", lambda x: torch.nan_to_num(x, -0.0, math.nan)),
    ("where.ScalarOther", "$1, $0, -inf", lambda x: torch.where(x > 0, x, -math.inf)),
    ("div.Tensor_mode", "$0, $0, rounding_mode='floor'", lambda x: x.div(x, rounding_mode="floor")),
    ("reshape.default", "$0, [s0, e0]", lambda x: x.reshape(3, 2)),
    ("mul.Scalar", "$0, float(s0) / 2", lambda x: x * 1.5),
    ("add.Scalar", "$0, max(e0 ** 2, 2*s0+1)", lambda x: x + 7),
    ("roll.default", "$0, [1, -1], [0, 1]", lambda x: torch.roll(x, [1, -1], [0, 1])),
    ("full_like.default", "$0, complex(nan, -0.0), dtype=torch.complex64",
     lambda x: torch.full_like(x, complex(math.nan, -0.0), dtype=torch.complex64)),
    ("clone.default", "$0, memory_format=torch.contiguous_format", torch.clone),
    ("zeros_like.default", "$0, dtype=torch.int32, layout=torch.strided, "
     "device=torch.device('cpu'), pin_memory=False", lambda x: torch.zeros_like(x).int()),
]  # fmt: skip


@pytest.mark.parametrize(("target", "args", "call"), CALLS)
def test_an_opaque_call_is_torchs(target: str, args: str, call: Callable[[Tensor], Tensor]):
    opaque = f"opaque(x, p, target='aten.{target}', args={args!r})"
    graph = parse_graph(f"g(x: f32[2,3], p: b1[2,3]) {{\n  v = {opaque} : f32[2,3]\n  return v\n}}")
    x, p = graph.inputs
    inputs: dict[Value, Tensor] = {x: X, p: X > 0}
    result = run_graph(graph, inputs, {"s0": 3, "e0": 2})[graph.ops[0].result]
    expected = call(X)
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
    signs = [torch.view_as_real(t.to(torch.complex128)).signbit() for t in (result, expected)]
    assert torch.equal(*signs)


def test_symbols_come_from_arguments_and_from_earlier_symbols():
    sources = {
        "s0": ArgumentSize("size", 0, 1),
        "s1": ArgumentSize("stride", 0, 0),
        "n": ArgumentSize("argument", 1),
        "e0": read_size(LineReader(1, "s0 // 2")),
        "e1": read_size(LineReader(1, "max(e0, n) + s1")),
    }
    found = bind_symbols(sources, [torch.empty(4, 7), 5])
    assert found == {"s0": 7, "s1": 7, "n": 5, "e0": 3, "e1": 12}
