"""Branches that nearly match: some are batched, and the report names the others."""

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def norm_tanh(piece):
    return torch.tanh(F.layer_norm(piece, (16,)))


def different_op(x):
    pieces = [norm_tanh(p) for p in torch.split(x, 4)]
    pieces[5] = F.layer_norm(torch.split(x, 4)[5], (16,)).sigmoid()
    return torch.stack(pieces) * 2


def different_constant(x):
    return torch.cat([norm_tanh(p) * (0.5 if k == 2 else 0.25) for k, p in enumerate(x.split(4))])


def smaller_last_piece(x):
    return torch.cat([norm_tanh(p) for p in x[:-2].split(4)])


def smaller_last_chunk(x):
    return torch.cat([norm_tanh(p) for p in x.chunk(5)]) + 1


def random_branch(x):
    return torch.cat(
        [F.dropout(p, 0.5) if k == 3 else norm_tanh(p) for k, p in enumerate(x.split(4))]
    )


def one_is_returned(x):
    pieces = [norm_tanh(p) for p in x.split(4)]
    return torch.cat(pieces), pieces[0]


CASES = {
    different_op: (5, "op sigmoid instead of tanh (branch[0] to branch[4] match)"),
    different_constant: (2, "constant 0.5 instead of 0.25 (branch[3] to branch[7] match)"),
    smaller_last_piece: (7, "size (2, 16) instead of (4, 16) (branch[0] to branch[6] match)"),
    smaller_last_chunk: (4, "size (4, 16) instead of (7, 16) (branch[0] to branch[3] match)"),
    one_is_returned: (0, "8 branches match, but the program returns a value of one branch"),
}


def verdicts(fn, x):
    report = tofuse.explain(fn)(x)
    return report, [v for v in report.verdicts if v.rule.startswith("not batched")]


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_verdict_names_branch_line_and_difference(fn):
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


def test_verdict_names_random_branch():
    _, (verdict,) = verdicts(random_branch, torch.randn(32, 16))
    assert verdict.producer == "branch[3]"
    assert "random numbers" in verdict.rule


def test_matching_branches_are_one_kernel():
    """One of 16 branches differs; the others are batched."""

    def fn(x):
        pieces = [p.relu() if k == 15 else norm_tanh(p) for k, p in enumerate(x.split(4))]
        return torch.stack(pieces)

    report = tofuse.explain(fn)(torch.randn(64, 16))
    assert len(report.kernels) <= 2
    assert_as_eager(fn, torch.randn(64, 16))


@pytest.mark.parametrize("fn", [lambda x: torch.cat([x, x.t()]), lambda x: torch.cat([x, x + 1])])
def test_unrelated_tensors_get_no_verdict(fn):
    assert not verdicts(fn, torch.randn(6, 6))[1]


def test_matching_branches_get_no_verdict():
    fn = lambda x: torch.stack([norm_tanh(p) for p in x.split(4)])  # noqa: E731
    assert not verdicts(fn, torch.randn(32, 16))[1]
