"""Index, factory, matrix and normalization ops against torch."""

import pytest
import torch
import torch.nn.functional as F

from tests.frontends.support import build_definition, check, run
from tofuse.errors import DefinitionError
from tofuse.nvfuser import DataType, FusionDefinition


def tensor(*shape, seed=0):
    torch.manual_seed(seed)
    return torch.randn(shape)


@pytest.mark.parametrize("symbolic", [True, False])
@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
def test_select_and_gather(symbolic, kind):
    x, rows = tensor(5, 4), torch.tensor([3, 0, 3], dtype=kind)
    places = torch.randint(0, 5, (3, 4), dtype=kind)
    one = torch.randint(0, 5, (1, 4), dtype=kind)
    check(
        lambda fd, x, rows, places, one: [
            fd.ops.index_select(x, rows, 0),
            fd.ops.gather(x, places, 0),
            fd.ops.take_along_axis(x, places, 0),
            fd.ops.take_along_axis(x, one, 0),
            fd.ops.select(x, 2, 1),
            fd.ops.mul(fd.ops.index_select(x, rows, 0), 2.0),
        ],
        lambda x, rows, places, one: [
            x.index_select(0, rows),
            x.gather(0, places.long()),
            x.gather(0, places.long()),
            x.gather(0, one.long()),
            x.select(1, 2),
            x.index_select(0, rows) * 2,
        ],
        [x, rows, places, one],
        static_sizes=not symbolic,
    )


def test_gather_with_a_smaller_index():
    x, places = tensor(5, 6), torch.randint(0, 5, (3, 4))
    for static in (True, False):
        check(
            lambda fd, x, i: fd.ops.gather(x, i, 0),
            lambda x, i: x.gather(0, i),
            [x, places],
            static_sizes=static,
        )


def test_scatter():
    x, places, new = tensor(5, 6), torch.randint(0, 5, (3, 6)), tensor(3, 6, seed=1)
    check(
        lambda fd, x, i, s: [fd.ops.scatter(x, i, s, 0), fd.ops.scatter(x, i, 2.5, 0)],
        lambda x, i, s: [x.scatter(0, i, s), x.scatter(0, i, 2.5)],
        [x, places, new],
    )


def test_scatter_of_a_number_that_is_an_input():
    half, index = torch.zeros(3, 3, dtype=torch.float16), torch.tensor([[0, 2, 1]])
    with FusionDefinition() as fd:
        x, i = fd.from_pytorch(half), fd.from_pytorch(index)
        real, whole, flag = (
            fd.define_scalar(d) for d in (DataType.Double, DataType.Int, DataType.Bool)
        )
        for source in (real, whole, flag, fd.ops.mul(real, 2.0), x.size(0)):
            fd.add_output(fd.ops.scatter(x, i, source, 0))
    for a, n, b in ((1.5, 2, True), (-0.1, -7, False)):
        numbers = (a, n, b, 2 * a, 3)
        wanted = [half.scatter(0, index, v) for v in numbers]
        torch.testing.assert_close(fd.execute([half, index, a, n, b]), wanted)
    assert fd.compilations == 1


def test_topk_and_argsort():
    x = tensor(4, 9)
    check(
        lambda fd, x: [
            *fd.ops.topk(x, 3, 1, True, True),
            *fd.ops.topk(x, 2, 0, False, True),
            fd.ops.argsort(x, 1),
            fd.ops.argsort(x, 0, True, True),
        ],
        lambda x: [
            *x.topk(3, 1, True, True),
            *x.topk(2, 0, False, True),
            x.argsort(1),
            x.argsort(dim=0, descending=True, stable=True),
        ],
        [x],
    )


def test_index_out_of_range_raises():
    x, i = tensor(5, 4), torch.tensor([7])
    fd = build_definition(lambda fd, x, i: fd.ops.index_select(x, i, 0), [x, i])
    with pytest.raises(IndexError):
        fd.execute([x, i])


