"""Grouped and scaled matrix products against loops over the groups."""

import pytest
import torch

from tests.frontends.support import build_definition, definition_from_text
from tests.frontends.test_ops_quantize import decode_fp4, nvfp4, swizzle
from tofuse.errors import DefinitionError
from tofuse.nvfuser import DataType, FusionDefinition

SIZES = ((3, 4, 2), (1, 0, 5), (7,))


def pieces(sizes):
    ends = torch.tensor(sizes).cumsum(0)
    starts = ends - torch.tensor(sizes)
    return [slice(a, b) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


def grouped(a, b, sizes):
    """Return the grouped product in float64."""
    a, b, groups = a.double(), b.double(), pieces(sizes)
    if b.dim() == 3:
        return torch.cat([a[g] @ b[k] for k, g in enumerate(groups)])
    if a.dim() == 3:
        return torch.cat([a[k] @ b[:, g] for k, g in enumerate(groups)], 1)
    return torch.stack([a[:, g] @ b[g] for g in groups])


def operands(kind, sizes, dtype, width=5, inner=11):
    total, count = sum(sizes), len(sizes)
    shapes = {
        "rows": ((total, inner), (count, inner, width)),
        "columns": ((count, width, inner), (inner, total)),
        "inner": ((width, total), (total, width + 1)),
    }[kind]
    return [torch.randn(shape).to(dtype) for shape in shapes]


@pytest.mark.parametrize("kind", ["rows", "columns", "inner"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_mm(kind, dtype):
    with FusionDefinition() as fd:
        ranks = {"rows": (2, 3), "columns": (3, 2), "inner": (2, 2)}[kind]
        a, b = (fd.define_tensor([-1] * r, dtype=nvfuser_type(dtype)) for r in ranks)
        ends = fd.define_tensor([-1], dtype=DataType.Int32)
        out = fd.ops.grouped_mm(a, b, ends)
        assert out.dtype is a.dtype
        fd.add_output(fd.ops.mul(out, 1.0))
    tolerance = 1e-4 if dtype is torch.float32 else 5e-2
    for sizes in SIZES:
        given = operands(kind, sizes, dtype)
        for x, y in (given, [t.mT.contiguous().mT for t in given]):
            (found,) = fd.execute([x, y, torch.tensor(sizes).cumsum(0).to(torch.int32)])
            wanted = grouped(x, y, sizes).float()
            torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
    assert repr(definition_from_text(fd)) == repr(fd)


def nvfuser_type(dtype):
    return {torch.float32: DataType.Float, torch.bfloat16: DataType.BFloat16}[dtype]


@pytest.mark.parametrize("kind", ["rows", "columns", "inner"])
def test_scaled_grouped_mm(kind):
    sizes = (3, 4, 2)
    a, b = operands(kind, sizes, torch.float8_e4m3fn, 6, 16)
    rows = (a.shape[0], 1) if kind == "rows" else (3, a.shape[-2], 1)
    columns = (1, b.shape[1]) if kind == "columns" else (3, 1, b.shape[-1])
    first, second = torch.rand(rows) + 0.5, torch.rand(columns) + 0.5
    ends = torch.tensor(sizes).cumsum(0).to(torch.int32)
    alpha, bias, beta = torch.tensor(0.5), torch.randn(b.shape[-1]), torch.tensor(2.0)
    inputs = [a, b, ends, first, second, alpha, bias, beta]

    def body(fd, a, b, ends, first, second, alpha, bias, beta):
        plain, scale, gamma = fd.ops.grouped_mm(a, b, ends, first, second)
        assert scale is None and gamma is None
        more, *_ = fd.ops.grouped_mm(
            a, b, ends, first, second, alpha, bias, beta, dtype=DataType.Float
        )
        return [plain, more]

    fd = build_definition(body, inputs)
    plain, more = fd.execute(inputs)
    if kind == "inner":
        wanted = grouped(a, b, sizes) * first * second
    else:
        wanted = grouped(a.double() * first, b.double() * second, sizes)
    assert plain.dtype is torch.bfloat16
    torch.testing.assert_close(plain.double(), wanted, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(more.double(), 0.5 * wanted + 2.0 * bias, rtol=1e-4, atol=1e-4)
    assert ", N" in repr(fd) and repr(definition_from_text(fd)) == repr(fd)
    torch.testing.assert_close(definition_from_text(fd).execute(inputs), [plain, more])


def test_scaled_mm_with_scales_of_rows_and_of_matrices():
    a, b = torch.randn(5, 16).to(torch.float8_e4m3fn), torch.randn(7, 16).to(torch.float8_e5m2).t()
    scales = [torch.rand(s) + 0.5 for s in ((5, 1), (1, 7), (), (1,))]
    alpha, bias = torch.tensor(3.0), torch.randn(7)
    inputs = [a, b, *scales, alpha, bias]

    def body(fd, a, b, rows, columns, one, other, alpha, bias):
        first, _, _ = fd.ops.scaled_mm(a, b, rows, columns, dtype=DataType.Float)
        second, *_ = fd.ops.scaled_mm(a, b, one, other, alpha, bias=bias, dtype=DataType.Float)
        return [first, second, fd.ops.scaled_mm(a, b, one, other)[0]]

    found = build_definition(body, inputs).execute(inputs)
    product, (rows, columns, one, other) = a.double() @ b.double(), scales
    single = product * one * other
    wanted = [product * rows * columns, 3.0 * single + bias, single.bfloat16()]
    for result, reference in zip(found, wanted, strict=True):
        narrow = result.dtype is torch.bfloat16
        tolerance = 1e-2 if narrow else 1e-5
        torch.testing.assert_close(
            result.double(), reference.double(), rtol=tolerance, atol=tolerance
        )


def test_scaled_mm_in_nvfp4_and_mxfp8():
    x, y = torch.randn(5, 64), torch.randn(130, 64)

    def body(fd, x, y):
        outputs = []
        for options in ((None, True), (None, False, 32, DataType.Float8_e4m3fn)):
            (a, first), (b, second) = (fd.ops.nv_block_quantize(t, *options) for t in (x, y))
            if not options[1]:
                first, second = swizzled(fd, first), swizzled(fd, second)
            turned = fd.ops.permute(b, [1, 0])
            outputs.append(fd.ops.scaled_mm(a, turned, first, second, dtype=DataType.Float)[0])
        return outputs

    def swizzled(fd, scales):
        start = fd.ops.full([1], 0, DataType.Int)
        return fd.ops.preprocess_grouped_matmul_input_sf(scales, start, start)

    fd = build_definition(body, [x, y])
    fp4, fp8 = fd.execute([x, y])
    (a, first), (b, second) = nvfp4(x), nvfp4(y)
    left, right = (t * s.float().repeat_interleave(16, 1) for t, s in ((a, first), (b, second)))
    torch.testing.assert_close(fp4, left @ right.t(), rtol=1e-4, atol=1e-4)
    exact = x @ y.t()
    assert (fp8 - exact).abs().max() < 0.1 * exact.abs().max()
    assert (fp4 - exact).abs().max() < 0.3 * exact.abs().max()


def test_scaled_mm_of_packed_inputs():
    x, y = torch.randn(5, 32), torch.randn(6, 32)
    quantize = build_definition(
        lambda fd, x, y: [*fd.ops.nv_block_quantize(x), *fd.ops.nv_block_quantize(y)], [x, y]
    )
    a, first, b, second = quantize.execute([x, y])
    tiles = [swizzle(s).to(torch.float8_e4m3fn) for s in (first, second)]
    with FusionDefinition() as fd:
        p = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float4_e2m1fn)
        q = fd.define_tensor([-1, -1], True, DataType.Float4_e2m1fn, stride_order=[0, 1])
        s, t = (fd.define_tensor([-1, -1], True, DataType.Float8_e4m3fn) for _ in range(2))
        fd.add_output(fd.ops.scaled_mm(p, q, s, t, dtype=DataType.Float)[0])
    (found,) = fd.execute([a, b.t(), *tiles])
    left, right = (
        decode_fp4(v) * s.float().repeat_interleave(16, 1) for v, s in ((a, first), (b, second))
    )
    torch.testing.assert_close(found, left @ right.t(), rtol=1e-5, atol=1e-5)
    names: dict = {}
    exec(fd.repro_script_for([a, b.t(), *tiles]), names)
    assert names["outputs"][0].shape == found.shape
    (again,) = fd.validate([a, b.t(), *tiles])
    assert torch.equal(again, found)


def test_sizes_of_fp4_inputs_count_numbers_or_with_x2_bytes():
    packed = torch.arange(64, dtype=torch.uint8).view(2, 32).view(torch.float4_e2m1fn_x2)
    for shape, dtype in (([2, 64], DataType.Float4_e2m1fn), ([2, 32], DataType.Float4_e2m1fn_x2)):
        with FusionDefinition() as fd:
            t = fd.define_tensor(shape, True, dtype)
            assert t.dtype is DataType.Float4_e2m1fn
            fd.add_output(fd.ops.set(t))
        for definition in (fd, definition_from_text(fd)):
            (same,) = definition.validate([packed])
            assert torch.equal(same.view(torch.uint8), packed.view(torch.uint8))
    fd = build_definition(lambda fd, t: fd.ops.set(t), [packed], static_sizes=True)
    assert fd.execute([packed])[0].shape == packed.shape
    with pytest.raises(DefinitionError, match="even size"):
        build_definition(lambda fd: fd.define_tensor([2, 3], True, DataType.Float4_e2m1fn), [])


def test_experts_in_nvfp4():
    sizes, width, inner = (3, 130, 7), 6, 64
    x, experts = torch.randn(sum(sizes), inner), torch.randn(3, width, inner)
    starts = torch.tensor([0, 3, 133], dtype=torch.int32)
    padded = torch.tensor([0, 128, 384], dtype=torch.int32)
    problems = torch.tensor([[n, width, inner] for n in sizes], dtype=torch.int32)
    quantize = build_definition(lambda fd, y: fd.ops.nv_block_quantize(y), [experts])
    packed, scales = quantize.execute([experts])
    tiles = torch.stack([swizzle(s) for s in scales]).to(torch.float8_e4m3fn)
    alpha = torch.tensor([1.0, 0.5, 2.0])
    inputs = [x, packed.transpose(1, 2), tiles, alpha, problems, starts, padded]

    def body(fd, x, y, tiles, alpha, problems, starts, padded):
        a, first = fd.ops.nv_grouped_block_quantize(x, starts, padded)
        return fd.ops.cutlass_nvfp4_grouped_mm(
            a, y, first, tiles, alpha, problems, starts, padded, DataType.Float
        )

    (found,) = build_definition(body, inputs).execute(inputs)
    numbers, factors = nvfp4(x)
    left = numbers * factors.float().repeat_interleave(16, 1)
    right = decode_fp4(packed) * scales.float().repeat_interleave(16, -1)
    wanted = torch.cat([left[g] @ right[k].t() * alpha[k] for k, g in enumerate(pieces(sizes))])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda fd, x, w, o: fd.ops.grouped_mm(w, w, o), "ranks 3 and 3"),
        (lambda fd, x, w, o: fd.ops.grouped_mm(x, w, x), "integers of rank 1"),
        (lambda fd, x, w, o: fd.ops.grouped_mm(x, w, o, x), "must be given together"),
        (
            lambda fd, x, w, o: fd.ops.grouped_mm(
                *(fd.ops.cast(t, DataType.Double) for t in (x, w)), o
            ),
            "does not take Double",
        ),
        (lambda fd, x, w, o: fd.ops.scaled_mm(x, x, x, x, output_gamma=True), "not supported"),
        (lambda fd, x, w, o: fd.ops.scaled_mm(x, w, x, x), "must have rank 2"),
        (
            lambda fd, x, w, o: fd.ops.cutlass_nvfp4_grouped_mm(x, w, x, x, o, o, o, o),
            "Float4_e2m1fn",
        ),
    ],
)
def test_wrong_products_raise(body, message):
    given = [torch.randn(4, 8), torch.randn(2, 8, 8), torch.tensor([2, 4], dtype=torch.int32)]
    with pytest.raises(DefinitionError, match=message):
        build_definition(body, given)
