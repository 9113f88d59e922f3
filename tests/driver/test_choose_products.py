"""Products in kernels on a GPU; products_on_fake_gpu.py tests the choice without one."""

from collections.abc import Callable

import pytest
import torch

import tofuse
from tests.support.product_programs import PROGRAMS
from tofuse.driver import pipeline
from tofuse.passes.contract_products import contract_products

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.usefixtures("fresh_dynamo"),
]


def steps(program, compiled, shapes, dtype) -> list[list[torch.Tensor]]:
    """Return results and gradients in float64, in eager, and compiled, in float64."""
    generator = torch.Generator("cuda").manual_seed(3)
    made = [torch.randn(s, device="cuda", generator=generator).to(dtype) for s in shapes]
    found = []
    for run, wide in ((program, torch.float64), (program, dtype), (compiled, dtype)):
        inputs = [t.to(wide, copy=True).requires_grad_() for t in made]
        result = run(*inputs)
        result.backward(result.detach().cos())
        grads = [t.grad for t in inputs if t.grad is not None]
        found.append([t.double() for t in (result, *grads)])
    return found


def assert_as_eager(found: list[list[torch.Tensor]], dtype: torch.dtype) -> None:
    for exact, eager, ours in zip(*found, strict=True):
        bound = 2 * (eager - exact).abs().max() + torch.finfo(dtype).eps * exact.abs().max()
        assert (ours - exact).abs().max() <= bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("program", "shapes"), PROGRAMS, ids=lambda x: getattr(x, "__name__", ""))
def test_products_in_kernels(
    monkeypatch: pytest.MonkeyPatch, program: Callable[..., torch.Tensor], shapes, dtype
):
    def contract(graph):
        return contract_products(graph, {r for op in graph.ops for r in op.results})

    passes = (*pipeline.LAST_GRAPH_PASSES, contract)
    monkeypatch.setattr(pipeline, "LAST_GRAPH_PASSES", passes)
    assert_as_eager(steps(program, tofuse.compile(program), shapes, dtype), dtype)


@pytest.mark.parametrize(
    ("program", "shapes"), PROGRAMS[:4], ids=lambda x: getattr(x, "__name__", "")
)
def test_measured_products(program: Callable[..., torch.Tensor], shapes):
    compiled = tofuse.compile(program, tune="measure")
    assert_as_eager(steps(program, compiled, shapes, torch.bfloat16), torch.bfloat16)
