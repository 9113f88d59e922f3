"""Invalid arguments of fd.ops raise one DefinitionError; nothing else is wrong or fails later."""

import random
from functools import partial

import pytest
import torch

from tofuse.errors import DefinitionError
from tofuse.frontends.definition import parameters
from tofuse.nvfuser import DataType, FusionDefinition

OPS = """
    reshape view permute broadcast broadcast_in_dim expand squeeze slice pad cat size shape at
    stride_order triu index_select select gather take_along_axis scatter topk argsort sum prod max
    min var var_mean welford cumsum cumprod cummin cummax iota full uniform normal rand_like
    matmul linear embedding_fwd sdpfa_fwd sdpfa_bwd batch_norm where clamp lerp addcmul complex
"""


def other_axis(rng, rank):
    """Return a dimension that a tensor of this rank does not have."""
    return rng.choice((rank, rank + 3, -rank - 1, 0.5, None))


def changed(rng, shape, by):
    """Return the shape with one size changed by a random one of `by`."""
    d = rng.randrange(len(shape))
    return [e + rng.choice(by) if k == d else e for k, e in enumerate(shape)]


def bad_slice(rng, f, x, shape):
    starts = [rng.randint(0, e) for e in shape]
    ends = [rng.randint(s, e + 2) for s, e in zip(starts, shape, strict=True)]
    strides = [1] * len(shape)
    d = rng.randrange(len(shape))
    match rng.randrange(5):
        case 0:
            starts[d] = -rng.randint(1, 9)
        case 1:
            starts[d], ends[d] = ends[d] + 1, rng.randint(-3, ends[d])
        case 2:
            strides[d] = rng.choice((-1, 0, 2, 3))
        case 3:
            rng.choice((starts, ends, strides)).pop()
        case 4:
            rng.choice((starts, ends))[d] = rng.choice((0.5, None, "0"))
    return f.slice(x, starts, ends, strides)


def bad_pad(rng, f, x, shape):
    widths = [0] * rng.choice((1, 3, 2 * len(shape) + 2))
    crop = [-shape[-1] - 1, rng.randint(0, 9)]
    bad = rng.choice((widths, rng.sample(crop, 2), [0.5, 1]))
    return f.pad(*rng.choice(((x, bad), (x, [1, 1], 1j), (x, [1, 1], x))))


def bad_permutation(rng, f, x, shape):
    order = list(range(len(shape)))
    order[rng.randrange(len(shape))] = rng.choice((len(shape), -len(shape) - 1, 0.5))
    return f.permute(x, rng.choice((order, order[:-1], [0] * (len(shape) + 1))))


def bad_broadcast_in_dim(rng, f, x, shape):
    wide, places = [2, *shape], list(range(1, len(shape) + 1))
    match rng.randrange(4):
        case 0:
            wide[0] = -rng.randint(1, 3)
        case 1:
            wide = [2, *changed(rng, [e + 1 for e in shape], (2, 3))]
        case 2:
            places[-1] = rng.choice(
                (0, len(shape) + 1, -len(shape) - 2) if len(places) > 1 else (2,)
            )
        case 3:
            places.pop()
    return f.broadcast_in_dim(x, wide, places)


def bad_expand(rng, f, x, shape):
    wrong = rng.choice(([-1, *shape], [-2, *shape], shape[1:], changed(rng, shape, (8, 9))))
    return f.expand(f.add(x, f.full(shape, 0.0, DataType.Float)), wrong)


def bad_reduction(name, rng, f, x, shape):
    axes: tuple = [other_axis(rng, len(shape))], [], [0, 0], [0, -len(shape)]
    return getattr(f, name)(x, rng.choice(axes))


def bad_axis(name, rng, f, x, shape):
    return getattr(f, name)(x, other_axis(rng, len(shape)))


