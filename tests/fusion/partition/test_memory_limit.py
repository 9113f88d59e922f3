"""No region is fused that would exceed eager's peak memory."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tofuse
from tests.support.evaluators import rejecting
from tests.support.vector_graphs import (
    VECTOR_BYTES,
    call_line,
    make_graph,
    make_partition,
)
from tofuse.config import make_config
from tofuse.driver.compile import compile_reporting
from tofuse.driver.pipeline import partition
from tofuse.fusion.partition.memory_limit import partition_within_memory_limit
from tofuse.fusion.region_liveness import peak_bytes, unfused_peak
from tofuse.fusion.split_reductions import split_reductions

SIBLINGS = make_graph(
    "e = exp(x) : f32[2000]",
    call_line("s", "e", 10),
    "t = sin(x) : f32[2000]",
    call_line("u", "t", 10),
    "w = cos(x) : f32[2000]",
    call_line("v", "w", 10),
    outputs="s, u, v",
    inputs="x: f32[2000]",
)


def within_limit(graph, limit):
    oracles = rejecting()
    make = partial(partition)
    return partition_within_memory_limit(
        split_reductions(graph, oracles.costs_of), make, oracles, limit
    )


def test_kernels_over_the_limit_are_split():
    limit = unfused_peak(SIBLINGS)
    assert peak_bytes(make_partition(SIBLINGS)) == 6 * VECTOR_BYTES + 40 > limit
    part = within_limit(SIBLINGS, limit)
    assert peak_bytes(part) <= limit
    rules = {v.rule for v in part.verdicts} | {r.name for r in part.regions}
    assert len([r for r in part.regions if not r.library]) == 3, rules
    unlimited = within_limit(SIBLINGS, None)
    assert len([r for r in unlimited.regions if not r.library]) == 1


@pytest.mark.usefixtures("fresh_dynamo")
def test_verdicts_name_the_memory_limit():
    def f(x):
        y = x * 2
        rows = [(y + k).sort(-1).values.sum(-1) for k in range(6)]
        return torch.stack(rows).sum(0)

    x = torch.randn(300, 301)
    report = tofuse.explain(f)(x)
    assert report.peak_bytes <= report.eager_peak_bytes + 4096  # alignment to cache lines
    assert not any("holds up to" in n for n in report.notes)
    assert any("more memory than eager" in v.rule for v in report.verdicts)
    torch.testing.assert_close(tofuse.compile(f)(x), f(x), rtol=1e-4, atol=1e-3)


@pytest.mark.usefixtures("fresh_dynamo")
def test_saved_tensors_of_a_dynamic_backward_count_in_both_peaks():
    def f(x):
        for _ in range(12):
            x = torch.tanh(x.renorm(2, 0, 9.0))
        return x

    c, report = compile_reporting(f, make_config({"dynamic": True}))
    c(torch.randn(64, 64, requires_grad=True)).sum().backward()
    forward, backward = report.graphs
    assert backward.eager_peak_bytes >= forward.saved_bytes > 0
    assert not any("holds up to" in note for note in backward.notes)


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_kernel_with_several_results_is_split_by_result():
    """If all results together exceed the limit; each result's ops stay one kernel."""
    graph = make_graph(
        "e = exp(x) : f32[2000]",
        "f = neg(e) : f32[2000]",
        call_line("s", "f", 10),
        "t = sin(x) : f32[2000]",
        "h = neg(t) : f32[2000]",
        call_line("u", "h", 10),
        "w = cos(x) : f32[2000]",
        "k = neg(w) : f32[2000]",
        call_line("v", "k", 10),
        outputs="s, u, v",
        inputs="x: f32[2000]",
    )
    part = within_limit(graph, unfused_peak(graph))
    assert [len(r.ops) for r in part.regions if not r.library] == [2, 2, 2]


@pytest.mark.usefixtures("fresh_dynamo")
def test_padding_is_fused_if_a_padded_copy_exceeds_the_limit():
    """Padded images in memory may be faster to read, but are one more copy."""
    x = torch.randn(8, 3, 96, 96)
    net = nn.Sequential(nn.Conv2d(3, 32, 3, 2), nn.ReLU(), *INCEPTION)
    forward = tofuse.explain(net)(x).graphs[0]
    assert forward.peak_bytes <= forward.eager_peak_bytes + 64 * 1024
    assert len(forward.regions) < 40


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        ways = (nn.Identity(), nn.Identity(), nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1))
        then = [(), (nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)), (), ()]
        self.ways = nn.ModuleList(
            nn.Sequential(way, nn.LazyConv2d(16, 1), *more)
            for way, more in zip(ways, then, strict=True)
        )

    def forward(self, x):
        return torch.cat([way(x) for way in self.ways], 1).relu()


INCEPTION = (nn.MaxPool2d(3, 2), Branches(), nn.MaxPool2d(3, 2, ceil_mode=True), Branches())


def rotate(q, v):
    """Rotate vectors by quaternions."""
    w, x, y, z = F.normalize(q, dim=-1).unbind(-1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    rotation = torch.stack([e for row in rows for e in row], -1).view(*q.shape[:-1], 3, 3)
    return (rotation @ v[..., None])[..., 0]


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_small_excess_does_not_split_kernels_op_by_op():
    q, v = (torch.randn(4096, n, requires_grad=True) for n in (4, 3))
    forward, backward = tofuse.explain(rotate)(q, v).graphs
    assert forward.peak_bytes <= forward.eager_peak_bytes
    assert len(forward.regions) <= 4 and len(backward.regions) <= 10  # of 136 ops
