"""Kernels multiply the weights that they decode or stream: all formats, rows, sizes, dtypes."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import tofuse
from benchmarks.workloads.decodes import FORMATS
from tofuse.backends.cpu.cost.products import blocked_rows, streamed_rows
from tofuse.backends.cpu.llvm.load import host_target
from tofuse.ir.types import DType

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def compiled(fn, **options):
    return tofuse.compile(fn, dynamic=False, hand_back=False, **options)


def library_calls(fn, *args):
    """Return how many operators of PyTorch the compiled program calls."""
    return len(tofuse.explain(fn)(*args).library_calls)


def relative_error(result, reference):
    difference = (result.double() - reference).square().mean().sqrt()
    return (difference / reference.square().mean().sqrt()).item()


def reference(form, x, codes):
    """Return the layer in float64, of the same scales."""
    wide = [c.double() if c.dtype == torch.float32 else c for c in codes]
    return F.linear(x.double(), form.decode(torch.float64, *wide))


@pytest.mark.broad(8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 9, 16, 21, 32, 33, 61, 130])
@pytest.mark.parametrize("name", FORMATS)
def test_error_is_at_most_that_of_eager(name, rows, dtype):
    form = FORMATS[name]
    for columns, depth in ((7, form.group), (64, 5 * form.group), (133, 7 * form.group)):
        torch._dynamo.reset()
        x, codes = torch.randn(rows, depth).to(dtype), form.make(columns, depth)
        exact, eager = reference(form, x, codes), form.layer(x, *codes)
        ours = compiled(form.layer)(x, *codes)
        assert ours.dtype == eager.dtype and ours.shape == eager.shape
        # a few results of half precision: the last rounding decides
        margin = 1e-7 if dtype == torch.float32 else 2e-3
        assert relative_error(ours, exact) <= 1.1 * relative_error(eager, exact) + margin


@pytest.mark.parametrize("name", FORMATS)
def test_one_kernel(name):
    form = FORMATS[name]
    x, codes = torch.randn(2, 4 * form.group), form.make(96, 4 * form.group)
    assert library_calls(form.layer, x, *codes) == 0


@pytest.mark.parametrize("name", ["int8", "int4, groups of 32, zero", "nf4"])
def test_special_scales_are_eagers(name):
    form = FORMATS[name]
    x = torch.randn(3, 2 * form.group)
    for special in (0.0, float("inf"), float("nan"), 3e38, 1e-40):
        codes = form.make(24, 2 * form.group)
        codes[1][5] = special
        ours, eager = compiled(form.layer)(x, *codes), form.layer(x, *codes)
        torch.testing.assert_close(ours, eager, equal_nan=True, rtol=1e-4, atol=1e-4)


def test_every_code():
    for name in FORMATS:
        form = FORMATS[name]
        _, *rest = form.make(256, form.group)
        codes = form.make(256, form.group)[0]
        every = torch.arange(256, dtype=torch.uint8)[:, None].expand(codes.shape).contiguous()
        if codes.dtype == torch.uint8 and name != "codebook of 27":
            codes = every
        elif codes.dtype.itemsize == 1 and name != "codebook of 27":
            codes = every.view(codes.dtype)
        x = torch.zeros(1, form.group)
        x[0, 0] = 1
        torch._dynamo.reset()
        ours, eager = compiled(form.layer)(x, codes, *rest), form.layer(x, codes, *rest)
        torch.testing.assert_close(ours, eager, equal_nan=True)


def test_bias_and_activation_join_the_kernel():
    form = FORMATS["int8"]

    def layer(x, bias, *codes):
        return F.gelu(F.linear(x, form.decode(x.dtype, *codes), bias)) + 1

    x, bias, codes = torch.randn(4, 96), torch.randn(40), form.make(40, 96)
    torch.testing.assert_close(compiled(layer)(x, bias, *codes), layer(x, bias, *codes))
    assert library_calls(layer, x, bias, *codes) == 0


def test_gradient_of_the_activations():
    form = FORMATS["int4, groups of 32, zero"]
    codes = form.make(48, 96)
    ours, eager = (torch.randn(3, 96).requires_grad_() for _ in range(2))
    with torch.no_grad():
        eager.copy_(ours)
    compiled(form.layer)(ours, *codes).sin().sum().backward()
    form.layer(eager, *codes).sin().sum().backward()
    torch.testing.assert_close(ours.grad, eager.grad)


def test_weight_with_contiguous_columns():
    def layer(x, w, s):
        return x @ (w.to(x.dtype) * s)

    for rows in (1, 3):
        torch._dynamo.reset()
        x, w = torch.randn(rows, 65), torch.randint(-128, 128, (65, 130), dtype=torch.int8)
        s = torch.rand(130)
        torch.testing.assert_close(compiled(layer)(x, w, s), layer(x, w, s), rtol=1e-4, atol=1e-3)


def test_operands_that_are_not_contiguous():
    form = FORMATS["int8"]
    x, (w, s) = torch.randn(5, 2 * 70)[:, ::2], form.make(33, 70)
    w = torch.cat([w, w], 1)[:, 70:]
    torch.testing.assert_close(compiled(form.layer)(x, w, s), form.layer(x, w, s))


def test_no_columns_and_no_depth():
    form = FORMATS["int8"]
    for rows, columns, depth in ((1, 0, 8), (2, 8, 0), (0, 8, 8)):
        torch._dynamo.reset()
        x, codes = torch.randn(rows, depth), form.make(columns, depth)
        torch.testing.assert_close(compiled(form.layer)(x, *codes), form.layer(x, *codes))


def test_a_weight_that_others_read_stays_in_memory():
    def layer(x, w, s):
        weight = w.float() * s
        return F.linear(x, weight), weight

    x, codes = torch.randn(24, 64), FORMATS["int8"].make(32, 64)
    torch.testing.assert_close(compiled(layer)(x, *codes), layer(x, *codes))
    assert library_calls(layer, x, *codes) == 1


def test_eager_precision_leaves_the_product_to_pytorch():
    form = FORMATS["int8"]
    x, codes = torch.randn(2, 64), form.make(32, 64)
    assert torch.equal(compiled(form.layer, precision="eager")(x, *codes), form.layer(x, *codes))


@pytest.mark.broad(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 2, 4, 7, 16, 17])
def test_weights_in_memory(rows, dtype):
    """The error is at most eager's, with neighbours on both sides, in each layout of the weight."""

    def layer(x, w, bias):
        return F.gelu(F.linear(F.silu(x), w, bias)) + x[:, :1]

    for columns, depth in ((520, 512), (700, 1001)):
        torch._dynamo.reset()
        x, w = torch.randn(rows, depth).to(dtype), torch.randn(columns, depth).to(dtype)
        for weight in (w, w.T.contiguous().T, torch.cat([w, w], 1)[:, :depth]):
            bias = torch.randn(columns).to(dtype)
            exact = layer(x.double(), weight.double(), bias.double())
            eager, ours = layer(x, weight, bias), compiled(layer)(x, weight, bias)
            assert ours.dtype == eager.dtype
            margin = 1e-7 if dtype == torch.float32 else 1e-4
            assert relative_error(ours, exact) <= 1.1 * relative_error(eager, exact) + margin


