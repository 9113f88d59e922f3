"""Decomposed elementwise operators fuse, with eager's results."""

import math

import llvmlite.binding as llvm
import pytest
import torch
import torch.nn.functional as F

import tofuse
from tofuse.backends.cpu.llvm.load import CODE
from tofuse.backends.cpu.llvm.vector_math.vector_library import LIBRARY, library_definition
from tofuse.errors import CompileError

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1e-40, 3.4e38, -3.4e38]
SPECIAL += [1.0, -1.0, 2.0, -2.0, -0.5, -1.5, 0.5, 1e-20, 1e20, 0.7, -0.7, 1 - 2**-24, 2.5, 0.125]


def values(dtype: torch.dtype, count: int = 5000) -> torch.Tensor:
    """Special values first, then ordinary ones small and large."""
    g = torch.Generator().manual_seed(3)
    normal = torch.randn(count, generator=g, dtype=torch.float64)
    wide = normal.sign() * torch.exp(20 * normal.abs())
    near = torch.rand(count, generator=g, dtype=torch.float64) * 2 - 1
    special = torch.tensor(SPECIAL, dtype=torch.float64)
    return torch.cat([special, normal * 4, wide, near]).to(dtype)


def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    special = torch.tensor(SPECIAL, dtype=dtype)
    special_pairs, x = torch.cartesian_prod(special, special), values(dtype)
    return torch.cat([special_pairs[:, 0], x]), torch.cat([special_pairs[:, 1], x.flip(0)])


def ordered_bits(x: torch.Tensor) -> torch.Tensor:
    """Floats as integers in the same order; all NaNs are equal."""
    ints = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.dtype.itemsize]
    bits = torch.where(x.isnan(), torch.full_like(x, math.nan), x).view(ints).long()
    return torch.where(bits < 0, -(bits & (2 ** (8 * x.dtype.itemsize - 1) - 1)), bits)


def kernels_and_calls(program, *args) -> tuple[int, list[str]]:
    (graph,) = tofuse.explain(program)(*args).graphs
    return len(graph.kernels), [c.name for c in graph.library_calls]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["lgamma", "hypot", "nextafter"])
def test_vector_library_functions_are_bit_exact(name, dtype):
    """Kernels call the vector library that torch ships."""
    program = getattr(torch, name)
    args = (values(dtype),) if name == "lgamma" else pairs(dtype)
    compiled = tofuse.compile(program, dynamic=False)
    for part in (slice(None), slice(0, 1), slice(3, 8), slice(1, 18)):
        slices = [a[part].clone() for a in args]
        ours, eager = compiled(*slices), program(*slices)
        assert torch.equal(ordered_bits(ours), ordered_bits(eager))
        assert torch.equal(ours.signbit() | ours.isnan(), eager.signbit() | eager.isnan())
    torch._dynamo.reset()
    assert kernels_and_calls(lambda *a: program(*a) * 2, *args) == (1, [])


def test_of_a_0d_tensor():
    """Its kernel has no vectors."""
    x = torch.tensor(2.75)
    assert tofuse.compile(lambda x: torch.hypot(x.lgamma(), x))(x) == torch.hypot(x.lgamma(), x)


