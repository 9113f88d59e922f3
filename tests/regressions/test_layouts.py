"""Shapes, types and strides that need special loops."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def assert_matches_eager(f, *args, tolerance=1e-4):
    got = tofuse.compile(f, capture="trace")(*args)
    torch.testing.assert_close(got, f(*args), rtol=tolerance, atol=tolerance)


def batch_norm(x):
    return (x - x.mean(0)) * torch.rsqrt(x.float().var(0, unbiased=False) + 1e-3).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(9973, 257), (20011, 33), (3001, 2047), (5000, 1), (1, 300)])
def test_rescanned_columns(shape, dtype):
    rows, columns = shape
    tolerance = 5e-2 if dtype is torch.bfloat16 else 1e-4
    wide, transposed = torch.randn(rows, 2 * columns), torch.randn(columns, rows)
    for x in (torch.randn(shape), transposed.t(), wide[:, ::2]):
        assert_matches_eager(batch_norm, x.to(dtype), tolerance=tolerance)
        assert_matches_eager(lambda x: x.softmax(0), x.to(dtype), tolerance=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("shape", [(2, 13, 17), (3, 31, 1), (4, 1, 64), (8, 7, 9), (3, 0, 5)])
def test_channels_first_and_last(shape, dtype):
    channels, height, width = shape
    x = (torch.rand(2, *shape) * 200).to(dtype)
    assert_matches_eager(lambda x: x.permute(0, 2, 3, 1).contiguous(), x)
    y = (torch.rand(2, height, width, channels) * 200).to(dtype)
    assert_matches_eager(lambda x, y: y.permute(0, 3, 1, 2).contiguous() + x * 2, x, y)


@pytest.mark.parametrize("shape", [(3, 37, 101), (16, 1, 9), (1, 50, 64), (9, 40, 0)])
def test_expensive_values_shared_by_rows(shape):
    f = torch.randn(shape[1:])
    assert_matches_eager(
        lambda q, f: q * torch.cos(f) + q.flip(-1) * torch.sin(f).erf(), torch.randn(shape), f
    )
    assert_matches_eager(
        lambda q, f: (q * f.cos()).softmax(-1) * f.exp().sum(-1, True), torch.randn(shape), f
    )


@pytest.mark.parametrize("shape", [(3001, 1001), (1501, 2999)])
def test_large_results_with_odd_row_length(shape):
    assert_matches_eager(lambda x: torch.cat([x.tanh(), x[:, :13].exp()], 1), torch.randn(shape))


@pytest.mark.parametrize("dynamic", [False, True])
def test_operator_with_output_in_operand_layout(dynamic):
    def f(x, w):
        return F.pad(x * w[:, None, None], (1, 1, 1, 1), mode="reflect") * 3

    x = torch.randn(3, 4, 12, 12).to(memory_format=torch.channels_last)
    w, grad_output = torch.rand(4, requires_grad=True), torch.randn(3, 4, 14, 14)
    ours = torch.autograd.grad(tofuse.compile(f, dynamic=dynamic)(x, w), w, grad_output)
    torch.testing.assert_close(ours, torch.autograd.grad(f(x, w), w, grad_output))


def written_columns(x):
    copy = x.clone()
    copy.t()[::2] = x.t()[::2] * 3
    return copy.t()


IMAGES = torch.randn(2, 8, 4, 6)
REORDERED = {
    "roll": lambda x: (x * 2).roll(1, 2),
    "rolls": lambda x: x.roll((1, -9), (2, 1)),
    "roll of all": lambda x: x.roll(5),
    "roll by zero": lambda x: x.roll(4, 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x * 2, 2),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2) + 1,
    "view of a written tensor": lambda x: written_columns(x[0, 0]),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", REORDERED)
def test_result_strides_match_eager(name, layout):
    x = IMAGES.contiguous(memory_format=layout).requires_grad_()
    ours, eager = tofuse.compile(REORDERED[name])(x), REORDERED[name](x)
    torch.testing.assert_close(ours, eager, check_stride=True)
    grad_output = torch.randn_like(eager)
    (got,), (expected,) = (torch.autograd.grad(y, x, grad_output) for y in (ours, eager))
    torch.testing.assert_close(got, expected)


BY_OPERANDS = {
    name: getattr(torch, name)
    for name in (
        *("add", "atan2", "copysign", "eq", "float_power", "floor_divide", "fmax", "fmin", "fmod"),
        *("gt", "heaviside", "hypot", "igamma", "ldexp", "logaddexp", "logaddexp2", "logical_and"),
        *("logical_or", "logical_xor", "maximum", "mul", "nextafter", "pow", "remainder", "rsub"),
        *("sub", "true_divide", "xlogy"),
    )
} | {
    "truncated division": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "xlog1py": torch.special.xlog1py,
    "zeta": torch.special.zeta,
    "where": lambda x, y: torch.where(x > y, x, y),
    "power of a number": lambda x, y: torch.pow(2.0, y) + torch.pow(x, 2.0),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "addcmul": lambda x, y: torch.addcmul(x, y, x),
}


@pytest.mark.parametrize("name", BY_OPERANDS)
def test_result_strides_by_the_operands(name):
    """The first operand decides; torch's own prediction is another one for some of these."""
    operands = {
        "full": torch.rand(4, 3, 5) + 1,
        "rotated": torch.rand(3, 5, 4).permute(2, 0, 1) + 1,
        "rows": torch.rand(3, 5) + 1,
        "columns": torch.rand(5, 3).t() + 1,
        "column": torch.rand(4, 1, 5) + 1,
        "number": torch.tensor(2.5),
    }
    fn, pairs = BY_OPERANDS[name], list(itertools.permutations(range(len(operands)), 2))

    def program(*xs):
        return [fn(xs[j], xs[k]) for j, k in pairs]

    expected, got = (f(*operands.values()) for f in (program, tofuse.compile(program)))
    torch.testing.assert_close(got, expected, check_stride=True)


