"""The memory of the corpus is measured, and is never above eager's."""

import pytest
import torch

from benchmarks.allocations import allocations
from benchmarks.bench.peers import OURS, PEERS
from benchmarks.memory import Memory, exceeding, measure_all, table

TOLERANCE = 4096  # bytes, for row statistics at the small size


def test_allocations():
    def run():
        first = torch.ones(1000)
        second = first + 1
        del first
        return second.sum(), second

    found = allocations(run)
    assert found.remaining == 4004 and 8000 <= found.peak < 8064


def test_exceeding():
    larger, smaller = Memory("a", 10**6, 10**6), Memory("a", 10**5, None)
    found = {"eager": {"a": smaller}, OURS: {"a": larger}}
    assert exceeding(found) == ["a: peak 1,000,000 bytes, eager 100,000"]
    assert exceeding({"eager": {"a": larger}, OURS: {"a": smaller}}) == []
    assert exceeding({"eager": {}, OURS: {"a": larger}}) == []
    assert table(found).row_count == 1


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("only", ["norm_", "gelu", "mlp"])
def test_corpus_needs_no_more_memory_than_eager(only, monkeypatch):
    monkeypatch.setenv("TOFUSE_POOL_BYTES", "0")
    eager_memory = {m.name: m for m in measure_all(PEERS["eager"].compile, "small", only)}
    for ours in measure_all(PEERS[OURS].compile, "small", only):
        limit = eager_memory[ours.name]
        assert ours.peak <= limit.peak + TOLERANCE, ours
        assert (ours.saved or 0) <= (limit.saved or 0), ours
        if only == "norm_" and ours.saved is not None:
            assert ours.saved <= 16 + 2 * 4 * 4 * 16  # the seed, and two numbers per row
