"""`validate`: what it returns, and the differences that it allows."""

import pytest
import torch

from tests.frontends.support import build_definition
from tofuse.errors import VerifyError
from tofuse.nvfuser import FusionDefinition


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
    long, short = torch.randn(4, 4096), torch.full((4, 4), 0.1)
    sums = {
        "sum": lambda fd, t: fd.ops.sum(t, [1]),
        "matmul": lambda fd, t: fd.ops.sum(fd.ops.matmul(t, fd.ops.permute(t, [1, 0])), [1]),
        "scan": lambda fd, t: fd.ops.mul(fd.ops.cumsum(t, 1), 1.0),
    }
    for body in sums.values():
        for x, allowed in ((long, True), (short, False)):
            fd = build_definition(body, [x])
            (out,) = fd.execute([x])
            if allowed:
                fd.validate([x], [out + 6e-5])
                continue
            with pytest.raises(VerifyError, match="output 0 differs"):
                fd.validate([x], [out + 6e-5])


def test_long_sums_of_half_precision_are_valid():
    x, y = (torch.randn(8, 2048).bfloat16() for _ in range(2))
    fd = build_definition(lambda fd, a, b: fd.ops.sum(fd.ops.mul(a, b), [1]), [x, y])
    fd.validate([x, y])
    fd.validate([x, y], [(x.double() * y.double()).sum(1).float()])
