"""Branches are batched before the other passes run, which then see one of them."""

import itertools

import torch

import tofuse
from benchmarks import programs
from tofuse.passes.rewrite import Rewriter


def count_emitted_ops(pieces, monkeypatch):
    """Count the ops that passes emit for a split into so many slices."""
    emitted, emit = itertools.count(), Rewriter.emit

    def counting_emit(*args):
        next(emitted)
        return emit(*args)

    monkeypatch.setattr(Rewriter, "emit", counting_emit)
    x, weight, bias = torch.rand(pieces * 8 * 32), torch.rand(1, 32), torch.rand(1)
    torch._dynamo.reset()
    tofuse.explain(programs.split_stack_weights)(x, weight, bias, 8)
    monkeypatch.undo()
    return next(emitted)


def test_passes_emit_few_ops_more_for_more_branches(fresh_dynamo, monkeypatch):
    few, many = count_emitted_ops(8, monkeypatch), count_emitted_ops(32, monkeypatch)
    assert few > 0
    assert many <= few + 2 * 24  # the 24 slices and their concat
