"""Branches that are nearly alike: those that are run as one, the others are named with the line."""

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def normed(piece):
    return torch.tanh(F.layer_norm(piece, (16,)))


def other_op(x):
    pieces = [normed(p) for p in torch.split(x, 4)]
    pieces[5] = F.layer_norm(torch.split(x, 4)[5], (16,)).sigmoid()
    return torch.stack(pieces) * 2


def other_constant(x):
    return torch.cat([normed(p) * (0.5 if k == 2 else 0.25) for k, p in enumerate(x.split(4))])


def smaller_last_piece(x):
    return torch.cat([normed(p) for p in x[:-2].split(4)])


def chunks(x):
    return torch.cat([normed(p) for p in x.chunk(5)]) + 1


def random_branch(x):
    return torch.cat([F.dropout(p, 0.5) if k == 3 else normed(p) for k, p in enumerate(x.split(4))])


def other_weights(x):
    weights = [x[0, :16], x[1, :16], x[2:4, :16]]
    return torch.cat([(p @ w.t()).reshape(-1) for p, w in zip(x.split(4), weights, strict=False)])


def one_is_returned(x):
    pieces = [normed(p) for p in x.split(4)]
    return torch.cat(pieces), pieces[0]


CASES = {
    other_op: (5, "op sigmoid, and tanh, in branch[0] to branch[4], which match"),
    other_constant: (2, "constant 0.5, and 0.25, in branch[3] to branch[7], which match"),
    smaller_last_piece: (7, "size (2, 16), and (4, 16), in branch[0] to branch[6], which match"),
    chunks: (4, "size (4, 16), and (7, 16), in branch[0] to branch[3], which match"),
    one_is_returned: (0, "8 branches match, but the program returns what one of them computes"),
}


def verdicts(fn, x):
    report = tofuse.explain(fn)(x)
    return report, [v for v in report.verdicts if v.rule.startswith("not batched")]


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_the_branch_the_line_and_the_difference(fn):
    x = torch.randn(32, 16)
    branch, why = CASES[fn]
    report, (verdict,) = verdicts(fn, x)
    assert verdict.producer == f"branch[{branch}]"
    assert why in verdict.rule
    assert verdict.loc.file == __file__
    assert "torch." in verdict.loc.code and "return" in verdict.loc.code
    assert not verdict.fused
    assert "Branches that nearly match" in str(report)
    assert_as_eager(fn, x)
    assert_as_eager(fn, x.requires_grad_())


def test_a_random_branch_is_named():
    _, (verdict,) = verdicts(random_branch, torch.randn(32, 16))
    assert verdict.producer == "branch[3]"
    assert "random numbers" in verdict.rule


def test_the_same_branches_are_one_kernel():
    """Of 16, one is another; before, each was a kernel of its own."""

    def fn(x):
        pieces = [p.relu() if k == 15 else normed(p) for k, p in enumerate(x.split(4))]
        return torch.stack(pieces)

    report = tofuse.explain(fn)(torch.randn(64, 16))
    assert len(report.kernels) <= 2
    assert_as_eager(fn, torch.randn(64, 16))


@pytest.mark.parametrize("fn", [lambda x: torch.cat([x, x.t()]), lambda x: torch.cat([x, x + 1])])
def test_tensors_that_have_nothing_in_common_get_no_verdict(fn):
    assert not verdicts(fn, torch.randn(6, 6))[1]


def test_branches_that_match_get_none():
    fn = lambda x: torch.stack([normed(p) for p in x.split(4)])  # noqa: E731
    assert not verdicts(fn, torch.randn(32, 16))[1]
