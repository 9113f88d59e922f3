"""Reductions and scans against torch."""

import pytest
import torch

from tests.frontends.support import build_definition, check, definition_from_text, promote_half
from tofuse.errors import DefinitionError
from tofuse.nvfuser import DataType

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def tensors(shape=(3, 4, 17)):
    torch.manual_seed(0)
    floats = [torch.randn(shape).to(d) for d in FLOATS]
    return [*floats, torch.randint(-3, 4, shape), torch.randint(-3, 4, shape, dtype=torch.int32)]


@pytest.mark.parametrize(
    ("name", "function"), [("sum", torch.sum), ("max", torch.amax), ("min", torch.amin)]
)
@pytest.mark.parametrize("dims", [[1], [0, 2], [-1]])
def test_reductions(name, function, dims):
    check(
        lambda fd, *ts: [getattr(fd.ops, name)(t, dims, keepdim=k) for t in ts for k in (0, 1)],
        lambda *ts: [function(promote_half(t), dims, keepdim=k) for t in ts for k in (False, True)],
        tensors(),
        rtol=1e-5,
        atol=1e-5,
    )


def test_reductions_over_all_dimensions():
    check(
        lambda fd, x: [fd.ops.sum(x), fd.ops.max(x), fd.ops.min(x), fd.ops.prod(x), fd.ops.var(x)],
        lambda x: [x.sum(), x.max(), x.min(), x.prod(), x.var()],
        [torch.randn(3, 17)],
    )


def test_prod():
    inputs = [t.clamp(-1.5, 1.5) for t in tensors((3, 9))]
    check(
        lambda fd, *ts: [fd.ops.prod(t, 1) for t in ts],
        lambda *ts: [promote_half(t).prod(1) for t in ts],
        inputs,
    )


def test_reductions_of_bools():
    x = torch.tensor([[True, False, True], [False, False, False]])
    check(
        lambda fd, t: [fd.ops.sum(t, [1]), fd.ops.max(t, [1]), fd.ops.min(t, [0])],
        lambda t: [t.sum(1), t.any(1), t.all(0)],
        [x],
    )


def test_dtype_argument():
    check(
        lambda fd, t: [
            fd.ops.sum(t, [0], dtype=DataType.Double),
            fd.ops.sum(t, dtype=DataType.Int),
        ],
        lambda t: [t.sum(0, dtype=torch.float64), t.to(torch.int64).sum()],
        [torch.randn(7, 5)],
    )


def test_dtype_as_the_second_argument():
    x = torch.randn(3, 5)
    fd = build_definition(
        lambda fd, t: [
            fd.ops.sum(t, DataType.Double),
            fd.ops.sum(t, torch.float64),
            fd.ops.max(t, DataType.Double),
            fd.ops.prod(t, 1, True, DataType.Double),
        ],
        [x],
    )
    wide = x.double()
    wanted = [wide.sum(), wide.sum(), wide.amax(), wide.prod(1, keepdim=True)]
    torch.testing.assert_close(fd.execute([x]), wanted)
    assert "fd.ops.sum(T0, dtype=DataType.Double)" in repr(fd)
    assert repr(definition_from_text(fd)) == repr(fd)


def test_reductions_of_no_elements():
    x = torch.zeros(3, 0)
    check(
        lambda fd, t: [fd.ops.sum(t, [1]), fd.ops.prod(t, [1])],
        lambda t: [t.sum(1), t.prod(1)],
        [x],
    )
    with pytest.raises(DefinitionError, match="max: the reduced dimensions have no elements"):
        build_definition(lambda fd, t: fd.ops.max(t, [1]), [x]).execute([x])


@pytest.mark.parametrize("correction", [0, 1, 2])
def test_variance_and_mean(correction):
    inputs = tensors()[:4]
    check(
        lambda fd, *ts: [r for t in ts for r in fd.ops.var_mean(t, [2], correction, True)],
        lambda *ts: [
            r
            for t in map(promote_half, ts)
            for r in torch.var_mean(t, 2, correction=correction, keepdim=True)
        ],
        inputs,
        rtol=1e-5,
        atol=1e-5,
    )
    check(
        lambda fd, *ts: [fd.ops.var(t, [0, 1], correction) for t in ts],
        lambda *ts: [promote_half(t).var((0, 1), correction=correction) for t in ts],
        inputs,
        rtol=1e-5,
        atol=1e-5,
    )


def test_welford():
    check(
        lambda fd, t: fd.ops.welford(t, [1]),
        lambda t: [t.mean(1), t.var(1, correction=0) * 17, torch.full((3,), 17)],
        [torch.randn(3, 17)],
    )


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummin", "cummax"])
def test_scans(name):
    def expected(*ts):
        made = [getattr(torch, name)(t, 1) for t in ts]
        return [m if isinstance(m, torch.Tensor) else m.values for m in made]

    check(lambda fd, *ts: [getattr(fd.ops, name)(t, 1) for t in ts], expected, tensors((3, 9)))