def test_weights_in_memory_train():
    def layer(x, w):
        return (F.linear(x, w) * 0.05).sin().sum()

    grads = []
    for fn in (layer, compiled(layer)):
        torch.manual_seed(0)
        x = torch.randn(1, 512, requires_grad=True)
        w = torch.randn(600, 512, requires_grad=True)
        fn(x, w).backward()
        grads.append((x.grad, w.grad))
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("dtype", "rows"), [(torch.bfloat16, 2), (torch.float16, 16)])
def test_few_rows_of_half_precision_are_kernels(dtype, rows):
    x, w = torch.randn(rows, 1024).to(dtype), torch.randn(1024, 1024).to(dtype)
    assert library_calls(F.linear, x, w) == 0
    many = torch.randn(64, 1024).to(dtype)
    name = DType.F16 if dtype == torch.float16 else DType.BF16
    by_blocks = name in blocked_rows(host_target(1))
    assert library_calls(F.linear, many, w) == (0 if by_blocks else 1)


def test_decoded_after_streamed():
    """A product that stays in the library does not take those after it along."""
    form = FORMATS["int8"]

    def layers(x, w, *codes):
        return F.linear(F.linear(x, w), form.decode(x.dtype, *codes))

    rows = streamed_rows(host_target(1))
    for dtype, name in ((torch.float32, DType.F32), (torch.bfloat16, DType.BF16)):
        torch._dynamo.reset()
        x, w = torch.randn(1, 512).to(dtype), torch.randn(512, 512).to(dtype)
        is_streamed = bool(rows.get(name))
        assert library_calls(layers, x, w, *form.make(512, 512)) == (0 if is_streamed else 1)


