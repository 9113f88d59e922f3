"""Products of 8-bit integers, as programs that quantize their activations write them."""

import pytest
import torch

import tofuse
from tofuse.backends.cpu.llvm.load import host_target

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def product(x, w):
    return torch._int_mm(x, w.t())


def quantized_layer(x, w, scale, bias):
    of_row = x.abs().amax(1, keepdim=True) / 127
    codes = (x / of_row).round().clamp(-128, 127).to(torch.int8)
    return torch.relu(torch._int_mm(codes, w.t()).to(x.dtype) * of_row * scale + bias)


def integers(*shape):
    return torch.randint(-128, 128, shape, dtype=torch.int8)


@pytest.mark.broad(4)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(17, 500, 530), (64, 1024, 256), (33, 8192, 40), (18, 0, 64)]
)
def test_results_are_eagers(rows, depth, columns, transposed):
    x, w = integers(rows, depth), integers(columns, depth)
    w = w.t().contiguous().t() if transposed else w
    assert torch.equal(tofuse.compile(product, dynamic=False)(x, w), product(x, w))


def test_layer_with_quantized_activations():
    x, w = torch.randn(40, 1024), integers(300, 1024)
    scale, bias = torch.rand(300), torch.randn(300)
    compiled = tofuse.compile(quantized_layer, dynamic=False, hand_back=False)
    ours, eager = compiled(x, w, scale, bias), quantized_layer(x, w, scale, bias)
    torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-3)
    report = tofuse.explain(quantized_layer)(x, w, scale, bias)
    assert len(report.library_calls) == (0 if host_target(1).avx512 else 1)


def test_sizes_that_vary():
    compiled = tofuse.compile(product, dynamic=True)
    w = integers(700, 512)
    for rows in (64, 20, 129):
        x = integers(rows, 512)
        assert torch.equal(compiled(x, w), product(x, w))
