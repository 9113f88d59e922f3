"""Formats of weights that no other test uses, decoded by the kernel of the product or not."""

import pytest
import torch
import torch.nn.functional as F

import tofuse

TOLERANCE = {torch.float32: 3e-7, torch.bfloat16: 4e-3, torch.float16: 5e-4, torch.float64: 1e-14}


def halves(codes):
    """Return the lower and the upper four bits of each byte, one after the other."""
    return torch.stack([codes & 15, codes >> 4], -1)


def bits(codes):
    return codes[..., None] >> torch.arange(8, dtype=torch.uint8) & 1


def integers(*shape, low=0, high=256):
    return torch.randint(low, high, shape, dtype=torch.uint8)


def mxfp4(lines, depth):
    """Numbers of four bits with an exponent for 32 of them (OCP Microscaling Formats)."""

    def decode(dtype, codes, exponents):
        q = halves(codes).reshape(lines, depth // 32, 32).to(torch.int32)
        sign, exponent, fraction = 1 - 2 * (q >> 3).to(dtype), q >> 1 & 3, (q & 1).to(dtype)
        normal = (1 + fraction * 0.5) * torch.exp2((exponent - 1).to(dtype))
        number = sign * torch.where(exponent == 0, fraction * 0.5, normal)
        return (number * torch.exp2(exponents.to(dtype) - 127)[..., None]).reshape(lines, depth)

    return decode, (integers(lines, depth // 2), integers(lines, depth // 32, low=118, high=130))


def superblocks(lines, depth):
    """Codes of four bits, scales and minima of six bits for 32, factors of both for 256 (Q4_K)."""
    blocks = depth // 256

    def decode(dtype, codes, scales, minima, factor, factor_of_minima):
        q = halves(codes.view(lines, blocks, 4, 32)).movedim(-1, 3).reshape(lines, blocks, 8, 32)
        scale = scales.to(dtype) * factor.to(dtype)[..., None]
        minimum = minima.to(dtype) * factor_of_minima.to(dtype)[..., None]
        return (q.to(dtype) * scale[..., None] - minimum[..., None]).reshape(lines, depth)

    sixes = (integers(lines, blocks, 8, high=64) for _ in range(2))
    factors = ((torch.rand(lines, blocks) / 50).half() for _ in range(2))
    return decode, (integers(lines, blocks, 128), *sixes, *factors)


def signs(lines, depth):
    """One bit for each weight."""

    def decode(dtype, codes, scale):
        sign = bits(codes).reshape(lines, depth).to(dtype) * 2 - 1
        return sign * scale.to(dtype)[:, None]

    return decode, (integers(lines, depth // 8), torch.rand(lines))


def planes_of_five_bits(lines, depth):
    """Four bits of each code in one tensor, the fifth in another."""

    def decode(dtype, low, high, scale):
        q = halves(low).reshape(lines, depth) | bits(high).reshape(lines, depth) << 4
        number = (q.to(dtype) - 16).reshape(lines, depth // 16, 16)
        return (number * scale.to(dtype)[..., None]).reshape(lines, depth)

    planes = integers(lines, depth // 2), integers(lines, depth // 8)
    return decode, (*planes, torch.rand(lines, depth // 16))


def blocks_of_two_dimensions(lines, depth):
    """fp8 with a scale for 64 by 64 numbers, the last ones smaller."""

    def decode(dtype, codes, scale):
        rows = scale.to(dtype).repeat_interleave(64, 0)[:lines]
        return codes.to(dtype) * rows.repeat_interleave(64, 1)[:, :depth]

    scale = torch.rand(-(-lines // 64), -(-depth // 64))
    return decode, (torch.randn(lines, depth).to(torch.float8_e4m3fn), scale)


def pairs_of_lines(lines, depth):
    """Two lines in each line of bytes."""

    def decode(dtype, codes, scale):
        q = halves(codes).movedim(-1, 1).reshape(lines, depth)
        return (q.to(dtype) - 8) * scale.to(dtype)[:, None]

    return decode, (integers(lines // 2, depth), torch.rand(lines))


FORMATS = [
    (mxfp4, 514, 768),
    (superblocks, 38, 256),
    (superblocks, 514, 768),
    (signs, 514, 768),
    (planes_of_five_bits, 37, 272),
    (planes_of_five_bits, 513, 784),
    (blocks_of_two_dimensions, 515, 769),
    (pairs_of_lines, 514, 768),
]
INPUTS = {
    "no rows": lambda depth: torch.randn(0, depth),
    "one row": lambda depth: torch.randn(1, depth),
    "a step of two": lambda depth: torch.randn(7, 2 * depth)[:, ::2],
    "sizes that vary": lambda depth: torch.randn(33, depth),
    "transposed": lambda depth: torch.randn(depth, 61).t(),
    "a batch": lambda depth: torch.randn(2, 3, depth),
    "a vector": lambda depth: torch.randn(depth),
}


@pytest.mark.broad(8)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize(("make", "lines", "depth"), FORMATS)
def test_as_exact_as_eager(make, lines, depth, kind, dtype):
    decode, tensors = make(lines, depth)
    x, bias = INPUTS[kind](depth).to(dtype), torch.randn(lines)

    def layer(x, bias, *tensors):
        weight = decode(x.dtype, *tensors)
        return torch.nn.functional.silu(torch.nn.functional.linear(x, weight, bias.to(x.dtype)))

    options = {"hand_back": False, "strict": True, "dynamic": kind == "sizes that vary"}
    found = tofuse.compile(layer, **options)(x, bias, *tensors)
    eager, exact = layer(x, bias, *tensors), layer(x.double(), bias, *tensors)
    assert (found.shape, found.stride(), found.dtype) == (eager.shape, eager.stride(), eager.dtype)
    if exact.numel():
        error, known = ((y.double() - exact).norm() / exact.norm() for y in (found, eager))
        assert error <= 1.2 * known + TOLERANCE[dtype]


@pytest.mark.parametrize("rows", [3, 70])
def test_parts_of_a_result_meet_what_was_multiplied(rows):
    """Gates of a recurrent cell: the depth of the product is an axis of its result's parts."""

    def gated(x, codes, scale):
        y = F.linear(x, codes.to(x.dtype) * scale[:, None])
        return x * y[:, :8].sigmoid() + y[:, 8:16] * y[:, 16:]

    args = torch.randn(rows, 8), torch.randint(-9, 9, (24, 8), dtype=torch.int8), torch.rand(24)
    ours = tofuse.compile(gated, dynamic=False, hand_back=False)(*args)
    torch.testing.assert_close(ours, gated(*args))


def by_halves(q, s):
    return ((torch.cat((q & 15, q >> 4), -1).float() - 8) * s).bfloat16().flatten(1)


def by_pairs(q, s):
    return ((torch.stack((q & 15, q >> 4), -1).flatten(2).bfloat16() - 8) * s.bfloat16()).flatten(1)


def code_book(q, s):
    book = torch.linspace(-1, 1, 16)
    return (book[torch.cat((q & 15, q >> 4), -1).int()] * s).bfloat16().flatten(1)


@pytest.mark.parametrize("decode", [by_halves, by_pairs, code_book])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_of_one_input_decode_in_their_kernels(decode, dtype):
    """Also behind a norm, where no kernel has all of them: each has its weight's decoding."""
    rows, columns = 768, 512
    g = torch.Generator().manual_seed(0)

    def weight():
        codes = torch.randint(0, 256, (rows, columns // 32, 16), dtype=torch.uint8, generator=g)
        return codes, torch.rand(rows, columns // 32, 1, generator=g).to(dtype) / 16

    def gated(x, a, b):
        h = x.float()
        h = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        gate, up = (F.linear(h, decode(q, s)) for q, s in (a, b))
        return F.silu(gate) * up

    x, a, b = torch.randn(1, columns, generator=g).bfloat16(), weight(), weight()
    report = tofuse.explain(gated)(x, a, b)
    assert report.peak_bytes < rows * columns, report
    actual, expected = tofuse.compile(gated, hand_back=False)(x, a, b), gated(x, a, b)
    torch.testing.assert_close(actual, expected, rtol=0.05, atol=0.05)
