"""The memory of the corpus is measured, and never above eager's."""

import pytest
import torch

from benchmarks.allocations import allocations
from benchmarks.bench.peers import PEERS, US
from benchmarks.memory import Memory, above, measure_all, table

LITTLE = 4096  # bytes of statistics, at the small size


def test_allocations_are_counted():
    def run():
        first = torch.ones(1000)
        second = first + 1
        del first
        return second.sum(), second

    found = allocations(run)
    assert found.left == 4004 and 8000 <= found.peak < 8064


def test_what_is_above_a_peer_is_named():
    more, less = Memory("a", 10**6, 10**6), Memory("a", 10**5, None)
    found = {"eager": {"a": less}, US: {"a": more}}
    assert above(found) == ["a: at most 1,000,000 bytes, and eager 100,000"]
    assert above({"eager": {"a": more}, US: {"a": less}}) == []
    assert above({"eager": {}, US: {"a": more}}) == []
    assert table(found).row_count == 1


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("only", ["norm_", "gelu", "mlp"])
def test_the_corpus_holds_no_more_than_eager(only, monkeypatch):
    monkeypatch.setenv("TOFUSE_POOL_BYTES", "0")
    theirs = {m.name: m for m in measure_all(PEERS["eager"].compile, "small", only)}
    for mine in measure_all(PEERS[US].compile, "small", only):
        limit = theirs[mine.name]
        assert mine.peak <= limit.peak + LITTLE, mine
        assert (mine.saved or 0) <= (limit.saved or 0), mine
        if only == "norm_" and mine.saved is not None:
            assert mine.saved <= 16 + 2 * 4 * 4 * 16  # seed, and two numbers a row
