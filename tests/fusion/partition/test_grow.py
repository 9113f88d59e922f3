"""Growing large kernels takes time in proportion to their size: counts, not clocks."""

import pytest
import torch

import tofuse
from tofuse.fusion import lowering_memo

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "empty_cache_on_disk")

MAX_LOWERINGS_OF_AN_OP = 20


def scan(steps, batch):
    """Return a recurrence of RWKV, unrolled, with its arguments."""

    def program(r, k, v, w, u):
        state, results = torch.zeros(batch, 4, 16, 16), []
        for t in range(steps):
            kv = k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2)
            results.append((r[:, t].unsqueeze(-1) * (state + u * kv)).sum(-2))
            state = state * torch.exp(-torch.exp(w[:, t])).unsqueeze(-1) + kv
        return torch.stack(results, 1)

    return program, [*[torch.randn(batch, steps, 4, 16) for _ in range(4)], torch.randn(4, 16, 1)]


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("batch", [2, 32])
@pytest.mark.parametrize("steps", [16, 64])
def test_ops_are_lowered_a_few_times(monkeypatch, steps, batch, trains):
    lowered, lower_region = [], lowering_memo.lower_region

    def counted(region, *args, **options):
        lowered.append(len(region.ops))
        return lower_region(region, *args, **options)

    monkeypatch.setattr(lowering_memo, "lower_region", counted)
    program, args = scan(steps, batch)
    args = [x.requires_grad_(trains) for x in args]
    report = tofuse.explain(program)(*args)
    ops = sum(len(graph.partition.graph.ops) for graph in report.graphs)
    assert sum(lowered) <= MAX_LOWERINGS_OF_AN_OP * ops
    torch.testing.assert_close(tofuse.compile(program)(*args), program(*args), rtol=1e-3, atol=1e-3)
