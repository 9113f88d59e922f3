"""Values combined by index: eager's results and gradients, in one kernel with what makes them."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
# shape of the values, dimension, elements of that dimension in the result
SHAPES = (
    ((40,), 0, 5),
    ((1,), 0, 1),
    ((300,), 0, 150),
    ((33, 3), 0, 4),
    ((37, 64), 0, 7),
    ((64, 37), 1, 7),
    ((9, 100), 0, 2),
    ((5, 20, 17), 1, 3),
    ((4, 3, 30, 2), 2, 8),
)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int8, torch.uint8)
REDUCTIONS = ("sum", "prod", "amax", "amin", "mean")


def compare(f, *args):
    """Compare with eager; half precision with float64, as eager rounds every sum."""
    expected, got = f(*args), tofuse.compile(f, capture="trace")(*args)
    assert got.stride() == expected.stride()
    assert got.dtype == expected.dtype
    if expected.dtype in (torch.bfloat16, torch.float16):
        expected = f(*(x.double() if x.is_floating_point() else x for x in args))
        torch.testing.assert_close(got.double(), expected, equal_nan=True, rtol=0.01, atol=0.01)
        return
    torch.testing.assert_close(got, expected, equal_nan=True)


def assert_one_kernel_scatters(f, *args, kernels=None):
    """Check that one kernel reads the values; another may count those of each element."""
    report = tofuse.explain(f)(*args)
    assert not report.library_calls
    assert sum("scatter" in k.loops and "in f32" in k.loops for k in report.kernels) == 1
    assert kernels in (None, len(report.kernels))


def random(shape, dtype):
    whole = torch.randint(1, 4, shape)
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else whole.to(dtype)


def arguments(case, dtype):
    """Return values, the index of each line, the index of each value, and a start."""
    shape, dim, count = case
    lines = torch.randint(count, shape[dim : dim + 1])
    start = random((*shape[:dim], count, *shape[dim + 1 :]), dtype)
    return random(shape, dtype), lines, torch.randint(count, shape), start


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_sums_are_as_eager(dtype):
    for case in SHAPES:
        dim = case[1]
        x, lines, index, start = arguments(case, dtype)
        for f, i in (
            (lambda x, i, s, d: s.index_add(d, i, x), lines),
            (lambda x, i, s, d: s.index_add(d, i, x * 2, alpha=3), lines.to(torch.int32)),
            (lambda x, i, s, d: torch.zeros_like(s).index_add(d, i, x), lines),
            (lambda x, i, s, d: s.scatter_add(d, i, x + 1) * 2, index),
            (lambda x, i, s, d: torch.ones_like(s).scatter_add_(d, i, x), index),
        ):
            compare(lambda x, i, s, f=f, d=dim: f(x, i, s, d), x, i, start)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_reductions_are_as_eager(reduce, include_self):
    for case in SHAPES:
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int32):
            if reduce == "mean" and not dtype.is_floating_point:
                continue
            x, _, index, start = arguments(case, dtype)
            compare(
                lambda x, i, s, dim=case[1]: s.scatter_reduce(
                    dim, i, x, reduce, include_self=include_self
                ),
                *(x, index, start),
            )


def test_equal_values_and_indices():
    """Neither depends on the dimension that is combined, but each value counts."""
    zeros = torch.zeros(40, dtype=torch.int64)
    compare(lambda x, i: x.index_add(0, i * 0, x[:1].expand(40, 3)), torch.randn(2, 3), zeros)
    compare(lambda x, i: x.index_add(0, torch.zeros_like(i), torch.ones(40)), torch.randn(9), zeros)
    compare(
        lambda x, i: x.scatter_add(0, i.expand(5, 40).T, torch.ones(40, 5)), torch.ones(3, 5), zeros
    )


def test_special_numbers_and_signs_of_zero():
    x = torch.tensor([0.0, -0.0, math.nan, 1.0, math.inf, -math.inf, -0.0, -0.0]).repeat(4)
    index, start = torch.arange(8).repeat(4), torch.full((16,), -0.0)
    for reduce in REDUCTIONS:
        for include_self in (True, False):
            f = lambda x, i, s: s.scatter_reduce(0, i, x, reduce, include_self=include_self)  # noqa: B023, E731
            got, expected = tofuse.compile(f, capture="trace")(x, index, start), f(x, index, start)
            torch.testing.assert_close(got, expected, equal_nan=True, rtol=0, atol=0)
            if reduce in ("sum", "prod") and include_self:
                assert torch.equal(got.signbit(), expected.signbit())


def test_every_form_is_a_kernel():
    x, lines, index, start = arguments(((64, 40), 0, 9), torch.float32)
    for reduce in REDUCTIONS:
        f = lambda x, i, s: s.scatter_reduce(0, i, x, reduce, include_self=False)  # noqa: B023, E731
        assert_one_kernel_scatters(f, x, index, start)
    assert_one_kernel_scatters(lambda x, i, s: s.index_add(0, i, x), x, lines, start)
    assert_one_kernel_scatters(lambda x, i, s: s.scatter_add(0, i, x), x, index, start)
    put = lambda x, i, s: s.index_put((i,), x.exp(), accumulate=True)  # noqa: E731
    assert_one_kernel_scatters(put, x, lines, start)


def test_assignments_that_accumulate():
    x, index, y = torch.randn(30, 6, 8), torch.randint(-6, 6, (4, 5)), torch.randn(30, 4, 5, 8)

    def f(x, index, y):
        return torch.ops.aten.index_put(x, [None, index], y * 2, True)

    compare(f, x, index, y)
    compare(lambda x, i: x.index_put((i,), torch.ones(()), accumulate=True), x, index[0])


def test_a_mask_and_other_types_of_index_are_no_positions():
    mask = torch.tensor([[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]], dtype=torch.uint8)
    one = torch.tensor(1.0)
    put = torch.ops.aten.index_put
    compiled = tofuse.compile(lambda x, m: put(x, [m], one, True), capture="trace")
    x = torch.zeros(3, 4)
    torch.testing.assert_close(compiled(x, mask), put(x, [mask], one, True))


def test_products_with_a_start_do_not_overflow():
    x, index = torch.tensor([1e25, 1e25, 1e30, 1e30]), torch.tensor([0, 0, 1, 1])
    for start in (torch.tensor([1e-30, 0.0]), torch.full((2,), 1e-30)):
        compare(lambda x, i, s: s.scatter_reduce(0, i, x, "prod"), x, index, start)


def test_an_empty_result():
    args = torch.randn(100, 16), torch.randint(10, (100,)), torch.zeros(0, 16)
    assert tofuse.compile(lambda x, i, s: s.index_add(0, i, x))(*args).shape == (0, 16)


def test_sizes_that_change():
    def f(x: Tensor, index: Tensor, start: Tensor) -> Tensor:
        return start.index_add(0, index, x.exp()) * 2

    compiled = tofuse.compile(f, dynamic=True)
    for rows, columns, groups in ((50, 7, 3), (9, 70, 4), (33, 2, 30), (400, 33, 5)):
        args = (
            torch.randn(rows, columns),
            torch.randint(groups, (rows,)),
            torch.randn(groups, columns),
        )
        torch.testing.assert_close(compiled(*args), f(*args))


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0)])
def test_no_values(shape):
    compare(
        lambda x, i, s: s.index_add(0, i, x),
        *(torch.randn(shape), torch.randint(3, shape[:1]), torch.randn(3, *shape[1:])),
    )


def test_an_index_out_of_range_is_an_error():
    x, start = torch.randn(40, 16), torch.zeros(4, 16)
    compiled = tofuse.compile(lambda x, i: start.index_add(0, i, x), capture="trace")
    for wrong in (4, -1, 1 << 40):
        index = torch.zeros(40, dtype=torch.int64)
        index[17] = wrong
        with pytest.raises(IndexError):
            compiled(x, index)
    torch.testing.assert_close(compiled(x, index * 0), start.index_add(0, index * 0, x))


def test_tensors_that_are_not_contiguous():
    x, index = torch.randn(40, 6, 30), torch.randint(5, (40,))
    for view in (x.transpose(1, 2), x[:, ::2, 3:], x[:, 1], x[:, :1, :1].expand(40, 4, 8)):
        compare(lambda x, i: x.new_zeros(5, *x.shape[1:]).index_add(0, i, x), view, index)
        start = torch.randn(*view.shape[:0:-1], 5).permute(-1, *range(view.dim() - 2, -1, -1))
        compare(lambda x, i, s: s.index_add(0, i, x), view, index, start)


GROUPS = 7


def new(x: Tensor, rows: int = GROUPS) -> Tensor:
    return x.new_zeros(rows, x.shape[1])


def added_twice_in_place(x: Tensor, k: Tensor, z: Tensor) -> Tensor:
    z.index_add_(0, k, x)
    z[:, :8].index_add_(0, k, x[:, 8:])
    z[k] += x
    return z.sum(0)


BESIDE_OTHERS = {
    "in place": added_twice_in_place,
    "a concat": lambda x, k, z: new(x).index_add(0, torch.cat([k, k]), torch.cat([x, x * 2])),
    "shifted": lambda x, k, z: new(x).index_add(0, k.roll(3), F.pad(x[1:] * 2, (0, 0, 1, 0))),
    "a softmax": lambda x, k, z: new(x).index_add(0, k, x.softmax(0) + x.softmax(1)),
    "a scan": lambda x, k, z: new(x).index_add(0, k, x.cumsum(0)),
    "products": lambda x, k, z: new(x).index_add(0, k, x @ x.T @ x),
    "sums": lambda x, k, z: (new(x).index_add(0, k, x * 2), (x * 2).sum(0), (x * 2).sum(1)),
    "two dimensions": lambda x, k, z: (
        new(x).index_add(0, k, x),
        x.new_zeros(len(x), 3).index_add(1, torch.arange(16) % 3, x),
    ),
    "two sizes": lambda x, k, z: (new(x).index_add(0, k, x), new(x, 20).index_add(0, k + 3, x)),
    "read by its index": lambda x, k, z: new(x).index_add(0, k, x)[k] * x,
    "a scatter of a scatter": lambda x, k, z: new(x, 3).index_add(
        0, torch.arange(GROUPS) % 3, new(x).index_add(0, k, x)
    ),
    "computed index": lambda x, k, z: new(x).index_add(0, (x[:, 0].abs() * 2).long() % GROUPS, x),
    "vmap": lambda x, k, z: torch.vmap(lambda a: new(x).index_add(0, k, a))(torch.stack([x, -x])),
    "gradient of a function": lambda x, k, z: torch.func.grad(
        lambda a: (new(x).index_add(0, k, a.sin()) ** 2).sum()
    )(x),
}


@pytest.mark.broad(1)
@pytest.mark.parametrize("name", BESIDE_OTHERS)
def test_beside_other_operations(name):
    args = torch.randn(100, 16), torch.randint(GROUPS, (100,)), torch.randn(GROUPS, 16)
    copies = [x.clone() for x in args]
    expected = BESIDE_OTHERS[name](*args)
    got = tofuse.compile(BESIDE_OTHERS[name])(*copies)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(copies, list(args), rtol=1e-4, atol=1e-4)  # written alike


def group_statistics(x: Tensor, keys: Tensor, groups: int) -> tuple[Tensor, ...]:
    index, zero = keys[:, None].expand_as(x), x.new_zeros(groups, x.shape[1])
    mean = zero.scatter_reduce(0, index, x, "mean", include_self=False)
    largest = zero.scatter_reduce(0, index, x, "amax", include_self=False)
    return mean, largest, zero.index_add(0, keys, x * x), zero.index_add(0, keys, x.sigmoid())


def test_statistics_of_one_grouping_are_one_kernel():
    x, keys = torch.randn(5000, 48), torch.randint(70, (5000,))
    assert_one_kernel_scatters(group_statistics, x, keys, 70)
    got = tofuse.compile(group_statistics)(x, keys, 70)
    torch.testing.assert_close(got, group_statistics(x, keys, 70), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [1, 3, 64, 200])
def test_the_same_bits_for_any_number_of_threads(columns):
    x, keys = torch.randn(20_000, columns), torch.randint(300, (20_000,))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            torch.compiler.reset()
            found.append(tofuse.compile(group_statistics)(x, keys, 300))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_messages_are_not_stored():
    """A layer of a graph network gathers, computes and adds up each message in one kernel."""

    def layer(h: Tensor, source: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        return torch.zeros_like(h).index_add(0, target, h[source] * weight[:, None])

    h, weight = torch.randn(500, 64), torch.randn(8000)
    source, target = torch.randint(500, (2, 8000))
    assert_one_kernel_scatters(layer, h, source, target, weight, kernels=1)
    compiled = tofuse.compile(layer)
    got, expected = (f(h, source, target, weight) for f in (compiled, layer))
    torch.testing.assert_close(got, expected)


def test_gradients():
    def loss(x: Tensor, w: Tensor, keys: Tensor) -> Tensor:
        index, zero = keys[:, None].expand_as(x), x.new_zeros(9, x.shape[1])
        total = zero.index_add(0, keys, x.sin() * w)
        largest = zero.scatter_reduce(0, index, x * w, "amax", include_self=False)
        mean = zero.scatter_reduce(0, index, x, "mean", include_self=False)
        return (total * largest + mean.exp()).sum()

    x, keys = torch.randn(60, 5, dtype=torch.float64, requires_grad=True), torch.randint(9, (60,))
    w = torch.randn(60, 1, dtype=torch.float64, requires_grad=True)
    expected = torch.autograd.grad(loss(x, w, keys), (x, w))
    got = torch.autograd.grad(tofuse.compile(loss)(x, w, keys), (x, w))
    torch.testing.assert_close(got, expected)


def test_few_values_are_left_to_pytorch():
    """Its operator keeps the start, in place if it can; a kernel would copy all of it."""
    args = torch.randn(3, 8), torch.randint(1000, (3,)), torch.randn(1000, 8)
    report = tofuse.explain(lambda x, i, s: s.index_add(0, i, x))(*args)
    assert not report.kernels
