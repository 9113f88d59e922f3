"""Products of few rows by weights in memory: exact, and kernels where these are faster."""

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tofuse.backends.cpu.cost.products import streamed_rows
from tofuse.backends.cpu.llvm.load import host_target
from tofuse.ir.types import DType

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def relative_error(result, reference):
    difference = (result.double() - reference).square().mean().sqrt()
    return (difference / reference.square().mean().sqrt()).item()


@pytest.mark.broad(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("columns", [1, 17, 64, 100, 256])
@pytest.mark.parametrize("rows", [1, 2, 5, 16])
def test_few_rows_of_small_weights(rows, columns, dtype):
    """A call of the library costs more than the product, if our kernels are fast for its dtype."""
    layer = torch.nn.Linear(72, columns).to(dtype).requires_grad_(False)
    x = torch.randn(rows, 72).to(dtype)

    def program(x):
        return F.gelu(layer(x)).sum(-1, keepdim=True) + layer(x)

    is_fast = {torch.float32: DType.F32, torch.bfloat16: DType.BF16, torch.float16: DType.F16}
    if is_fast[dtype] in streamed_rows(host_target(1)):
        assert not tofuse.explain(layer)(x).library_calls
    ours, eager = tofuse.compile(program)(x), program(x)
    layer.double()
    exact = program(x.double())
    margin = 1e-6 if dtype == torch.float32 else 4e-3
    assert relative_error(ours, exact) <= 1.2 * relative_error(eager, exact) + margin


@pytest.mark.parametrize("by_columns", [True, False])
@pytest.mark.parametrize("rows", [1, 4])
def test_layers_of_few_rows_are_no_chain(rows, by_columns):
    """One kernel would read the weights of all layers with one thread."""

    def layers(x, v, w):
        v, w = (v, w) if by_columns else (v.t(), w.t())
        return (x @ v).relu() @ w

    x, v, w = torch.randn(rows, 1024), torch.randn(1024, 1024), torch.randn(1024, 1024)
    report = tofuse.explain(layers)(x, v, w)
    regions = [region for graph in report.graphs for region in graph.partition.regions]
    assert all(sum(op.kind == "contract" for op in r.ops) <= 1 for r in regions)
