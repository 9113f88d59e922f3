"""Stride orders of results are those of PyTorch's iterator, for operands of any layouts."""

import itertools
import random

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tofuse.capture.decomp.iterator_order import iterator_order
from tofuse.ir.dims import stride_order

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def operands():
    """Yield tensors of three dimensions, of 1 and of more elements, in all orders of memory."""
    for shape in ((2, 1, 5), (1, 3, 5), (2, 3, 1), (2, 3, 5), (1, 1, 5), (2, 1, 1)):
        for order in itertools.permutations(range(3)):
            x = torch.randn([shape[d] for d in order])
            yield x.permute([order.index(d) for d in range(3)])
    yield torch.randn(3, 1)
    yield torch.randn(5, 3).t()
    yield torch.randn(2, 1, 1).expand(2, 3, 5)


def pairs(count):
    every = list(itertools.product(operands(), operands()))
    return random.Random(0).sample(every, count)


def test_orders_are_the_iterators():
    for x, y in pairs(400):
        result = torch.copysign(x, y)  # it calls the iterator, and nothing else
        order = iterator_order(result.shape, [(t.shape, t.stride()) for t in (x, y)])
        large = [d for d in order if result.shape[d] > 1]
        eager = [d for d in stride_order(result.stride()) if result.shape[d] > 1]
        assert large == eager, (x.shape, x.stride(), y.shape, y.stride())


def scaled_sums(x, y):
    return torch.add(x, y, alpha=2), torch.sub(y, x, alpha=0.5), torch.rsub(x, y), torch.rsub(y, x)


def others(x, y):
    a, b = torch.broadcast_tensors(x, y)
    return (
        torch.copysign(y, x),
        torch.logical_and(x, y),
        torch.div(x, y, rounding_mode="floor"),
        torch.xlogy(x, y),
        F.huber_loss(a, b, reduction="none"),
        F.huber_loss(a, b),
    )


@pytest.mark.parametrize("seed", range(20))
def test_results_have_eagers_strides(seed):
    for x, y in pairs(400)[seed::100]:
        for program in (scaled_sums, others):
            got = tofuse.compile(program, capture="trace")(x, y)
            for a, b in zip(got, program(x, y), strict=True):
                strides = zip(a.shape, a.stride(), b.stride(), strict=True)
                assert all(s == t for n, s, t in strides if n > 1), (x.stride(), y.stride())
                torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.parametrize("options", [{}, {"executors": ("aten",)}], ids=str)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32])
def test_angles_of_complex_numbers_are_row_major(dtype, options):
    x = torch.randn((2, 5, 3), dtype=dtype).permute(2, 1, 0)
    got = tofuse.compile(lambda x: x.angle(), **options)(x)
    torch.testing.assert_close(got, x.angle())
    assert got.stride() == x.angle().stride()


@pytest.mark.parametrize("seed", range(4))
def test_indexing_by_tensors_has_eagers_strides(seed):
    """The indices have any layouts; sizes of 1 decide between dimensions, too."""
    rng = random.Random(seed)

    def permuted(make, shape):
        order = rng.sample(range(len(shape)), len(shape))
        return make([shape[d] for d in order]).permute([order.index(d) for d in range(len(shape))])

    for _ in range(25):
        x = permuted(torch.randn, [rng.choice((1, 2, 3)) for _ in range(rng.randint(1, 4))])
        shape = [rng.choice((1, 2, 2)) for _ in range(rng.randint(1, 3))]
        indexed = sorted(rng.sample(range(x.dim()), rng.randint(1, x.dim())))
        indices = [
            permuted(lambda sizes, n=x.shape[d]: torch.randint(0, n, sizes), shape) for d in indexed
        ]

        def program(x, indices, indexed=indexed):
            every = [slice(None)] * x.dim()
            for d, index in zip(indexed, indices, strict=True):
                every[d] = index
            return x[tuple(every)]

        got, expected = tofuse.compile(program, capture="trace")(x, indices), program(x, indices)
        strides = zip(got.shape, got.stride(), expected.stride(), strict=True)
        assert all(s == t for n, s, t in strides if n > 1), (x.stride(), indexed)
        assert torch.equal(got, expected)


def elementwise(x, y):
    return x * y, torch.add(x, y), torch.maximum(x, y), torch.addcmul(x, y, x), x < y, x / y


UNIT_DIMS = (  # shapes and strides of two operands, of which the second gets a dimension
    (((1, 1, 3), (1, 2, 1)), ((3, 1), (1, 3))),
    (((1, 1, 2), (1, 2, 1)), ((3, 2), (2, 1))),
    (((1, 2, 1), (1, 1, 1)), ((2, 2), (1, 2))),
    (((1, 3, 1), (1, 1, 3)), ((3, 3), (1, 3))),
    (((1, 2, 1), (1, 1, 3)), ((2, 3), (1, 2))),
)


@pytest.mark.parametrize("layouts", UNIT_DIMS, ids=str)
def test_operands_of_lower_rank_have_eagers_strides(layouts):
    """Eager's iterator and `expand` give other strides to leading dimensions of size 1."""
    x, y = (torch.randn(9).as_strided(*layout) for layout in layouts)
    for operands in ((x, y), (y, x)):
        got = tofuse.compile(elementwise, capture="trace")(*operands)
        for a, b in zip(got, elementwise(*operands), strict=True):
            strides = zip(a.shape, a.stride(), b.stride(), strict=True)
            assert all(s == t for n, s, t in strides if n > 1)
            torch.testing.assert_close(a, b)
