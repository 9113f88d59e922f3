"""Losses with incorrect decompositions in PyTorch."""

import pytest
import torch
import torch.nn.functional as F

from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
TARGETS = [
    [[0, -1, -1], [2, 1, -1], [-1, 0, 0], [0, 1, 2]],
    [[1, 0, -1], [1, -1, 1], [2, -1, 0], [-1, -1, -1]],
]


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_targets_after_first_negative_one_are_ignored(reduction, grad, capture):
    def loss(x, target):
        return F.multilabel_margin_loss(x, target, reduction=reduction)

    for rows in (*TARGETS, TARGETS[0][0]):
        target = torch.tensor(rows)
        x = torch.randn(target.shape, requires_grad=grad)
        assert_as_eager(loss, x, target, options={"capture": capture})
