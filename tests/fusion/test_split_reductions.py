"""Reductions and broadcasts of short rows are split in two steps, with eager's results."""

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager
from tests.support.evaluators import costs_of
from tofuse.fusion.split_reductions import split_reductions
from tofuse.ir.graph import show_graph
from tofuse.ir.parse_graph import parse_graph
from tofuse.ops.check_graph import verify_graph

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def group_graph(
    groups: int, channels: int, positions: int, strides: tuple[int, ...], dtype: str = "f32"
) -> str:
    """A sum over each group of an image, and two numbers per group broadcast to the image."""
    shape = f"4, {groups}, {channels}, {positions}"
    image = f"{dtype}[{shape}]{{{','.join(map(str, strides))}}}".replace(", ", ",")
    plain = f"{dtype}[{shape}]".replace(", ", ",")
    return f"""forward(x: {image}, m: {dtype}[4,{groups}]) {{
  a = abs(x) : {plain}
  s = sum(a, dims=(2, 3), dtype={dtype}) : {dtype}[4,{groups}]
  b = broadcast(m, shape=({shape}), dims=(0, 1)) : {plain}
  c = broadcast(m, shape=({shape}), dims=(0, 1)) : {plain}
  d = mul(x, b) : {image}
  e = add(d, c) : {image}
  return s, e
}}"""


CHANNELS_LAST = (1350, 5, 1, 15)  # three groups of five channels, 90 positions
SPLIT_GRAPH = """
  a = abs(x) : f32[4,3,5,90]
  s_each = sum(a, dims=(3,), dtype=f32) : f32[4,3,5]
  s = sum(s_each, dims=(2,), dtype=f32) : f32[4,3]
  b_each = broadcast(m, shape=(4, 3, 5), dims=(0, 1)) : f32[4,3,5]
  b_each_ = convert(b_each, dtype=f32) : f32[4,3,5]
  b = broadcast(b_each_, shape=(4, 3, 5, 90), dims=(0, 1, 2)) : f32[4,3,5,90]
  c = broadcast(b_each_, shape=(4, 3, 5, 90), dims=(0, 1, 2)) : f32[4,3,5,90]
  d = mul(x, b) : f32[4,3,5,90]{1350,5,1,15}
"""


def test_sums_and_broadcasts_of_groups_are_split():
    after = split_reductions(parse_graph(group_graph(3, 5, 90, CHANNELS_LAST)), costs_of)
    verify_graph(after)
    assert SPLIT_GRAPH in show_graph(after)


def test_half_precision_sums_are_rounded_once():
    after = show_graph(
        split_reductions(parse_graph(group_graph(3, 5, 90, CHANNELS_LAST, "bf16")), costs_of)
    )
    assert "s_each = sum(a, dims=(3,), dtype=f32) : f32[4,3,5]" in after
    assert "s = sum(s_each, dims=(2,), dtype=bf16) : bf16[4,3]" in after


@pytest.mark.parametrize(
    "groups, channels, positions, strides",
    [
        (3, 5, 90, (1350, 450, 90, 1)),  # row-major
        (3, 5, 90, (2700, 10, 2, 30)),  # gaps between channels
        (3, 5, 90, (2700, 8, 1, 24)),  # gaps between groups
        (3, 64, 90, (17280, 64, 1, 192)),  # long enough for vectors
        (3, 5, 7, (105, 5, 1, 15)),  # intermediate sums are hardly fewer
        (3, 1, 90, (270, 1, 1, 3)),  # one channel each
        (1, 5, 90, (450, 5, 1, 5)),  # one group: no dimension continues a row
    ],
)
def test_other_layouts_are_unchanged(groups, channels, positions, strides):
    graph = parse_graph(group_graph(groups, channels, positions, strides))
    assert split_reductions(graph, costs_of) is graph


def grouped(x, groups):
    """A channels-last image as N, positions, groups, channels of a group."""
    return x.flatten(2).transpose(1, 2).unflatten(2, (groups, -1))


PROGRAMS = {
    "sum": lambda x: grouped(x, 4).sum((1, 3)),
    "mean": lambda x: grouped(x, 4).mean((1, 3), keepdim=True) * grouped(x, 4),
    "largest": lambda x: grouped(x, 4) - grouped(x, 4).amax((1, 3), keepdim=True),
    "least": lambda x: grouped(x, 4).amin((1, 3)),
    "product": lambda x: (1 + grouped(x, 4) / 99).prod(3).prod(1),
    "any": lambda x: (grouped(x, 4) > 2.9).any(3).any(1),
    "scaled": lambda x: grouped(x, 4) * grouped(x, 4)[:, 0, :, 0][:, None, :, None],
    "norm": lambda x: F.group_norm(x, 4),
}


SHAPES = [(2, 20, 9, 11), (1, 64, 32, 32), (3, 4, 8, 8), (0, 20, 9, 11)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int32]


def has_answer(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
    """Whether eager has a comparable result: it rounds each factor of a half-precision product."""
    if dtype is torch.int32 and name in ("mean", "norm", "product"):
        return False
    if dtype is torch.bfloat16 and name == "product":
        return False
    return 0 not in shape or name not in ("largest", "least", "norm")


CASES = [(n, d, s) for n in PROGRAMS for d in DTYPES for s in SHAPES if has_answer(n, d, s)]


@pytest.mark.broad(6)
@pytest.mark.parametrize("name, dtype, shape", CASES)
def test_as_eager(name, dtype, shape):
    x = torch.randn(shape) * 3
    x = x.to(dtype).contiguous(memory_format=torch.channels_last)
    loose = 2e-2 if dtype is torch.bfloat16 else 1e-5
    assert_as_eager(PROGRAMS[name], x, rtol=loose, atol=loose * 10)


def scale_two(x, y, m):
    """Scale the groups of images of two shapes by the same numbers."""
    return grouped(x, 4) * m[:, None], grouped(y, 4) * m[:, None]


def scale_both_ways(x, y, m):
    """Scale groups, and positions, of which there are as many, by the same numbers."""
    return grouped(x, 4) * m[:, None], grouped(y, 4) * m[:, None, None]


@pytest.mark.parametrize("program", [scale_two, scale_both_ways])
def test_one_value_is_broadcast_in_two_ways(program):
    x, y = (torch.randn(8, c, 2, 2).contiguous(memory_format=torch.channels_last) for c in (12, 8))
    assert_as_eager(program, x, y, torch.randn(4))
    assert_as_eager(program, x, x.clone(), torch.randn(4))


def test_splitting_adds_no_stores_in_one_kernel():
    """A small image is one kernel, in which the steps cost nothing."""
    x = torch.randn(1, 8, 4, 4).contiguous(memory_format=torch.channels_last)
    report = tofuse.explain(lambda x: F.group_norm(x, 2))(x)
    (kernel,) = report.kernels
    assert (
        kernel.loops.count("store") == 2 * 8
    )  # one for each channel, in the kernel and in its nest
