"""A third target runs programs: nothing but the protocol is needed of it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tofuse
from tests.support.interpreted_backend import InterpretedBackend
from tofuse.backends.cpu.llvm.load import CODE, host_target
from tofuse.backends.target import Backend
from tofuse.config import make_config
from tofuse.cost.machine import Machine
from tofuse.driver.pipeline import BACKENDS, build_program, cost_oracle, fuse, run_graph_passes
from tofuse.ir.parse_graph import parse_graph
from tofuse.plan.signature import CallSignature

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
GRAPH = """graph(x: f32[6,40], w: f32[40]) {
  v0 = broadcast(w, dims=(1,), shape=(6, 40)) : f32[6,40]
  v1 = mul(x, v0) : f32[6,40]
  v2 = sum(v1, dims=(1), keepdim=false, dtype=f32) : f32[6]
  return v1, v2
}"""


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> InterpretedBackend:
    made = InterpretedBackend()
    monkeypatch.setitem(BACKENDS, "cpu", lambda *args: made)
    return made


def test_a_program_is_built_for_the_backends_of_its_oracle():
    backend: Backend = InterpretedBackend()
    oracle = cost_oracle(host_target(1), Machine(), backends={"cpu": lambda *args: backend})
    graph, config = run_graph_passes(parse_graph(GRAPH)), make_config({})
    part = fuse(graph, oracle=oracle, config=config)
    signature = CallSignature(part.graph.inputs, part.graph.outputs, {})
    program = build_program(part, signature, {}, config, (), oracle, CODE)
    x, w = torch.randn(6, 40), torch.randn(40)
    product, total = program.load(None)([x, w])
    torch.testing.assert_close((product, total), (x * w, (x * w).sum(1)))
    kernels = [repr(g.scheduled.kernel) for g in program.generated]
    assert [g.source for g in program.generated] == kernels
    assert program.artifact is None, "its kernels are no data that a file could keep"


def norm(x: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(x, (48,), w).softmax(-1)


def gather_rows(table: Tensor, rows: Tensor) -> Tensor:
    return (table[rows] * 2).relu()


def dropout(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5) + 1


X, W, ROWS = torch.randn(20, 48), torch.randn(48), torch.tensor([[3, 0], [19, 3]])


@pytest.fixture
def compiled(tmp_path: Path):
    """Compile without choosing eager for small programs."""
    return partial(tofuse.compile, cache_dir=tmp_path, hand_back=False)


@pytest.mark.parametrize(("program", "inputs"), [(norm, (X, W)), (gather_rows, (X, ROWS))])
def test_captured_programs_run(
    backend: InterpretedBackend,
    compiled,
    program: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
):
    torch.testing.assert_close(compiled(program)(*inputs), program(*inputs))
    assert backend.loaded
    report = tofuse.explain(program)(*inputs)
    assert {r.executor for r in report.regions if r.kernel} == {"interpreter"}


def test_gradients_are_computed(backend: InterpretedBackend, compiled):
    leaves = [[t.clone().requires_grad_() for t in (X, W)] for _ in range(2)]
    for fn, own in zip((compiled(norm), norm), leaves, strict=True):
        fn(*own).square().sum().backward()
    assert len(backend.loaded) > 1
    torch.testing.assert_close([t.grad for t in leaves[0]], [t.grad for t in leaves[1]])


def test_random_numbers_are_those_of_other_targets(
    monkeypatch: pytest.MonkeyPatch, compiled, tmp_path: Path
):
    def draw(cache: str) -> object:
        torch._dynamo.reset()
        torch.manual_seed(3)
        return compiled(dropout, cache_dir=tmp_path / cache)(X)

    ours, backend = draw("ours"), InterpretedBackend()
    monkeypatch.setitem(BACKENDS, "cpu", lambda *args: backend)
    torch.testing.assert_close(draw("theirs"), ours)
    assert backend.loaded
