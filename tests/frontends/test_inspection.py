"""`validate`: what it returns, and the differences that it allows."""

import pytest
import torch

from tests.frontends.support import build_definition
from tofuse.errors import VerifyError
from tofuse.nvfuser import DataType, FusionDefinition


def test_validate_returns_the_outputs():
    x = torch.randn(5, 6)
    fd = build_definition(lambda fd, t: [fd.ops.exp(t), t.size(1)], [x])
    out, width = fd.validate([x])
    torch.testing.assert_close(out, x.exp())
    assert width == 6
    (again, _) = fd.validate([x], [x.exp(), 6], device="cpu", _disable_options=["fma"])
    assert torch.equal(again, out)


def test_validate_runs_an_aliased_output_once():
    x = torch.zeros(3)
    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        fd.add_output(fd.ops.add(t, 1.0), t)
        fd.add_output(fd.ops.mul(t, 2.0))
    (out,) = fd.validate([x])
    assert torch.equal(x, torch.ones(3)) and torch.equal(out, torch.zeros(3))


def test_the_allowed_difference_grows_with_what_was_summed():
    terms = torch.randn(4, 2048, generator=torch.Generator().manual_seed(0))
    long, short = torch.cat([terms, 1e-4 - terms], 1), torch.full((4, 4), 0.1)
    sums = {
        "sum": lambda fd, t: fd.ops.sum(t, [1]),
        "matmul": lambda fd, t: fd.ops.matmul(t, fd.ops.full([t.size(1), 1], 1.0, DataType.Float)),
        "scan": lambda fd, t: fd.ops.mul(fd.ops.cumsum(t, 1), 1.0),
    }
    for body in sums.values():
        for x, allowed in ((long, True), (short, False)):
            fd = build_definition(body, [x])
            (out,) = fd.execute([x])
            fd.validate([x], [out + 3e-6])
            if allowed:
                fd.validate([x], [out + 2.5e-5])
            for wrong in (1e-3,) if allowed else (4e-5, 1e-3):
                with pytest.raises(VerifyError, match="output 0 differs"):
                    fd.validate([x], [out + wrong])


def test_long_sums_of_half_precision_are_valid():
    x, y = (torch.randn(8, 2048).bfloat16() for _ in range(2))
    fd = build_definition(lambda fd, a, b: fd.ops.sum(fd.ops.mul(a, b), [1]), [x, y])
    fd.validate([x, y])
    fd.validate([x, y], [(x.double() * y.double()).sum(1).float()])


def _softmax(fd, t):
    wide = fd.ops.cast(t, DataType.Float)
    powers = fd.ops.exp(fd.ops.sub(wide, fd.ops.max(wide, [1], True)))
    return fd.ops.cast(fd.ops.div(powers, fd.ops.sum(powers, [1], True)), t.dtype)


def _layer_norm(fd, t):
    wide = fd.ops.cast(t, DataType.Float)
    mean = fd.ops.div(fd.ops.sum(wide, [1], True), t.size(1))
    deviation = fd.ops.sub(wide, mean)
    squares = fd.ops.sum(fd.ops.mul(deviation, deviation), [1], True)
    inverse = fd.ops.rsqrt(fd.ops.add(fd.ops.div(squares, t.size(1)), 1e-5))
    return fd.ops.cast(fd.ops.mul(deviation, inverse), t.dtype)


@pytest.mark.parametrize("body", [_softmax, _layer_norm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0])
def test_a_norm_over_a_long_row_is_not_valid_as_zeros(body, dtype, spread):
    x = (torch.randn(4, 4096) * spread).to(dtype)
    fd = build_definition(body, [x])
    (out,) = fd.validate([x])
    with pytest.raises(VerifyError, match="output 0 differs"):
        fd.validate([x], [torch.zeros_like(out)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_cancels_is_valid(dtype):
    x = torch.full((3, 4099), 0.1, dtype=dtype)

    def body(fd, t):
        mean = fd.ops.div(fd.ops.sum(t, [1], True), t.size(1))
        deviation = fd.ops.sub(t, mean)
        pairs = fd.ops.add(fd.ops.mul(fd.ops.sin(t), fd.ops.sin(t)), -1.0)
        ones = fd.ops.add(pairs, fd.ops.mul(fd.ops.cos(t), fd.ops.cos(t)))
        return [deviation, fd.ops.sum(deviation, [1]), ones]

    outputs = build_definition(body, [x]).validate([x])
    build_definition(body, [x]).validate([x], [torch.zeros_like(t) for t in outputs])


def test_validate_draws_no_random_numbers():
    x = torch.randn(5)
    fd = build_definition(lambda fd, t: fd.ops.exp(t), [x])
    before = torch.get_rng_state()
    fd.validate([x])
    assert torch.equal(torch.get_rng_state(), before)