def test_ranges_and_constants():
    check(
        lambda fd, x: [
            fd.ops.iota(7),
            fd.ops.iota(5, 2, 3),
            fd.ops.iota(4, 0.5, 0.25, DataType.Float),
            fd.ops.iota(3, 5, -1, DataType.Int32),
            fd.ops.iota(x.size(0), 1, 1),
            fd.ops.full([2, 3], 1.5, DataType.Half),
            fd.ops.full([x.size(1)], 7, DataType.Int),
            fd.ops.full([], True, DataType.Bool),
        ],
        lambda x: [
            torch.arange(7),
            torch.arange(2, 17, 3),
            torch.arange(4) * 0.25 + 0.5,
            torch.tensor([5, 4, 3], dtype=torch.int32),
            torch.arange(1, 6),
            torch.full((2, 3), 1.5, dtype=torch.float16),
            torch.full((4,), 7),
            torch.tensor(True),
        ],
        [tensor(5, 4)],
    )


def test_random_numbers_with_a_seed():
    def body(fd, x):
        shape = [x.size(0), 100]
        return [
            fd.ops.uniform(-1.0, 3.0, shape, rng_seed=7, rng_offset=1),
            fd.ops.uniform(-1.0, 3.0, shape, rng_seed=7, rng_offset=1, dtype=DataType.Double),
            fd.ops.uniform(-1.0, 3.0, shape, rng_seed=7, rng_offset=2),
            fd.ops.normal(2.0, 0.5, shape, rng_seed=7, rng_offset=1),
            fd.ops.normal(2.0, 0.5, shape, rng_seed=7, rng_offset=1, dtype=DataType.BFloat16),
            fd.ops.uniform(-1.0, 3.0, shape),
        ]

    x = tensor(300, 1)
    fd = build_definition(body, [x])
    flat, wide, other, bell, narrow, free = fd.execute([x])
    repeated = build_definition(body, [x]).execute([x])
    assert all(torch.equal(a, b) for a, b in zip(repeated[:5], fd.execute([x])[:5], strict=True))
    assert torch.equal(repeated[0], flat) and not torch.equal(flat, other)
    assert not torch.equal(repeated[5], free)
    assert wide.dtype == torch.float64 and narrow.dtype == torch.bfloat16
    for sample in (flat, wide, other, free):
        assert sample.min() >= -1 and sample.max() < 3 and abs(float(sample.mean()) - 1) < 0.05
    assert abs(float(bell.mean()) - 2) < 0.02 and abs(float(bell.std()) - 0.5) < 0.02
    torch.testing.assert_close(narrow, bell.bfloat16())


def test_seed_as_input():
    def body(fd, seed, offset):
        return fd.ops.uniform(0.0, 1.0, [64], rng_seed=seed, rng_offset=offset)

    fd = build_definition(body, [7, 1])
    fixed = build_definition(
        lambda fd: fd.ops.uniform(0.0, 1.0, [64], rng_seed=7, rng_offset=1), []
    )
    assert torch.equal(fd.execute([7, 1])[0], fixed.execute([])[0])
    assert not torch.equal(fd.execute([7, 1])[0], fd.execute([8, 1])[0])


@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 5)),
     ((2, 1, 3, 4), (6, 4, 5)), ((3, 4), (4, 1))],
)  # fmt: skip
def test_matmul(a, b):
    check(
        lambda fd, x, y: [fd.ops.matmul(x, y), fd.ops.add(fd.ops.matmul(x, y), 1.0)],
        lambda x, y: [x @ y, x @ y + 1],
        [tensor(*a), tensor(*b, seed=1)],
        rtol=1e-5,
        atol=1e-5,
    )


def test_matmul_keeps_half_precision():
    x, y = tensor(3, 4).bfloat16(), tensor(4, 5, seed=1).bfloat16()
    check(lambda fd, x, y: fd.ops.matmul(x, y), torch.matmul, [x, y])


