"""Prefetched rows: when they are prefetched, and that results do not change."""

import pytest
import torch

from tests.support.kernels import run_nest
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.backends.cpu.schedule.choose_schedule import choose_schedule
from tofuse.backends.cpu.schedule.prefetch import prefetch
from tofuse.ir.nest import Nest
from tofuse.ir.parse_kernel import parse_kernel
from tofuse.ir.parse_schedule import parse_schedule
from tofuse.ir.schedule import Target


def softmax(rows: int, width: int, late_op: str = "exp v2 of f32 : f32") -> Nest:
    kernel = parse_kernel(f"""kernel k(x0: in f32, y1: out f32) over i0:{rows} i1:{width} {{
  v0 = load x0[({width})*i0 + i1] : f32
  v1 = reduce amax<i1> v0 : f32
  v2 = sub v0 v1 of f32 : f32
  v3 = {late_op}
  v4 = reduce sum<i1> v3 : f32
  v5 = div v3 v4 of f32 : f32
  store y1[({width})*i0 + i1] v5 : f32
}}""")
    return prefetch(build_nest(kernel, choose_schedule(kernel, Target(16, 2))))


@pytest.mark.parametrize(
    "rows, width, late_op, prefetched",
    [
        (1024, 1000, "exp v2 of f32 : f32", True),
        (64, 1000, "exp v2 of f32 : f32", False),  # in the cache anyway
        (64, 100_000, "exp v2 of f32 : f32", False),  # two rows do not fit in it
        (1024, 1000, "mul v2 v2 of f32 : f32", False),  # no expensive pass: memory is never idle
    ],
)
def test_rows_are_prefetched_in_expensive_later_pass(rows, width, late_op, prefetched):
    text = repr(softmax(rows, width, late_op))
    assert text.count("prefetch v0[") == prefetched
    passes = [line.strip() for line in text.splitlines() if line.strip().startswith("for i1")]
    assert (passes[1] == "for i1 prefetch v0[(1000)*i0 + i1 + 1000]:") == prefetched


def test_nothing_is_read_after_the_last_row():
    x = torch.randn(1024, 1000)
    results = run_nest(softmax(1024, 1000), {"x0": x, "y1": torch.empty(1024, 1000)}, {}, threads=2)
    torch.testing.assert_close(results["y1"].view(1024, 1000), torch.softmax(x, -1))


def channel_sums(channels: int, positions: int) -> Nest:
    """Return sums over positions of ten of many channels: rows of 40 bytes."""
    axes = f"i0:{channels} i1:{positions} i2:10"
    kernel = parse_kernel(f"""kernel k(x0: in f32, y1: out f32) over {axes} {{
  v0 = load x0[(10)*i0 + ({10 * channels})*i1 + i2] : f32
  v1 = exp v0 of f32 : f32
  v2 = reduce sum<i1> v1 : f32
  store y1[(10)*i0 + i2] v2 : f32
}}""")
    schedule = parse_schedule("order i0 i1 i2; parallel 1; vector 16; unroll 1")
    return prefetch(build_nest(kernel, schedule))


@pytest.mark.parametrize(
    "channels, positions, prefetched",
    [
        (32, 1024, True),
        (32, 64, False),  # in the cache anyway
        (1, 65536, False),  # one row follows the other
    ],
)
def test_short_rows_with_gaps_are_prefetched(channels, positions, prefetched):
    assert repr(channel_sums(channels, positions)).count("prefetch v0[") == prefetched


def test_nothing_is_read_after_the_last_short_row():
    x = torch.randn(1024, 320)
    results = run_nest(channel_sums(32, 1024), {"x0": x, "y1": torch.empty(320)}, {}, threads=2)
    exact = x.double().exp().sum(0).float()
    torch.testing.assert_close(results["y1"].view(320), exact, rtol=2e-6, atol=0)
