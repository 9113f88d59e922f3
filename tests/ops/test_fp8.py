"""Kernels convert and move fp8 numbers bitwise like PyTorch."""

import pytest
import torch

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
FP8_DTYPES = [torch.float8_e4m3fn, torch.float8_e5m2]
OTHERS = [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8]


def float_samples():
    """Floats over the whole range, and those at the limits of rounding and overflow."""
    steps = torch.cat((torch.arange(0, 2**31, 40009), torch.arange(-(2**31), 0, 40009)))
    ends = torch.tensor([0.0, 448, 464, 465, 479, 480, 57344, 61440, 61441, 65536, 1e-40])
    small = 2.0 ** torch.arange(-19, -5)
    nonfinite = torch.tensor([torch.inf, torch.nan])
    edges = torch.cat((ends, small, small * 1.01, small * 1.5, nonfinite))
    return torch.cat((steps.to(torch.int32).view(torch.float32), edges, -edges))


def assert_same_bytes(got, expected):
    assert got.dtype == expected.dtype
    if expected.dtype in FP8_DTYPES:
        assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))
    else:
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", FP8_DTYPES)
def test_floats_are_rounded_as_pytorch_rounds(dtype):
    x = float_samples()
    for f in (
        lambda x: (x * 1).to(dtype),
        lambda x: (x * 1).to(dtype).to(torch.float32) * 2,  # in registers only
        lambda x: ((x + 0).to(dtype), (x + 0).to(dtype).float()),
    ):
        got, expected = tofuse.compile(f, capture="trace")(x), f(x)
        for a, b in zip(*((t,) if torch.is_tensor(t) else t for t in (got, expected)), strict=True):
            assert_same_bytes(a, b)


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("dtype", FP8_DTYPES)
def test_conversion_from_and_to_other_types(dtype, other):
    def narrowed(x):
        return (x + x).to(dtype)

    def widened(q):
        return q.to(other) * 1

    x = (torch.randn(3, 37) * 50).to(other)
    assert_same_bytes(tofuse.compile(narrowed)(x), narrowed(x))
    fp8_bytes = torch.arange(256).to(torch.uint8).view(dtype)
    if other.is_floating_point:  # the integer value of infinity depends on the host
        assert_same_bytes(tofuse.compile(widened)(fp8_bytes), widened(fp8_bytes))


@pytest.mark.parametrize("dtype", FP8_DTYPES)
def test_fp8_values_are_moved_unchanged(dtype):
    fp8_bytes = torch.arange(256).to(torch.uint8).view(dtype)
    for f in (
        lambda q: q.view(16, 16).t().contiguous(),
        lambda q: torch.cat((q, q[3:])),
        lambda q: q.view(4, 64)[:, 1::2].clone(),
        lambda q: torch.stack(q.view(2, 128).unbind()),
    ):
        got, expected = tofuse.compile(f, capture="trace")(fp8_bytes), f(fp8_bytes)
        assert got.dtype == dtype  # the payload of nan may differ
        assert_same_bytes(got.float(), expected.float())


def test_arithmetic_is_an_error_as_in_eager():
    q = torch.ones(4).to(torch.float8_e5m2)
    with pytest.raises((NotImplementedError, RuntimeError)):
        tofuse.compile(lambda q: q + q, capture="trace")(q)


@pytest.mark.parametrize("dtype", FP8_DTYPES)
def test_quantization_is_one_kernel(dtype):
    largest = torch.finfo(dtype).max

    def quantized(x):
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / largest
        return (x / scale).to(dtype), scale

    def restored(x):
        q, scale = quantized(x)
        return q.float() * scale

    x = torch.randn(64, 300)
    for f, outputs in ((quantized, 2), (restored, 1)):
        report = tofuse.explain(f)(x)
        assert len(report.kernels) == 1 and not report.library_calls
        assert report.peak_bytes <= report.eager_peak_bytes
        got, expected = tofuse.compile(f)(x), f(x)
        pairs = zip(got, expected, strict=True) if outputs == 2 else [(got, expected)]
        for a, b in pairs:
            assert_same_bytes(a, b)


@pytest.mark.parametrize("dtype", FP8_DTYPES)
@pytest.mark.parametrize("shape", [(1,), (31, 17), (4, 0), (1009,)])
def test_sizes_and_layouts(dtype, shape):
    x = torch.randn(shape[::-1]).permute(*range(len(shape))[::-1])
    compiled = tofuse.compile(lambda x: (x * 3).to(dtype), capture="trace")
    assert_same_bytes(compiled(x), (x * 3).to(dtype))