@pytest.mark.parametrize("name", ["lgamma", "hypot"])
def test_half_precision(name):
    for dtype in (torch.bfloat16, torch.float16):
        torch._dynamo.reset()
        x = values(dtype)
        program = torch.lgamma if name == "lgamma" else lambda x: torch.hypot(x, x)
        assert torch.equal(ordered_bits(tofuse.compile(program)(x)), ordered_bits(program(x)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_erfinv_is_within_an_ulp(dtype):
    x = torch.cat([values(dtype), (1 - torch.rand(1000) * 1e-5).to(dtype)])
    ours, eager = tofuse.compile(torch.erfinv)(x), torch.erfinv(x)
    assert int((ordered_bits(ours) - ordered_bits(eager)).abs().max()) <= 1
    assert torch.equal(ours.signbit() | ours.isnan(), eager.signbit() | eager.isnan())
    torch._dynamo.reset()
    assert kernels_and_calls(lambda x: torch.erfinv(x) * 2, x) == (1, [])


@pytest.mark.parametrize("decimals", [-2, 1, 3])
def test_rounding_to_decimals(decimals):
    program = lambda x: torch.round(x, decimals=decimals)  # noqa: E731
    for dtype in (torch.float32, torch.float64):
        torch._dynamo.reset()
        x = values(dtype) * 100
        assert torch.equal(ordered_bits(tofuse.compile(program)(x)), ordered_bits(program(x)))
        assert kernels_and_calls(program, x) == (1, [])


def test_signbit():
    for x in (values(torch.float32), torch.tensor([-3, 0, 5]), torch.tensor([0, 200]).byte()):
        torch._dynamo.reset()
        assert torch.equal(tofuse.compile(torch.signbit)(x), torch.signbit(x))
        assert kernels_and_calls(torch.signbit, x) == (1, [])


def test_gradients():
    x, y = values(torch.float32)[-3000:].abs() + 0.1, values(torch.float32)[-3000:]
    ours, eager = [t.clone().requires_grad_() for t in (x, y)], [x.requires_grad_(), y]
    eager[1].requires_grad_()
    program = lambda x, y: (torch.hypot(x, y) + x.lgamma() + torch.erfinv(y)).sum()  # noqa: E731
    tofuse.compile(program)(*ours).backward()
    program(*eager).backward()
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-6)


def test_a_function_missing_in_the_library_is_a_library_call(monkeypatch):
    monkeypatch.setattr(
        type(CODE), "bind_vector_library", lambda code, library: frozenset(["lgamma"])
    )
    x = values(torch.float32)
    program = lambda x: torch.lgamma(x) * 2  # noqa: E731
    assert kernels_and_calls(program, x) == (1, ["aten.lgamma.default"])
    (verdict,) = tofuse.explain(program)(x).graphs[0].verdicts
    assert not verdict.fused and "library call" in verdict.rule


def test_without_a_library_every_function_is_missing():
    assert CODE.bind_vector_library(None) == frozenset(LIBRARY)


def test_an_unresolved_symbol_raises():
    with pytest.raises(CompileError, match="Sleef_nothing"):
        CODE.load("declare void @Sleef_nothing()\ndefine i32 @f(ptr %c) {\n"
             "  call void @Sleef_nothing()\n  ret i32 0\n}", ["f"])  # fmt: skip


@pytest.mark.parametrize("native", [4, 8, 16])
@pytest.mark.parametrize("name", LIBRARY)
def test_library_definitions_parse_at_every_width(name, native):
    """Registers are split and padded to the widths of the library."""
    for elem in ("f32", "f64"):
        for width in (1, 2, 4, 8, 16):
            llvm.parse_assembly("\n".join(library_definition(name, elem, width, native).values()))


WITH_NUMBERS = {
    "comparisons": lambda x: torch.stack([x == 0.37, x >= 0.37, x > 0.37, x < 0.37, x != 0.37]),
    "remainders": lambda x: torch.stack([x % 0.37, torch.fmod(x, 0.37), torch.remainder(0.37, x)]),
    "sums": lambda x: torch.stack([x + 0.37, x - 0.37, 0.37 - x]),
    "products": lambda x: torch.stack([x * 0.37, x / 0.37]),
    "powers": lambda x: torch.stack([x.abs() ** 0.37, 0.37 ** x.abs()]),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_numbers_are_rounded_to_half_precision_as_in_eager(name, dtype):
    x = torch.linspace(-40, 40, 500).to(dtype)
    x[:3] = torch.tensor([0.37, -0.37, 0.74])
    compiled = tofuse.compile(WITH_NUMBERS[name], precision="eager")
    torch.testing.assert_close(compiled(x), WITH_NUMBERS[name](x), rtol=0, atol=0)


NUMBER = torch.tensor(0.377)
STEPS = {
    "addr": lambda x, y: torch.addr(x, y[0], x[:, 0], beta=0.5, alpha=2),
    "addr, nothing added": lambda x, y: torch.addr(x, y[0], x[:, 0], beta=0),
    "addcdiv": lambda x, y: torch.addcdiv(x, x.flip(0), y),
    "lerp": lambda x, y: torch.lerp(x, y, x.flip(0)),
    "sums of multiples": lambda x, y: (torch.add(x, y, alpha=0.3), torch.sub(x, y, alpha=0.3)),
    "products": lambda x, y: (x * NUMBER, x / NUMBER, NUMBER * x, NUMBER / y),
    "quotients": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "by a number": lambda x, y: [
        torch.div(x, n, rounding_mode=mode) for n in (0.377, NUMBER) for mode in ("floor", "trunc")
    ],
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", STEPS)
def test_steps_are_rounded_to_half_precision_as_in_eager(name, dtype):
    x, y = (torch.randn(2, 40, 40, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    compiled = tofuse.compile(STEPS[name], precision="eager")
    torch.testing.assert_close(compiled(x, y), STEPS[name](x, y), rtol=0, atol=0)


@pytest.mark.parametrize("n", [4, 5.0, 6, 7, 8, -3, -4, -8, 9, 12, 2.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_powers_of_floats(n, dtype):
    """Integer powers up to 8 are products, with as many roundings and special values as eager."""
    limits = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1.0, -1.0])
    x = torch.cat([limits, torch.linspace(-2.9, 2.9, 1001)]).to(dtype).requires_grad_()
    (y, gradient), (expected, expected_gradient) = (
        (z, torch.autograd.grad(z, x, torch.ones_like(z))[0])
        for z in (tofuse.compile(lambda x: x**n, strict=True, capture="trace")(x), x**n)
    )
    exact = x.detach().double() ** n
    eps = torch.finfo(dtype).eps
    at_limits = y[: len(limits)], expected[: len(limits)]
    torch.testing.assert_close(*at_limits, rtol=8 * eps, atol=0, equal_nan=True)
    assert torch.equal(*(z.nan_to_num(1).signbit() for z in at_limits))
    rest = slice(len(limits), None)
    wrong = (y.double() - exact)[rest].abs() / (exact[rest].abs() + torch.finfo(dtype).tiny)
    theirs = (expected.double() - exact)[rest].abs() / (exact[rest].abs() + torch.finfo(dtype).tiny)
    assert wrong.nan_to_num(0).max() <= theirs.nan_to_num(0).max() + 4 * eps
    tiny = 16 * eps * torch.finfo(dtype).tiny
    torch.testing.assert_close(
        gradient[rest], expected_gradient[rest], rtol=8 * eps, atol=tiny, equal_nan=True
    )


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 13, 30])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_powers_of_integers_are_kernels(n, dtype):
    x = torch.arange(-9 if dtype.is_signed else 0, 100).to(dtype)
    report = tofuse.explain(lambda x: x**n + 1)(x)
    assert len(report.kernels) == 1
    assert torch.equal(tofuse.compile(lambda x: x**n + 1, strict=True)(x), x**n + 1)


def test_negative_powers_of_integers_raise():
    x = torch.tensor([1, 2, 3])
    with pytest.raises(RuntimeError, match="negative integer powers"):
        tofuse.compile(lambda x: x**-2)(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_far_from_zero_keep_their_digits(dtype):
    x, y = torch.linspace(-40, 40, 201, dtype=dtype), torch.ones(201, dtype=dtype)
    y[::2] = -1

    def gradients(x, y):
        loss = torch.nn.functional.soft_margin_loss
        losses = (loss(x, y, reduction=r).sum() for r in ("none", "mean", "sum"))
        return tuple(torch.autograd.grad(z, x, retain_graph=True)[0] for z in losses)

    expected = gradients(x.double().clone().requires_grad_(), y.double())
    compiled = tofuse.compile(torch.nn.functional.soft_margin_loss, dynamic=False)
    for k, reduction in enumerate(("none", "mean", "sum")):
        z = x.clone().requires_grad_()
        compiled(z, y, reduction=reduction).sum().backward()
        torch.testing.assert_close(z.grad, expected[k].to(dtype), rtol=1e-5, atol=0)


@pytest.mark.parametrize("loss", [F.huber_loss, F.soft_margin_loss, F.smooth_l1_loss, F.mse_loss])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("options", [{}, {"precision": "eager"}, {"executors": ("aten",)}], ids=str)
def test_losses_of_two_dtypes_have_the_dtype_of_eager(options, loss, reduction):
    x, target = torch.rand(4, 5, dtype=torch.float16), torch.rand(4, 5)

    def program(x, y):
        losses = loss(x, y, reduction=reduction), loss(y, x, reduction=reduction)
        return [z * torch.tensor(2, dtype=torch.float16) for z in losses]  # promoted with the loss

    got, expected = tofuse.compile(program, **options)(x, target), program(x, target)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("slopes", [(), (0.1, 0.5), (0.2, 0.2, False, True), (-1, 2)], ids=str)
def test_rrelu_without_random_slopes_is_a_kernel(slopes, dtype):
    x = torch.randn(3, 17, dtype=dtype)
    x[0, :4] = torch.tensor([0.0, -0.0, float("inf"), float("nan")])

    def step(function):
        leaf = x.clone().requires_grad_()
        result = function(leaf * 1)
        return result, torch.autograd.grad(result.sum(), leaf)[0]

    def rrelu(x):
        return F.rrelu(x, *slopes)

    compiled = tofuse.compile(rrelu, hand_back=False)
    torch.testing.assert_close(step(compiled), step(rrelu), equal_nan=True)
    assert not tofuse.explain(rrelu)(x * torch.ones_like(x, requires_grad=True)).library_calls


def test_random_slopes_of_rrelu_are_those_of_the_gradient():
    x = torch.randn(1000, requires_grad=True)
    result = tofuse.compile(torch.nn.RReLU(), hand_back=False)(x)
    (gradient,) = torch.autograd.grad(result.sum(), x)
    torch.testing.assert_close(gradient * x, result)
    assert gradient.unique().numel() > 300
