"""Block quantization against the same steps in torch."""

import pytest
import torch

from tests.frontends.support import build_definition, definition_from_text
from tofuse.errors import DefinitionError
from tofuse.nvfuser import DataType

FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def decode_fp4(x):
    """Return two numbers for each byte along the last dimension."""
    codes = x.contiguous().view(torch.uint8).long()
    codes = torch.stack([codes & 15, codes >> 4], -1).flatten(-2)
    return torch.where(codes >= 8, -FP4[codes & 7], FP4[codes & 7])


def nearest_fp4(x):
    """Round to the nearest number of fp4, to the even code in the middle of two."""
    distance = (x.abs().clamp(max=6.0).unsqueeze(-1) - FP4).abs()
    odd = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1]) * 1e-7
    return torch.copysign(FP4[(distance + odd).argmin(-1)], x)


def swizzle(scales):
    """Return scales in tiles of 128 rows and 4 columns, padded with zeros."""
    rows, columns = scales.shape
    padded = torch.zeros(-(-rows // 128) * 128, -(-columns // 4) * 4)
    padded[:rows, :columns] = scales.float()
    tiles = padded.view(padded.shape[0] // 128, 4, 32, padded.shape[1] // 4, 4)
    return tiles.transpose(1, 3).reshape(padded.shape)


def nvfp4(x, scale=None):
    """Return fp4 numbers as Float, and the scales."""
    blocks = x.float().unflatten(-1, (-1, 16))
    largest = blocks.abs().amax(-1) / 6.0 * (1.0 if scale is None else scale)
    scales = largest.clamp(max=448.0).to(torch.float8_e4m3fn)
    decoded = scales.float() * (1.0 if scale is None else 1.0 / scale)
    factor = (1.0 / decoded).clamp(max=torch.finfo(torch.float32).max)
    return nearest_fp4(blocks * factor.unsqueeze(-1)).flatten(-2), scales


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(5, 64), (1, 16), (2, 3, 32), (48,), (0, 32)])
def test_nvfp4(shape, dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).to(dtype)
    x.view(-1)[:3] = torch.tensor([0.25, -0.0, -7.0], dtype=dtype)[: x.numel()]
    scale = torch.tensor(448.0 * 6.0 / 5.0)
    fd = build_definition(
        lambda fd, x, g: [*fd.ops.nv_block_quantize(x), *fd.ops.nv_block_quantize(x, g)], [x, scale]
    )
    outputs = fd.execute([x, scale])
    for k, wanted in enumerate((nvfp4(x), nvfp4(x, scale))):
        quantized, scales = outputs[2 * k : 2 * k + 2]
        assert quantized.dtype is torch.float4_e2m1fn_x2 and scales.dtype is torch.float8_e4m3fn
        assert quantized.shape == (*shape[:-1], shape[-1] // 2)
        assert torch.equal(scales.float(), wanted[1].float())
        assert torch.equal(decode_fp4(quantized), wanted[0])
    assert repr(definition_from_text(fd)) == repr(fd)


def test_rounding_to_fp4():
    bounds = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    near = torch.cat([bounds, bounds * (1 - 1e-6), bounds * (1 + 1e-6), -bounds])
    x = torch.cat([near, torch.tensor([0.0, -0.0, 5.9, -1e-9])]).view(2, 16)
    x[:, -1] = 6.0  # so that the scale of each block is 1
    fd = build_definition(lambda fd, x: fd.ops.nv_block_quantize(x)[0], [x])
    (found,) = fd.execute([x])
    wanted = nearest_fp4(x)
    assert torch.equal(decode_fp4(found), wanted)
    assert torch.equal(decode_fp4(found).signbit(), wanted.signbit())
    zeros = torch.zeros(1, 16)
    assert torch.equal(decode_fp4(fd.execute([zeros])[0]), zeros)


def test_casts_to_fp4_and_back():
    x = torch.tensor([[0.3, -7.0, 2.5, 1e9], [0.0, -0.2, float("inf"), 5.1]])
    fd = build_definition(
        lambda fd, x: [
            fd.ops.cast(x, DataType.Float4_e2m1fn),
            fd.ops.cast(fd.ops.cast(x, DataType.Float4_e2m1fn_x2), DataType.BFloat16),
        ],
        [x],
    )
    packed, wide = fd.execute([x])
    assert torch.equal(decode_fp4(packed), nearest_fp4(x))
    assert torch.equal(wide, nearest_fp4(x).bfloat16())
    with pytest.raises(DefinitionError, match="add: it takes no Float4_e2m1fn operands"):
        build_definition(lambda fd, t: fd.ops.add(t, 1.0), [packed])


def test_mxfp8():
    x = torch.randn(6, 64) * torch.tensor([1.0, 1e-30, 1e30, 448.0, 0.0, 1e-39]).unsqueeze(1)
    x[3, :32] = 448.0  # a power of two needs no rounding
    fd = build_definition(
        lambda fd, x: list(fd.ops.nv_block_quantize(x, None, False, 32, DataType.Float8_e4m3fn)),
        [x],
    )
    quantized, scales = fd.execute([x])
    assert quantized.dtype is torch.float8_e4m3fn and scales.dtype is torch.float8_e8m0fnu
    largest = x.double().unflatten(-1, (-1, 32)).abs().amax(-1)
    exponent = (largest / 448.0).log2().ceil().clamp(min=-127.0)
    assert torch.equal(scales.double(), exponent.exp2())
    factor = torch.where(exponent == -127.0, 1.0, (-exponent).exp2()).unsqueeze(-1)
    wanted = (x.unflatten(-1, (-1, 32)).double() * factor).flatten(-2).float()
    assert torch.equal(quantized.float(), wanted.clamp(-448, 448).to(torch.float8_e4m3fn).float())


def test_swizzled_scales():
    for rows, columns in ((128, 64), (130, 16), (5, 80)):
        x = torch.randn(rows, columns)
        fd = build_definition(lambda fd, x: fd.ops.nv_block_quantize(x, None, True)[1], [x])
        assert torch.equal(fd.execute([x])[0].float(), swizzle(nvfp4(x)[1]))


def test_scales_of_groups():
    sizes = (3, 0, 130, 7)
    x = torch.randn(sum(sizes), 48)
    before = torch.tensor([0, 3, 3, 133], dtype=torch.int32)
    after = torch.tensor([0, 128, 128, 384], dtype=torch.int32)
    fd = build_definition(
        lambda fd, x, a, b: [
            fd.ops.preprocess_grouped_matmul_input_sf(fd.ops.nv_block_quantize(x)[1], a, b),
            *fd.ops.nv_grouped_block_quantize(x, a, b),
        ],
        [x, before, after],
    )
    tiles, quantized, same = fd.execute([x, before, after])
    numbers, scales = nvfp4(x)
    assert torch.equal(decode_fp4(quantized), numbers)
    assert torch.equal(tiles.float(), same.float()) and tiles.shape[0] >= 512
    for first, target, size in zip(before.tolist(), after.tolist(), sizes, strict=True):
        part = swizzle(scales[first : first + size])
        assert torch.equal(tiles[target : target + part.shape[0]].float(), part)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, False, 32), "block_size must be 16 for Float4_e2m1fn"),
        ((None, False, 16, DataType.Float8_e4m3fn), "block_size must be 32"),
        ((None, True, 32, DataType.Float8_e4m3fn), "its scales are not swizzled"),
        ((None, False, 16, DataType.Half), "not Half"),
    ],
)
def test_wrong_quantization_raises(arguments, message):
    with pytest.raises(DefinitionError, match=f"nv_block_quantize: .*{message}"):
        build_definition(
            lambda fd, x: fd.ops.nv_block_quantize(x, *arguments), [torch.randn(2, 32)]
        )
    with pytest.raises(DefinitionError, match="no multiple of 16"):
        build_definition(
            lambda fd, x: fd.ops.nv_block_quantize(x)[0],
            [torch.randn(2, 20)],
            static_sizes=True,
        )