def test_products_of_a_batch_that_share_a_weight():
    def batched(x, w, s):
        return x @ (w.float() * s).expand(40, *w.shape)

    x, w = torch.randn(40, 2, 64), torch.randint(-9, 9, (64, 48), dtype=torch.int8)
    s = torch.rand(48)
    torch.testing.assert_close(compiled(batched)(x, w, s), batched(x, w, s), rtol=1e-4, atol=1e-3)
    assert library_calls(batched, x, w, s) == 0


def test_sums_of_products_that_are_hoisted():
    def repeated(p, q, u, v):
        return (p.exp() * q + u.exp() * v).expand(64, 4096).sum()

    args = [torch.randn(4096) for _ in range(4)]
    torch.testing.assert_close(compiled(repeated)(*args), repeated(*args), rtol=1e-4, atol=1e-2)


def test_positions_of_maxima_over_an_outer_axis():
    def positions(x, b):
        y = x + b
        return y.argmax(0), y.sum((0, 2))

    for columns in (512, 1024):
        torch._dynamo.reset()
        x, b = torch.randn(64, 4, columns), torch.randn(columns)
        ours, eager = compiled(positions)(x, b), positions(x, b)
        assert torch.equal(ours[0], eager[0])
        torch.testing.assert_close(ours[1], eager[1], rtol=1e-4, atol=1e-2)


def test_tuned():
    form = FORMATS["int4, groups of 32, zero"]
    x, codes = torch.randn(4, 256), form.make(96, 256)
    ours = compiled(form.layer, tune="measure")(x, *codes)
    torch.testing.assert_close(ours, form.layer(x, *codes), rtol=1e-4, atol=1e-4)


def test_several_sums_of_one_pair():
    def pairs(a, b):
        a, b = a[:, None], b[None]
        return (a * b).sum(-1), (a - b).square().sum(-1), (a * a * b).sum(-1)

    for dtype in (torch.float32, torch.float64):
        torch._dynamo.reset()
        a, b = torch.randn(9, 70).to(dtype), torch.randn(50, 70).to(dtype)
        torch.testing.assert_close(compiled(pairs)(a, b), pairs(a, b), rtol=1e-4, atol=1e-4)


def test_few_long_rows():
    x, w = torch.randn(8, 100_001), torch.randn(100_001)
    ours = compiled(lambda x, w: (x * w).sum(-1))(x, w)
    torch.testing.assert_close(ours, x @ w, rtol=1e-3, atol=1e-2)


def awq(x, codes, zeros, scale):
    """Eight codes in an int32, in AWQ's order, along the columns; zero points packed as well."""
    shifts = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7], dtype=torch.int32) * 4
    w = ((codes[:, :, None] >> shifts) & 15).flatten(1)
    zero = ((zeros[:, :, None] >> shifts) & 15).flatten(1).repeat_interleave(64, 0)
    return x @ ((w.to(x.dtype) - zero.to(x.dtype)) * scale.repeat_interleave(64, 0))


def gptq(x, codes, zeros, scale, group):
    """Eight codes in an int32 along the depth; each row of the weight has any group."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    w = ((codes[:, None, :] >> shifts[None, :, None]) & 15).flatten(0, 1)
    return x @ ((w - zeros[group]).to(x.dtype) * scale[group])


def gguf(x, codes, scale):
    """The low halves of a block's bytes are its first 16 codes, the high ones its last 16."""
    blocks = codes.view(codes.shape[0], -1, 16)
    q = torch.cat([blocks & 15, blocks >> 4], -1).to(torch.int8) - 8
    return F.linear(x, (q.to(x.dtype) * scale[..., None].to(x.dtype)).flatten(1))