IN_LIBRARY_LAYOUT = {
    "batch norm": lambda x: torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)[0],
    "log sigmoid": F.logsigmoid,
    "isin": lambda x: torch.isin(x, x[:2]),
    "isin of a number": lambda x: torch.isin(x, 0.5),
    "nll_loss": lambda x: F.nll_loss(x, (x[:, 0] > 0).long(), reduction="none"),
    "gradient of mse_loss": lambda x: torch.ops.aten.mse_loss_backward(x, x, x * 2, 0),
    "gradient of smooth_l1_loss": lambda x: torch.ops.aten.smooth_l1_loss_backward(x, x, x, 0, 1.0),
}


@pytest.mark.parametrize("name", IN_LIBRARY_LAYOUT)
def test_result_strides_by_the_library(name):
    """Row-major or channels-last, whatever the strides of the operands are."""
    fn, x = IN_LIBRARY_LAYOUT[name], torch.randn(2, 3, 4, 5)
    rotated = torch.randn(3, 4, 5, 2).permute(3, 0, 1, 2)
    for y in (x, rotated, x.contiguous(memory_format=torch.channels_last), x[:, :, 1:, ::2]):
        torch.testing.assert_close(tofuse.compile(fn)(y), fn(y), check_stride=True)


def test_column_of_stack_keeps_strides():
    def last(a, b):
        return torch.stack([a * 2, a + b, b.exp()], 1)[:, -1]

    a, b = torch.randn(9), torch.randn(9)
    torch.testing.assert_close(tofuse.compile(last)(a, b), last(a, b), check_stride=True)


COPIED = {
    "repeat": lambda x: (x + 1).repeat(2, 1),
    "expand": lambda x: (x + 1).expand(2, 6, 8).reshape(12, 8),
    "flip": lambda x: (x * 2).flip(0),
    "negative pad": lambda x: F.pad(-x, (-1, -1)),
    "transpose": lambda x: (x * 2).t().reshape(8, 6),
}


@pytest.mark.parametrize("fn", COPIED.values(), ids=COPIED)
@pytest.mark.parametrize("grad", [False, True])
def test_views_of_a_copy_share_its_storage(fn, grad):
    """A copy of some elements, or in another order, is one tensor to the caller."""
    x = torch.randn(6, 8, requires_grad=grad)
    for views in (lambda y: (y, y[1:3]), lambda y: (y[::2],), lambda y: (y[1:], y.t())):
        found = tofuse.compile(lambda x, views=views: views(fn(x)))(x)
        torch.testing.assert_close(found, views(fn(x)), check_stride=True)
        assert len({t.untyped_storage().data_ptr() for t in found}) == 1


def channels_last(*shape):
    return torch.rand(shape).contiguous(memory_format=torch.channels_last)


UNPREDICTED = {  # torch predicts other strides than its kernels return
    "max_unpool2d": lambda x: F.max_unpool2d(x, (x * 9).long(), (3, 3), (2, 2), (1, 1)),
    "max_unpool2d of a row": lambda x: F.max_unpool2d(
        x[:, :, :1], (x[:, :, :1] * 9).long(), (3, 3)
    ),
    "angle": lambda x: torch.angle(torch.complex(x, 1 - x)),
    "angle of a part": lambda x: torch.angle(torch.complex(x, x)[..., ::2]),
}


@pytest.mark.parametrize("name", UNPREDICTED)
@pytest.mark.parametrize("make", [torch.rand, channels_last])
def test_results_that_torch_predicts_in_another_layout(name, make):
    x = make(2, 3, 4, 5)
    expected = UNPREDICTED[name](x)
    got = tofuse.compile(UNPREDICTED[name])(x)
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got, expected)


def rotations(x):
    orders = itertools.permutations(range(x.dim()))
    return [x.permute(p).contiguous().permute([p.index(d) for d in range(x.dim())]) for p in orders]


def test_strides_of_indexed_tensors():
    """The source's strides and the indices' decide; torch predicts by the source's alone."""
    row, table = torch.randint(0, 3, (6,)), torch.randint(0, 3, (2, 6))
    columns, number = torch.randint(0, 3, (6, 2)).t(), torch.tensor(2)
    alone = [(row,), (table,), (columns,), (number,)]
    pairs = [(row, columns), (columns, columns), (table, row), (number, table)]
    places = [
        dict(zip(dims, chosen, strict=True))
        for count, choices in ((1, alone), (2, pairs), (3, [(table, columns, row)]))
        for dims in itertools.combinations(range(3), count)
        for chosen in choices
    ]

    def program(*sources):
        keys = [tuple(p.get(d, slice(None)) for d in range(3)) for p in places]
        return [x[key] for x in sources for key in keys]

    sources = rotations(torch.randn(3, 4, 5))
    got, expected = tofuse.compile(program)(*sources), program(*sources)
    torch.testing.assert_close(got, expected, rtol=0, atol=0, check_stride=True)