INVALID: dict = {
    "slice": bad_slice,
    "pad": bad_pad,
    "permute": bad_permutation,
    "broadcast_in_dim": bad_broadcast_in_dim,
    "expand": bad_expand,
    "cat": lambda rng, f, x, shape: f.cat([x, x], other_axis(rng, len(shape))),
    "reshape": lambda rng, f, x, shape: f.reshape(x, changed(rng, shape, (1, 5, -99))),
    "squeeze": lambda rng, f, x, shape: f.squeeze(
        x, rng.choice(([other_axis(rng, len(shape))], [0] * (len(shape) + 1)))
    ),
    "broadcast": lambda rng, f, x, shape: f.broadcast(
        x, rng.choice(([True], [False] * (len(shape) + 1), [1, 0]))
    ),
    "stride_order": lambda rng, f, x, shape: f.stride_order(
        x, rng.choice(([0] * (len(shape) + 1), [-1, *range(1, len(shape))], [len(shape)]))
    ),
    **{
        name: partial(bad_reduction, name)
        for name in ("sum", "prod", "max", "min", "var", "var_mean", "welford")
    },
    **{
        name: partial(bad_axis, name)
        for name in ("cumsum", "cumprod", "cummin", "cummax", "argsort", "size")
    },
    "topk": lambda rng, f, x, shape: f.topk(
        x, *rng.choice(((shape[-1] + 1,), (-1,), (0.5,), (0, other_axis(rng, len(shape)))))
    ),
    "select": lambda rng, f, x, shape: f.select(
        x, *rng.choice(((shape[0], 0), (-shape[0] - 1, 0), (0, other_axis(rng, len(shape)))))
    ),
    "iota": lambda rng, f, x, shape: f.iota(
        *rng.choice(((-1,), (1.5,), (3, 0.5), (3, 0, 0), (3, 0, float("inf")), (3, 1j), (None,)))
    ),
    "full": lambda rng, f, x, shape: f.full(
        *rng.choice((([-1], 1.0), ([1.5], 1.0), ([2], x), (3, 1.0))), DataType.Float
    ),
    "uniform": lambda rng, f, x, shape: f.uniform(0.0, 1.0, [-rng.randint(1, 3)]),
    "gather": lambda rng, f, x, shape: f.gather(
        x,
        f.full(*rng.choice((([1], 0), ([e + 1 for e in shape], 0))), DataType.Int)
        if len(shape) > 1
        else x,
        0,
    ),
    "scatter": lambda rng, f, x, shape: f.scatter(
        x, f.full([e + 1 for e in shape], 0, DataType.Int), x, 0
    ),
    "index_select": lambda rng, f, x, shape: f.index_select(
        x, rng.choice((x, f.full([2, 2], 0, DataType.Int))), 0
    ),
}


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("op", INVALID)
def test_invalid_arguments(op, static):
    """The error is raised where the op is written, or by the call that has the sizes."""
    rng = random.Random(op)
    for _ in range(24):
        shape = [rng.choice((2, 3, 5)) for _ in range(rng.randint(1, 4))]
        x = torch.randn(shape)
        with pytest.raises(DefinitionError, match=f"^{op}: ") as error:
            with FusionDefinition() as fd:
                results = INVALID[op](rng, fd.ops, fd.from_pytorch(x, static_sizes=static), shape)
                assert not static, "it must not be accepted if the sizes are known"
                for result in results if isinstance(results, tuple) else (results,):
                    fd.add_output(result)
            fd.execute([x])
        assert "test_random_arguments.py" in str(error.value)


TENSORS = [
    torch.randn(3, 4), torch.randn(4, 3), torch.zeros(3, 4, dtype=torch.int64), torch.randn(()),
    torch.zeros(3, dtype=torch.int64), torch.randn(4), torch.randn(3, 4) > 0,
    torch.randn(1, 3, 1, 4), torch.randn(2, 3, 4, 8), torch.randn(3, 4, dtype=torch.complex64),
]  # fmt: skip
OTHERS = (
    *(-3, -1, 0, 1, 2, 5, True, False, 0.5, -1.5, float("nan"), float("inf"), 1j, None, "a"),
    *([0.5], [None], (1, 2), DataType.Float, DataType.Int, DataType.ComplexFloat, DataType.Null),
)


def any_argument(rng, tensors):
    if rng.random() < 0.45:
        return rng.choice(tensors)
    kind = rng.randrange(4)
    if kind == 0:
        return [rng.choice((-2, -1, 0, 1, 2, 3, 4, 12)) for _ in range(rng.randrange(5))]
    if kind == 1:
        return rng.choices(tensors if rng.random() < 0.3 else (True, False), k=rng.randrange(1, 4))
    return rng.choice(OTHERS)


@pytest.mark.parametrize("op", OPS.split())
def test_any_arguments_run_or_are_refused(op):
    """Of random arguments, all that the definition accepts can be computed."""
    rng, known = random.Random(op), list(parameters(op).parameters.values())
    required = sum(p.default is p.empty for p in known)
    for _ in range(40):
        with FusionDefinition() as fd:
            static = rng.random() < 0.6
            tensors = [fd.from_pytorch(t, static_sizes=static) for t in TENSORS]
            given = [any_argument(rng, tensors) for _ in range(rng.randint(required, len(known)))]
            given[:1] = rng.choices((rng.choice(tensors), given[0]), (4, 1)) if given else []
            by_name = {
                p.name: g for p, g in zip(known, given, strict=False) if p.kind is p.KEYWORD_ONLY
            }
            try:
                results = getattr(fd.ops, op)(*given[: len(given) - len(by_name)], **by_name)
            except DefinitionError:
                continue
            for result in results if isinstance(results, tuple) else (results,):
                fd.add_output(result)
        try:
            fd.execute(TENSORS)
        except DefinitionError:
            assert not static, fd


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([-1, -2], [5, 5]), "start_indices must be greater than or equal to 0. .*"),
        (([3, 4], [1, 2]), "end_indices must be greater than or equal to start_indices. .*"),
        (([0, 0], [5, 5], [5, 5]), "strides must be of const size 1.*"),
    ],
)
def test_slices_raise_in_words_of_nvfuser(arguments, message):
    with (
        pytest.raises(RuntimeError, match=f"[Ss]lice operation {message}"),
        FusionDefinition() as fd,
    ):
        fd.ops.slice(fd.define_tensor([-1, -1]), *arguments)


def test_computed_ends_count_from_the_back():
    """Only constants are refused: a run clamps what is computed, as nvFuser does."""
    x = torch.randn(5, 6)
    with FusionDefinition() as fd:
        t, n = fd.from_pytorch(x), fd.define_scalar(DataType.Int)
        fd.add_output(fd.ops.slice(t, [0, n], [n, 9]))
        fd.add_output(fd.ops.slice(t, [6, 0], [8, 6]))
    for k in (2, -2, 9, -9, 0):
        part, empty = fd.execute([x, k])
        torch.testing.assert_close(part, x[0:k, k:9])
        assert empty.shape == (0, 6)
