"""Strides of intermediate values, and loads hoisted out of the loops over concat operands."""

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager
from tofuse.driver import pipeline
from tofuse.ir.graph import Value
from tofuse.passes.propagate_strides import propagate_strides

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def upsample(x, size):
    """Resize tokens as a channels-last image."""
    side = int(x.shape[1] ** 0.5)
    image = x.transpose(1, 2).reshape(x.shape[0], -1, side, side)
    return F.interpolate(image, size=(size, size), mode="bilinear", align_corners=False)


def upsample_and_concat(*maps):
    return torch.cat([upsample(x, 8) for x in maps], 1)


def tokens(*sides, channels=24):
    return [torch.randn(2, side * side, channels) for side in sides]


@pytest.mark.parametrize("sides", [(8, 4), (2, 4, 8), (3, 5, 2, 8)])
def test_concat_operands_are_written_in_reading_order(sides):
    maps = tokens(*sides)
    assert upsample_and_concat(*maps).stride()[1] == 1
    assert_as_eager(upsample_and_concat, *maps, rtol=1e-5, atol=1e-5)
    for kernel in tofuse.explain(upsample_and_concat)(*maps).kernels:
        assert "/16" not in kernel.loops.partition("nest")[2]  # no transpose tiles


def test_indices_are_loaded_outside_the_channel_loop():
    maps = tokens(8, 4, channels=64)
    (kernel,) = [k for k in tofuse.explain(upsample_and_concat)(*maps).kernels if "take" in k.name]
    body = kernel.loops.partition("nest")[2].splitlines()
    loads = [line for line in body if " load " in line and ": i64" in line]
    depth = max(len(line) - len(line.lstrip()) for line in body)
    assert loads and all(len(line) - len(line.lstrip()) < depth for line in loads)


def test_gradients():
    maps = [x.requires_grad_() for x in tokens(4, 2)]
    assert_as_eager(lambda *m: upsample_and_concat(*m).square(), *maps, rtol=1e-4, atol=1e-4)


def test_concat_operands_of_one_and_zero_elements():
    a, scale = torch.randn(3, 5), torch.rand(3, 1)
    parts = [torch.randn(3, n) for n in (1, 0, 20)]
    assert_as_eager(lambda *p: torch.cat([x * scale for x in (a, *p)], 1), *parts)
    assert_as_eager(lambda x: F.pad(x * scale, (0, 2, 1, 0)) + 1, a)


def test_users_with_different_orders_change_nothing():
    def f(x):
        y = x.sin()
        return (y + x.contiguous()).sum(1), y.cos().contiguous()

    assert_as_eager(f, torch.randn(4, 6, 5).transpose(1, 2))


def test_output_strides_are_preserved(monkeypatch):
    outputs: list[tuple[Value | None, Value | None]] = []

    def recorded(graph):
        after = propagate_strides(graph)
        outputs.extend(zip(graph.outputs, after.outputs, strict=True))
        return after

    passes = [recorded if p is propagate_strides else p for p in pipeline.LAST_GRAPH_PASSES]
    monkeypatch.setattr(pipeline, "LAST_GRAPH_PASSES", passes)
    tofuse.explain(upsample_and_concat)(*tokens(4, 8))
    assert outputs
    for before, after in outputs:
        assert before is not None and after is not None and before.layout == after.layout
