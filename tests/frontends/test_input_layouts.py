"""Contiguity and stride order of tensor inputs."""

import itertools

import pytest
import torch

import tofuse.nvfuser as nvfuser
from tests.frontends.support import build_definition, definition_from_text, run
from tofuse.errors import DefinitionError
from tofuse.nvfuser import DataType, FusionDefinition

LAYOUTS: dict[str, tuple] = {
    "row-major": (lambda: torch.randn(2, 3, 5), [True, True, True], [2, 1, 0]),
    "transposed": (lambda: torch.randn(3, 5).t(), [True, True], [0, 1]),
    "a gap before the slowest": (
        lambda: torch.randn(5).as_strided((2, 2), (1, 3)),
        [False, True],
        [0, 1],
    ),
    "every second": (lambda: torch.randn(4, 6)[:, ::2], [True, False], [1, 0]),
    "channels last": (
        lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        [True, True, True, True],
        [3, 0, 2, 1],
    ),
    "expanded rows": (lambda: torch.randn(3).expand(2, 3), [None, True], [1, 0]),
    "expanded columns": (lambda: torch.randn(3, 1).expand(3, 4), [True, None], [1, 0]),
    "expanded middle": (
        lambda: torch.randn(2, 1, 3).expand(2, 5, 3),
        [True, None, True],
        [2, 1, 0],
    ),
    "expanded and transposed": (
        lambda: torch.randn(4, 1, 3).expand(4, 5, 3).permute(2, 1, 0),
        [True, None, True],
        [0, 1, 2],
    ),
    "all expanded": (lambda: torch.randn(1).expand(2, 3), [None, None], [1, 0]),
    "size one": (lambda: torch.randn(3, 1, 4), [True, None, True], [2, 1, 0]),
    "overlapping": (lambda: torch.randn(9).as_strided((3, 4), (2, 1)), [False, True], [1, 0]),
    "no elements": (lambda: torch.randn(3, 0, 4), [False, True, True], [2, 1, 0]),
    "no dimensions": (lambda: torch.randn(()), [], []),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_tensor_is_accepted_by_the_input_that_describes_it(name):
    make, contiguity, order = LAYOUTS[name]
    x = make()
    assert nvfuser.compute_tensor_descriptor(x.shape, x.stride()) == (contiguity, order)
    (out,) = run(lambda fd, t: fd.ops.mul(t, 3.0), [x])
    assert torch.equal(out, x * 3.0)
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1] * x.dim(), contiguity, DataType.Float, False, order)
        fd.add_output(fd.ops.mul(t, 3.0))
    assert torch.equal(fd.execute([x])[0], x * 3.0)
    assert f"contiguity={contiguity}" in repr(fd)
    assert repr(definition_from_text(fd)) == repr(fd)


def test_contiguity_is_listed_from_the_slowest_dimension_to_the_fastest():
    gap_between_rows = torch.randn(4, 6)[:, :5]
    gap_between_columns = gap_between_rows.t()
    for order, given, wrong in (
        ([1, 0], gap_between_rows, gap_between_columns),
        ([0, 1], gap_between_columns, gap_between_rows),
    ):
        with FusionDefinition() as fd:
            t = fd.define_tensor([-1, -1], [False, True], stride_order=order)
            fd.add_output(fd.ops.neg(t))
        assert torch.equal(fd.execute([given])[0], -given)
        slow = order.index(1)
        with pytest.raises(DefinitionError, match=f"not contiguous at dimension {1 - slow}"):
            fd.execute([wrong])
        with FusionDefinition() as fd:
            t = fd.define_tensor([-1, -1], [True, True], stride_order=order)
            fd.add_output(fd.ops.neg(t))
        with pytest.raises(DefinitionError, match=f"not contiguous at dimension {slow}"):
            fd.execute([given])


def test_broadcast_dimensions_in_stride_order():
    x = torch.randn(3, 1, 4).permute(2, 1, 0)
    for contiguity in ([True, None, True], [True, True], True):  # with two, None is left out
        with FusionDefinition() as fd:
            t = fd.define_tensor([-1, 1, -1], contiguity, stride_order=[0, 1, 2])
            fd.add_output(fd.ops.exp(t))
        torch.testing.assert_close(fd.execute([x]), [x.exp()])
        assert "contiguity=[True, None, True]" in repr(fd)


def test_negative_stride_order_counts_from_the_end():
    x = torch.randn(3, 4).t()
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.define_tensor([-1, -1], True, stride_order=[-2, -1])))
    torch.testing.assert_close(fd.execute([x]), [x.exp()])
    assert "stride_order=[0, 1]" in repr(fd)


@pytest.mark.parametrize(
    ("sizes", "strides", "contiguity", "order"),
    [
        ([2, 1, 3, 1, 4, 3], [12, 4, 4, 4, 1, 0], "1-1-1-", [5, 4, 3, 2, 1, 0]),
        ([2, 3, 1, 5, 4], [28, 4, 14, 0, 1], "0-1-1", [4, 2, 3, 1, 0]),
        ([2, 2, 1, 1, 2, 2, 2], [8, 4, 3, 9, 2, 0, 1], "-11-1-1", [5, 4, 3, 6, 2, 1, 0]),
        ([2, 2, 1, 2, 4, 2], [2, 32, 1, 8, 0, 4], "0110--", [2, 5, 0, 4, 1, 3]),
        ([2, 1, 3, 1, 4], [24, 4, 8, 4, 2], "11--0", [4, 2, 3, 1, 0]),
        ([2, 2, 2, 2], [8, 4, 0, 2], "11-0", [3, 2, 1, 0]),
        ([3, 4], [1, 1], "01", [1, 0]),
        ([0, 3], [3, 1], "11", [1, 0]),
    ],
)
def test_tensor_descriptor(sizes, strides, contiguity, order):
    flags = [{"1": True, "0": False, "-": None}[c] for c in contiguity]
    assert nvfuser.compute_tensor_descriptor(sizes, strides) == (flags, order)


def test_tensor_descriptor_of_wrong_lists():
    with pytest.raises(DefinitionError, match="2 sizes but 1 strides"):
        nvfuser.compute_tensor_descriptor([2, 3], [1])
    with pytest.raises(DefinitionError, match="negative"):
        nvfuser.compute_tensor_descriptor([2], [-1])


def test_expanded_inputs_in_reductions_and_products():
    base = torch.randn(4, 1, 6)
    for shape, dims in itertools.product(((4, 3, 6), (4, 1, 6)), ([1], [0, 2], [0, 1, 2])):
        x = base.expand(shape)
        (out,) = run(lambda fd, t: fd.ops.sum(t, dims), [x])  # noqa: B023  (called at once)
        torch.testing.assert_close(out, x.sum(dims))
    row = torch.randn(5).expand(3, 5)
    fd = build_definition(lambda fd, a, b: fd.ops.linear(a, b), [row, row])
    torch.testing.assert_close(fd.execute([row, row]), [row @ row.t()])