def test_linear():
    x, w, bias = tensor(2, 3, 4), tensor(5, 4, seed=1), tensor(5, seed=2)
    check(
        lambda fd, x, w, b: [
            fd.ops.linear(x, w),
            fd.ops.linear(x, w, b),
            fd.ops.relu(fd.ops.linear(x, w, b)),
        ],
        lambda x, w, b: [F.linear(x, w), F.linear(x, w, b), F.linear(x, w, b).relu()],
        [x, w, bias],
        rtol=1e-5,
        atol=1e-5,
    )


def test_embedding():
    index, table = torch.tensor([[1, 0], [4, 4]]), tensor(5, 6)
    check(
        lambda fd, i, t: [fd.ops.embedding_fwd(i, t), fd.ops.embedding_fwd(i, t, None, 1.0)],
        lambda i, t: [F.embedding(i, t), F.embedding(i, t.clone(), max_norm=1.0)],
        [index, table],
    )


def test_limits_of_an_embedding_that_are_inputs():
    index, table = torch.tensor([1, 0, 4]), tensor(5, 6)
    with FusionDefinition() as fd:
        i, t = fd.from_pytorch(index), fd.from_pytorch(table)
        limit, order = (fd.define_scalar(None, DataType.Double) for _ in range(2))
        fd.add_output(fd.ops.embedding_fwd(i, t, max_norm=limit))
        fd.add_output(fd.ops.embedding_fwd(i, t, None, limit, order))
    for limit_now, order_now in ((1.0, 2.0), (0.5, 1.0), (3.0, float("inf")), (1e9, 3.0)):
        wanted = [
            F.embedding(index, table.clone(), max_norm=limit_now, norm_type=p)
            for p in (2.0, order_now)
        ]
        torch.testing.assert_close(fd.execute([index, table, limit_now, order_now]), wanted)
    assert fd.compilations == 1


def test_batch_norm():
    x, weight, bias = tensor(8, 3, 5), tensor(3, seed=1), tensor(3, seed=2)
    mean, variance = torch.zeros(3), torch.ones(3)
    for training in (True, False):
        ours, theirs = ([mean.clone(), variance.clone()] for _ in range(2))
        fd = build_definition(
            lambda fd, x, w, b, m, v, t=training: fd.ops.batch_norm(x, w, b, m, v, 0.1, 1e-5, t),
            [x, weight, bias, *ours],
        )
        out, centre, inverse = fd.execute([x, weight, bias, *ours])
        wanted = F.batch_norm(x, theirs[0], theirs[1], weight, bias, training, 0.1, 1e-5)
        torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        assert centre.shape == inverse.shape == (3,)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda fd, x, i: fd.ops.index_select(x, x, 0), "index_select: the index must .*not Float"),
        (lambda fd, x, i: fd.ops.gather(x, i, 0), "gather: the index and .*not 1 and 2"),
        (lambda fd, x, i: fd.ops.select(x, 9, 0), "select: the index 9 is out of range"),
        (lambda fd, x, i: fd.ops.topk(x, 9, 1), "topk: k is 9"),
        (lambda fd, x, i: fd.ops.iota(3, 0, 0), "iota: step must not be 0"),
        (lambda fd, x, i: fd.ops.matmul(x, i), "matmul: operands of type"),
        (lambda fd, x, i: fd.ops.matmul(x, x), "matmul: .* 4 and 5 differ"),
        (lambda fd, x, i: fd.ops.linear(x, x, i), "linear: the bias must be Float"),
        (
            lambda fd, x, i: fd.ops.uniform(0.0, 1.0, [3], rng_seed=1),
            "uniform: rng_seed and rng_offset must be given together",
        ),
        (lambda fd, x, i: fd.ops.sdpfa_fwd(x, x, x), "sdpfa_fwd: query, key and value"),
    ],
)
def test_wrong_arguments_raise(body, message):
    with pytest.raises(DefinitionError, match=message):
        build_definition(body, [tensor(5, 4), torch.tensor([1])], static_sizes=True)


def test_definition_without_inputs():
    outputs = run(lambda fd: fd.ops.add(fd.ops.iota(4, dtype=DataType.Float), 1.0), [])
    torch.testing.assert_close(outputs, [torch.arange(4.0) + 1])
