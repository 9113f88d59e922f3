"""Kernels compute PyTorch's attention: masks, lengths, groups, scales, layouts, gradients."""

import math

import pytest
import torch
import torch.nn.functional as F

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def compiled(fn):
    return tofuse.compile(fn, dynamic=False, hand_back=False)


def masks(queries, keys):
    some = torch.rand(2, 1, queries, keys) < 0.7
    empty_row = some.clone()
    empty_row[:, :, queries // 2] = False
    return {
        "none": None,
        "bool": some,
        "empty row": empty_row,
        "float": torch.randn(queries, keys),
        "per head": torch.randn(1, 6, queries, keys),
        "infinite": torch.zeros(queries, keys).masked_fill(some[0, 0], -math.inf),
    }


def error(result, exact):
    return (result - exact).square().mean().sqrt().item()


@pytest.mark.broad(4)
@pytest.mark.parametrize("mask", [*masks(2, 2), "causal"])
@pytest.mark.parametrize(("queries", "keys"), [(64, 64), (33, 70), (70, 33), (1, 40), (17, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_values_and_gradients(mask, queries, keys, dtype, groups, scale):
    torch.manual_seed(0)
    q = torch.randn(2, queries, 6, 24).transpose(1, 2)
    k, v = (torch.randn(2, 6 // groups, keys, n) for n in (24, 24))
    bias = masks(queries, keys).get(mask)
    options = {"is_causal": mask == "causal", "enable_gqa": groups > 1, "scale": scale}

    def attention(q, k, v, bias):
        return F.scaled_dot_product_attention(q, k, v, bias, **options)

    wide = bias.double() if bias is not None and bias.is_floating_point() else bias
    exact = attention(q.double(), k.double(), v.double(), wide)
    q, k, v = (t.to(dtype) for t in (q, k, v))
    if bias is not None and bias.is_floating_point():
        bias = bias.to(dtype)
    eager, ours = attention(q, k, v, bias), compiled(attention)(q, k, v, bias)
    assert ours.dtype == dtype
    margin = 1e-7 if dtype == torch.float32 else 1e-4
    assert error(ours, exact) <= 1.1 * error(eager, exact) + margin
    found = []
    for fn in (compiled(attention), attention):
        x, y, z = (t.detach().requires_grad_() for t in (q, k, v))
        fn(x, y, z, bias).square().sum().backward()
        found.append([x.grad, y.grad, z.grad])
    tolerance = 1e-4 if dtype == torch.float32 else 5e-2
    torch.testing.assert_close(*found, rtol=tolerance, atol=tolerance)


def test_one_kernel_with_what_computes_the_queries():
    def attention(q, k, v):
        return F.scaled_dot_product_attention(q.cos() * 2, k.sin(), v, is_causal=True).tanh()

    q, k, v = (torch.randn(1, 2, 128, 32) for _ in range(3))
    report = tofuse.explain(attention)(q, k, v)
    assert len(report.kernels) == 1 and not report.library_calls
    torch.testing.assert_close(compiled(attention)(q, k, v), attention(q, k, v))


@pytest.mark.parametrize("options", [{"precision": "eager"}, {"executors": ("aten", "llvm")}])
def test_options_keep_the_library(options):
    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    q, k, v = (torch.randn(1, 2, 128, 32) for _ in range(3))
    assert len(tofuse.explain(attention, **options)(q, k, v).library_calls) == 1


def test_long_rows_stay_in_the_library():
    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    q, k, v = (torch.randn(1, 2, n, 64) for n in (128, 100_000, 100_000))
    assert len(tofuse.explain(attention)(q, k, v).library_calls) == 1


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_query_reads_the_keys_in_kernels(groups, dtype):
    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    q = torch.randn(2, 8, 1, 64).to(dtype)
    k, v = (torch.randn(2, 8 // groups, 9000, 64).to(dtype) for _ in range(2))
    assert not tofuse.explain(attention)(q, k, v).library_calls
    exact = attention(q.double(), k.double(), v.double())
    eager, ours = attention(q, k, v), compiled(attention)(q, k, v)
    assert error(ours, exact) <= 1.1 * error(eager, exact) + (1e-7 if groups else 1e-4)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_two_kernels_without_scores_in_memory(causal):
    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    q, k, v = (torch.randn(2, 3, 256, 32, requires_grad=True) for _ in range(3))
    report = tofuse.explain(attention)(q, k, v)
    assert not report.library_calls
    assert len(report.forward.kernels) == 1 and len(report.backward.kernels) == 2
    assert report.peak_bytes < 6 * q.nbytes


def test_gradients_of_grouped_heads_stay_in_the_library():
    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    q = torch.randn(1, 4, 64, 32, requires_grad=True)
    k, v = (torch.randn(1, 2, 64, 32, requires_grad=True) for _ in range(2))
    found = []
    for fn in (compiled(attention), attention):
        q.grad = k.grad = v.grad = None
        fn(q, k, v).square().sum().backward()
        found.append([q.grad, k.grad, v.grad])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_dropout_stays_in_the_library():
    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)

    q, k, v = (torch.randn(1, 2, 64, 32) for _ in range(3))
    result = compiled(attention)(q, k, v)
    assert result.shape == q.shape and result.isfinite().all()


def test_torch_modules():
    for module in (
        torch.nn.MultiheadAttention(32, 4, batch_first=True),
        torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0),
    ):
        x = torch.randn(2, 50, 32)
        args = (x, x, x) if isinstance(module, torch.nn.MultiheadAttention) else (x,)
        for training in (True, False):
            module.train(training)
            ours, eager = compiled(module)(*args), module(*args)
            torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)
