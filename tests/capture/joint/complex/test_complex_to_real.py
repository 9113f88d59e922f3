"""Complex arithmetic on pairs of real tensors: eager's results, fused; single calls stay."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def numbers(*shape, dtype=torch.complex64, grad=True):
    return torch.randn(shape, dtype=dtype).requires_grad_(grad)


def rotate(q, k, rotations):
    """Rotary embedding as complex products."""

    def rotated_tensor(x):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        rotation = rotations.view(1, x.shape[1], 1, -1)
        return torch.view_as_real(pairs * rotation).flatten(3).type_as(x)

    return rotated_tensor(q), rotated_tensor(k)


def rotations(length, half):
    return torch.polar(torch.ones(length, half), torch.randn(length, half))


def arithmetic(z, w):
    yield from (z + w, z - 2 * w, z * w, z / w, -z, z.conj() * 1, z.reciprocal(), z * 2j + 3)
    yield from (1 / z, torch.add(z, w, alpha=3), torch.sub(z, w, alpha=2j), z / (1 - 2j), z / 3)


def real_operands(z, x):
    yield from (z + x, x - z, z * x, x / z, z / x, x * 1j, (x + 1j) * 2, z * x.double())


def parts(z):  # with `* 1`: eager's parts are strided views, compiled ones are contiguous
    yield from (z.real, z.imag, z.abs(), z.angle(), torch.view_as_real(z), (z * 1j).imag * 1)
    yield from ((z * z.conj()).real * 1, (z * 2).conj().imag * 1, z.norm(), (z * z).abs())


def constructors(x, y):
    yield from (
        torch.complex(x, y),
        torch.polar(x, y),
        torch.view_as_complex(torch.stack((x, y), 2)),
    )
    yield from (torch.complex(x, y) * 2, torch.exp(1j * x), x.to(torch.complex64) * y)


def functions(z):
    yield from (z.exp(), z.log(), z.sqrt(), z.tanh(), z**2, z**3, z**0.5, z.sgn(), z.sigmoid())


def data_movement(z):
    y = z * z
    yield from (y.t(), y[1:3].clone(), y.flatten()[::2], torch.cat((z, y)), y.flip(0), y.roll(1, 0))
    yield from (y.view(7, 5).sum(0), y.unsqueeze(1).expand(5, 3, 7).contiguous(), y.repeat(2, 1))
    yield from (torch.stack(y.split(2, 1)[:2]).conj(), F.pad(y, (1, 2)), y.diagonal(), y.tril())
    yield from (
        y[torch.tensor([0, 2])],
        y.index_select(1, torch.tensor([3, 3])),
        y.unbind(1)[2] * 2,
    )


def reductions(z):
    yield from (
        z.sum(),
        z.mean(0),
        z.mean(),
        z.mean(1, dtype=torch.complex128),
        (z * z).sum(1, keepdim=True),
        z.prod(0),
        z.cumsum(0),
        z.var(0),
    )


def around_calls(z, w):
    y = (z * 2) @ w
    yield from (torch.linalg.eigvals(y[:4, :4].detach()).abs().sum() * w.abs().sum(),)
    yield from (y * y.conj(), torch.linalg.inv(y[:4, :4] + 9), torch.fft.fft(z * z).abs())


def selections(z, w):
    yield from (
        torch.where(z.real > 0, z, w),
        torch.where(z.real > 0, z, 0.0),
        torch.zeros_like(z) + z,
    )
    yield from (torch.ones_like(w) * z, torch.full_like(w, 2 - 1j) * z, z.new_zeros(3) + z[0, :3])


def in_place(z, x):
    y = z * 1
    y += x
    y.mul_(2)
    y[0] = 1j
    y[:, 1] *= x[:, 1]
    yield from (y, y.abs())


CASES = {
    arithmetic: lambda d: (numbers(5, 7, dtype=d), numbers(7, dtype=d)),
    real_operands: lambda d: (numbers(5, 7, dtype=d), numbers(5, 7, dtype=torch.float32)),
    parts: lambda d: (numbers(5, 7, dtype=d),),
    constructors: lambda d: (
        numbers(5, 7, dtype=torch.float32),
        numbers(5, 7, dtype=torch.float32),
    ),
    functions: lambda d: (numbers(5, 7, dtype=d),),
    data_movement: lambda d: (numbers(5, 7, dtype=d),),
    reductions: lambda d: (numbers(5, 7, dtype=d),),
    around_calls: lambda d: (numbers(5, 7, dtype=d), numbers(7, 4, dtype=d)),
    selections: lambda d: (numbers(5, 7, dtype=d), numbers(5, 7, dtype=d)),
    in_place: lambda d: (numbers(5, 7, dtype=d), numbers(5, 7, dtype=torch.float32)),
}


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("program", CASES, ids=lambda f: f.__name__)
def test_programs_are_as_eager(program, dtype, capture):
    args = CASES[program](dtype)
    assert_as_eager(lambda *xs: [*program(*xs)], *args, options={"capture": capture})
    plain = [t.detach() for t in args]
    assert_as_eager(lambda *xs: [*program(*xs)], *plain, options={"capture": capture})


@pytest.mark.parametrize("shape", [(3, 0), (1, 1), (1,), (), (2, 3, 5, 7), (1023,)])
def test_sizes(shape):
    z, w = numbers(*shape), numbers(*shape)
    assert_as_eager(lambda z, w: ((z * w - w).abs(), (z / w).conj() * z, (z * w).sum()), z, w)


def test_imaginary_parts_that_are_zero_or_broadcast():
    x, w = torch.randn(5, 7).round(), numbers(7)

    def program(x, w):
        z, y = x.to(torch.complex64), x + w * 2
        yield from (F.pad(z, (1, 2)) * 2, F.pad(y, (1, 0, 0, 1), value=3) * 2)
        yield from (torch.fft.fftn(x, s=(9,)), (z == 1) * 2, (z != 1 + 2j) * 2, z == x.abs())

    assert_as_eager(lambda *xs: [*program(*xs)], x.requires_grad_(), w)


@pytest.mark.parametrize("make", [torch.complex, torch.polar])
def test_parts_of_two_dtypes_are_an_error(make):
    with pytest.raises(RuntimeError, match="Expected object of scalar type Float"):
        tofuse.compile(lambda x, y: make(x, y) * 2)(torch.ones(3), torch.ones(3).double())


def test_layouts_and_lazy_conjugates():
    z, w = numbers(7, 5, grad=False).t(), numbers(5, 7, grad=False).conj()
    assert w.is_conj()
    assert_as_eager(lambda z, w: (z * w + 1, w * 2, w.real * 2, (z * w.t().t()).abs()), z, w)
    images = numbers(2, 3, 4, 5, grad=False).contiguous(memory_format=torch.channels_last)
    assert_as_eager(lambda z: (z * z * 2, (z + 1).abs()), images)


def test_special_values():
    whole = [0.0, -0.0, 1.0, math.inf, -math.inf, math.nan, 1e38, 1e-40]
    z = torch.tensor([complex(a, b) for a in whole for b in whole])
    x = torch.randn(len(z)).abs() + 1
    with torch.no_grad():
        assert_as_eager(lambda z, x: (-(z + x) * 1, (z * x) * 1, z.abs(), z.angle() * 1), z, x)
        assert_as_eager(lambda z, x: (z * z * 1, z.conj() * 1 + 0, z / 2 + 0, z / x * 1), z, x)


def test_a_rotary_embedding_is_one_kernel():
    q, k = (torch.randn(2, 64, 4, 32, requires_grad=True) for _ in range(2))
    report = tofuse.explain(rotate)(q, k, rotations(64, 16))
    assert len(report.kernels) == 2  # a forward, a backward
    views = {"aten.view_as_real.default", "aten.view_as_complex.default"}
    assert {c.name for c in report.library_calls} <= views
    assert report.peak_bytes <= report.eager_peak_bytes
    assert_as_eager(rotate, q, k, rotations(64, 16))
    assert_as_eager(rotate, q.bfloat16(), k.bfloat16(), rotations(64, 16), rtol=1e-2, atol=1e-2)


def test_views_alone_are_not_kernels():
    report = tofuse.explain(lambda z: (z.conj(), z.t(), z[1:], z.real))(numbers(4, 4, grad=False))
    assert not report.kernels


def test_a_single_operator_is_a_library_call():
    z = numbers(64, 64, grad=False)
    report = tofuse.explain(lambda z: z * z)(z)
    assert [c.name for c in report.library_calls] == ["aten.mul.Tensor"]
    fused = tofuse.explain(lambda z: (z * z + 1).exp())(z)
    assert len(fused.kernels) == 1


def test_claimed_calls_stay_complex():
    z = numbers(8, 8, grad=False)
    compiled = tofuse.compile(lambda z: (z * z + 1).abs(), executors=("aten",))
    torch.testing.assert_close(compiled(z), (z * z + 1).abs())


def test_conjugated_tangents():
    z = numbers(6, 4)
    compiled = tofuse.compile(lambda z: z * z + 1)
    tangent = numbers(6, 4, grad=False).conj()
    (expected,) = torch.autograd.grad(z * z + 1, z, tangent)
    for _ in range(2):
        torch.testing.assert_close(torch.autograd.grad(compiled(z), z, tangent)[0], expected)


def test_long_chains():
    def steps(z, w):
        for _ in range(300):
            z = z * w + 0.1j
        return z

    z, w = numbers(3, grad=False), torch.polar(torch.full((3,), 0.9), torch.randn(3))
    compiled = tofuse.compile(steps, capture="trace")
    torch.testing.assert_close(compiled(z, w), steps(z, w))


def test_symbolic_sizes():
    compiled = tofuse.compile(lambda x: torch.fft.rfft(x).abs().log1p(), dynamic=True)
    for n in (16, 33, 100):
        x = torch.randn(3, n)
        torch.testing.assert_close(compiled(x), torch.fft.rfft(x).abs().log1p())
    rotated_tensor = tofuse.compile(rotate, dynamic=True)
    for n in (5, 12):
        q, k, rotation = torch.randn(1, n, 2, 8), torch.randn(1, n, 2, 8), rotations(n, 4)
        torch.testing.assert_close(rotated_tensor(q, k, rotation), rotate(q, k, rotation))


def test_einsum_and_permute():
    z, w = numbers(3, 5, 7), numbers(3, 5, 7)
    assert_as_eager(lambda z, w: torch.einsum("abc,adc->abd", z * w, z.conj()).abs(), z, w)
    assert_as_eager(lambda z: (z.permute(2, 0, 1) * 2 + 1j).reshape(-1)[::3].abs(), z)


INF, NAN = math.inf, math.nan
SPECIAL = (INF, -INF, NAN, 0.0, -0.0, 1.0, -2.5, 3e38)
FUNCTIONS = (
    *(torch.exp, torch.log, torch.reciprocal, torch.sgn, torch.abs, torch.angle, torch.square),
    *(torch.sqrt, torch.rsqrt, torch.sin, torch.tanh, torch.acosh, torch.log1p, torch.sigmoid),
    *(torch.sinc, torch.neg, torch.conj_physical, lambda z: z**2, lambda z: z**3, lambda z: z**-1),
    *(lambda z: 1 / z, lambda z: (2 - 1j) / z, lambda z: z / 2.5, lambda z: z / (1 - 2j)),
    *(lambda z: z / 0, lambda z: z * 2, lambda z: z * (1 - 2j), lambda z: z - 1.5, lambda z: 1 - z),
    *(lambda z: z + (1 + 0j), lambda z: torch.add(z, z, alpha=2 - 1j), lambda z: z.real + z),
    *(lambda z: z.real * z, lambda z: z / z.real, lambda z: z.real / z, lambda z: z.mean(0, True)),
    *(lambda z: torch.polar(z.abs(), z.angle()), lambda z: z.sum(0, True)),
    *(lambda z: z * z.conj(), lambda z: z.prod(0, True)),
    *(lambda z: z / z.flip(0), lambda z: z * z.flip(0), lambda z: (z - z.flip(0)).abs()),
    *(lambda z: torch.where(z.real > 0, z, 1j), lambda z: torch.logaddexp(z, z.flip(0))),
)


def differences(got, expected, rtol, signs):
    """Return which numbers differ by more than rtol times their radius; nan must be nan.

    With `signs`, those of zero count.
    """
    if got.is_complex():
        got, expected = torch.view_as_real(got.resolve_conj()), torch.view_as_real(expected)
        radius = expected.abs().amax(-1, keepdim=True)
    else:
        radius = expected.abs()
    close = (got - expected).abs() <= rtol * radius.nan_to_num(0, 0)
    same_sign = (got.signbit() == expected.signbit()) | (not signs)
    same = torch.where(got == 0, (expected == 0) & same_sign, (got == expected) | close)
    return ~(same | (got.isnan() & expected.isnan()))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_infinities_zeros_and_nan_are_as_eager(dtype):
    """Or as eager's code for less than a vector, which differs in nan and in signs of zero.

    Each function has its own argument, so that gradients do not mix.
    """
    numbers = torch.tensor([complex(a, b) for a in SPECIAL for b in SPECIAL], dtype=dtype)
    pairs = numbers.reshape(2, 32, 1)
    rtol = 1e-5 if dtype is torch.complex64 else 1e-12

    def fn(*zs):
        return [f(z.clone()) for f, z in zip(FUNCTIONS, zs, strict=True)]

    def results_and_gradients(run, z):
        zs = [z.clone().requires_grad_() for _ in FUNCTIONS]
        results = run(*zs)
        weights = [torch.full_like(r, 1 - 0.5j if r.is_complex() else 1) for r in results]
        return (*(r.detach() for r in results), *torch.autograd.grad(results, zs, weights))

    vectors = pairs.repeat(1, 1, 16)
    short = zip(*[results_and_gradients(fn, z) for z in pairs.split(1, 1)], strict=True)
    found = [results_and_gradients(run, vectors) for run in (tofuse.compile(fn), fn)]
    found.append(tuple(torch.cat(rows, 1) for rows in short))
    wrong = {}
    for k, (got, *eager) in enumerate(zip(*found, strict=True)):
        different = [
            differences(got, e.resolve_conj().expand_as(got), rtol, k < len(FUNCTIONS))
            for e in eager
        ]
        both = different[0] & different[1]
        if both.any():
            where = tuple(both.nonzero()[0, : got.dim()])
            wrong[k] = (pairs[..., 0].t()[where[1]], got[where].item(), eager[0][where].item())
    assert not wrong


def test_a_view_of_the_same_type_keeps_the_numbers():
    z = torch.randn(3, 4, dtype=torch.complex64)
    function = lambda z: (z * 2).view(z.dtype) + torch.cat([z, z])[:3].view(z.dtype)  # noqa: E731
    torch.testing.assert_close(tofuse.compile(function)(z), function(z))


WRITES = {  # results that are read before an argument is overwritten
    "cat": lambda x, c: (torch.cat([x, c]), x.mul_(-1))[0],
    "sum": lambda x, c: (torch.complex(x, x) + c, x.mul_(-1))[0],
    "complex argument": lambda x, c: (c * 2 + x, c.mul_(1j), x.add_(1))[0],
    "conjugate": lambda x, c: (c.conj() + 0, torch.view_as_real(c).mul_(3.0))[0],
    "view of an argument": lambda x, c: (c[0].flip(()), c.view(-1), c.mul_(2))[0:2],
    "stacked": lambda x, c: (torch.view_as_complex(torch.stack([x, x], -1)) * c, x.zero_())[0],
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_pairs_are_computed_before_their_operands_are_overwritten(name, capture):
    def operands():
        return torch.tensor([1.0, 2, 3]), torch.tensor([5 + 1j, -2j, 0.5])

    ours, eagers = operands(), operands()
    got = tofuse.compile(WRITES[name], capture=capture)(*ours)
    torch.testing.assert_close((got, *ours), (WRITES[name](*eagers), *eagers))


DTYPES = ["bfloat16", "float16", "float32", "float64", "int64", "complex64", "complex128"]


@pytest.mark.parametrize("first", DTYPES)
@pytest.mark.parametrize("second", ["complex64", "complex128"])
def test_operands_are_promoted_before_a_formula(first, second):
    """A tensor of bfloat16 and a complex number are computed in complex64."""

    def program(x, z):
        return x * z, x + z, torch.sub(z, x, alpha=2), z / x, torch.where(z.real > 0, x, z), x == z

    for shapes in itertools.product([(3,), ()], repeat=2):
        x, z = (torch.randn(s, dtype=torch.complex128) * 3 + 4 for s in shapes)
        x = x.to(getattr(torch, first)) if first[0] == "c" else x.real.to(getattr(torch, first))
        z = z.to(getattr(torch, second))
        if x.dtype == torch.float16 and not z.dim():
            continue  # ComplexHalf
        got = tofuse.compile(program, capture="trace")(x, z)
        torch.testing.assert_close(got, program(x, z), rtol=2e-6, atol=1e-6)


LAZY_VIEWS = {
    "imaginary part of a conjugate": lambda z: z.conj().imag,
    "real part of a conjugate": lambda z: z.conj().real,
    "element of these": lambda z: z.conj().imag.reshape(-1)[:1],
    "negated part": lambda z: torch._neg_view(z.real),
    "twice negated part": lambda z: torch._neg_view(torch._neg_view(z.imag)),
    "negated imaginary part of a conjugate": lambda z: torch._neg_view(z.conj().imag),
}


@pytest.mark.parametrize("name", LAZY_VIEWS)
@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
def test_writes_through_lazily_negated_views(name, capture, shape):
    def program(z):
        part = LAZY_VIEWS[name](z)
        part.mul_(2)
        part.view_as(part).add_(1)
        return part + 1, torch.logsumexp(LAZY_VIEWS[name](z).reshape(-1), 0)

    z = torch.randn(shape, dtype=torch.complex64)
    ours, eagers = z.clone(), z.clone()
    got = tofuse.compile(program, capture=capture)(ours)
    torch.testing.assert_close((*got, ours), (*program(eagers), eagers))