@pytest.mark.parametrize("rows", [1, 5])
def test_formats_of_libraries(rows):
    words = torch.iinfo(torch.int32)

    def packed(*shape):
        return torch.randint(words.min, words.max, shape, dtype=torch.int32)

    x, scale = torch.randn(rows, 256), torch.rand(4, 96)
    group = torch.randint(4, (256,))
    cases: list[tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = [
        (awq, (packed(256, 12), packed(4, 12), scale)),
        (gptq, (packed(32, 96), torch.randint(16, (4, 96)), scale, group)),
        (gguf, (torch.randint(256, (97, 128), dtype=torch.uint8), torch.rand(97, 8).half())),
    ]
    for program, codes in cases:
        torch._dynamo.reset()
        ours, eager = compiled(program)(x, *codes), program(x, *codes)
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-2)
        assert library_calls(program, x, *codes) == 0


def test_many_rows_without_blocks_stay_in_the_library():
    """A depth that varies has no blocks; a number of rows that varies has."""

    def layer(x, w, s):
        return F.linear(x, w.float() * s)

    x, w = torch.randn(130, 1024), torch.randint(-9, 9, (512, 1024), dtype=torch.int8)
    s = torch.rand(512, 1)
    for dims, calls in ((), 0), ((0,), 0), ((1,), 1):
        torch._dynamo.reset()
        for dim in dims:
            torch._dynamo.mark_dynamic(x, dim)
        if 1 in dims:
            torch._dynamo.mark_dynamic(w, 1)
        assert library_calls(layer, x, w, s) == calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("depth", "columns", "rows"),
    [(129, 77, 41), (1, 33, 50), (1000, 1, 64), (64, 64, 0), (515, 130, 257)],
)
def test_weights_by_columns_and_transposed_rows(depth, columns, rows, dtype):
    def layer(x, w, s):
        return (x @ (w.to(x.dtype) * s)).relu()

    x = torch.randn(depth, rows).to(dtype).t()
    w, s = torch.randint(-128, 127, (depth, columns), dtype=torch.int8), torch.rand(columns) * 0.01
    ours, eager = compiled(layer)(x, w, s.to(dtype)), layer(x, w, s.to(dtype))
    assert ours.shape == eager.shape and ours.dtype == dtype
    if rows:
        exact = layer(x.double(), w, s.to(dtype).double())
        margin = 1e-7 if dtype == torch.float32 else 5e-4
        assert relative_error(ours, exact) <= 1.1 * relative_error(eager, exact) + margin


@pytest.mark.parametrize("decoded", [False, True])
def test_long_sums_are_as_exact_as_eagers(decoded):
    """Blocks of a product, and products of memory: the error is that of parts of a sum."""

    def layer(x, w, s):
        return F.linear(x, w * s if decoded else w)

    x, w, s = torch.randn(96, 4096), torch.randn(320, 4096), torch.rand(320, 1)
    exact = layer(x.double(), w.double(), s.double())
    ours, eager = compiled(layer)(x, w, s), layer(x, w, s)
    assert relative_error(ours, exact) <= 1.1 * relative_error(eager, exact)


def test_exact_sums_of_subnormal_factors():
    """AVX512-BF16 and AMX flush them: `precision="eager"` leaves these instructions alone."""

    def sums(a, b):
        return (a.float()[:, None] * b.float()[None]).sum(-1)

    a, b = (torch.randn(40, 70) * 1e-38).bfloat16(), (torch.randn(50, 70) * 1e3).bfloat16()
    ours = compiled(sums, precision="eager")(a, b)
    torch.testing.assert_close(ours, sums(a, b), rtol=1e-5, atol=1e-40)


def test_standardized_weights_train():
    class Layer(torch.nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(outputs, inputs))
            self.gain = torch.nn.Parameter(torch.rand(outputs, 1))

        def forward(self, x):
            centered = self.weight - self.weight.mean(1, keepdim=True)
            return F.linear(x, centered / (self.weight.std(1, keepdim=True) + 1e-5) * self.gain)

    model = torch.nn.Sequential(Layer(211, 614), torch.nn.GLU(-1), Layer(307, 211))
    x, grads = torch.randn(3, 47, 211), []
    for run in (model, compiled(model)):
        model.zero_grad(set_to_none=True)
        run(x).square().mean().backward()
        grads.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
