"""Float32 products with small weights in memory: kernels with what surrounds them, in inference."""

import math

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tofuse.backends.cpu.cost.products import blocked_rows
from tofuse.backends.cpu.llvm.load import host_target
from tofuse.ir.types import DType

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def library_calls(fn, *args):
    """Return how many operators of PyTorch the compiled program calls."""
    return len(tofuse.explain(fn)(*args).library_calls)


@pytest.mark.parametrize("rows", [39, 64, 300])
@pytest.mark.parametrize("activation", [F.gelu, F.silu, torch.sin])
def test_products_are_kernels_with_what_reads_them(activation, rows):
    def layer(x, w, b):
        return activation(F.linear(x, w, b)) * b

    x, w, b = torch.randn(rows, 96), torch.randn(72, 96), torch.randn(72)
    ours = tofuse.compile(layer, hand_back=False)(x, w, b)
    torch.testing.assert_close(ours, layer(x, w, b), rtol=1e-4, atol=1e-4)
    least = blocked_rows(host_target(1)).get(DType.F32, math.inf)
    assert library_calls(layer, x, w, b) == (rows < least)
    torch._dynamo.reset()
    w.requires_grad_()
    forward = tofuse.explain(layer)(x, w, b).graphs[0]
    assert any(r.region.library for r in forward.regions)


def test_products_without_anything_beside_them_stay_calls():
    x, w = torch.randn(128, 96), torch.randn(72, 96)
    assert library_calls(F.linear, x, w) == 1


def test_large_weights_are_no_chain():
    """Each block of rows would read all packed weights again."""

    def layers(x, w, v):
        return F.linear(F.relu(F.linear(x, w)), v)

    x, w, v = torch.randn(256, 512), torch.randn(1024, 512), torch.randn(512, 1024)
    regions = tofuse.explain(layers)(x, w, v).graphs[0].regions
    assert max(sum(op.kind == "contract" for op in r.region.ops) for r in regions) < 2
