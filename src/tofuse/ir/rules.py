"""The rules of verdicts: why two ops were fused, or why not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Rule(Enum):
    """The text of each rule; `{}` stands for a parameter of the reason."""

    # fused
    ELEMENTWISE = "elementwise over common axes"
    REDUCTION = "reduction over the producer's axes"
    GATHER = "index computed in the same kernel"
    CONCAT_OPERANDS = "operands of a cat or pad read in place"
    SAME_LOOPS = "same loops"
    SIBLINGS = "both read the same tensor"

    # groups that may not become one kernel
    LIBRARY_CALL = "library call"
    COLLECTIVE = "a collective, or the wait for its result"
    SLOWER_PRODUCT = (
        "library call: {} us for the products of a kernel and what it computes beside them, in "
        "kernels of their own; that kernel would take {} us"
    )
    SHARED_WEIGHT = "library call: its second factor is read elsewhere, too"
    SEPARATE_WEIGHT = "library call: loops that the product cannot join compute its second factor"
    SEPARATE_CHAIN = "library call: what reads its result needs other loops"
    OTHER_ROWS = "one kernel has the rows of a product, and the other its columns, as rows"
    FACTOR_OF_TWO = "two kernels multiply it: it is computed once"
    SLOWER_CHAIN = (
        "one kernel of these products is predicted to take {} us, and {} us if they are separate"
    )
    NO_BLOCKS = "library call: on this processor, kernels compute only few rows of this dtype"
    ORDER_OF_SUMS = "library call: precision='eager' asks for the library's order of additions"
    EXECUTOR_FIRST = "library call: the executor {} comes before generated kernels"
    LIBRARY_EPILOGUE = "library call: its epilogue ({}) is in the next kernel"
    WRITTEN_INTO_CONCAT = "written directly into the cat"
    LONG_CONCAT = "a cat of many operands is a call"
    MORE_MEMORY = "one kernel would hold more memory than eager"
    NO_FUSE = "kept separate by no_fuse"
    NO_FUEL = "no fuel left"
    FUSED_WITH_OTHERS = "each was fused with other ops first"
    COMPUTED_BETWEEN = "a value in between is computed elsewhere"
    DIFFERENT_DEVICES = "on different devices"
    TENSOR_ON_OTHER_DEVICE = "a tensor is on another device"
    TENSOR_ON_CPU = "a tensor is on the CPU and is not a scalar"
    TOO_MANY_OPS = "a kernel holds at most {} ops"
    TOO_MANY_BUFFERS = "a kernel reads and writes at most {} buffers"
    TOO_MANY_SHAPES = "broadcast to more than {} different shapes: computed once"

    # one kernel would be slower
    CONCAT_COMPUTES_ALL = "every element of the {} would compute all operands"
    OVERLAPPING_WINDOWS = "read in overlapping windows: each element would be computed {} times"
    RECOMPUTATION = (
        "one kernel would recompute {} additions' worth of work and take about {} us, "
        "separate kernels {} us"
    )
    SHORT_ROWS = "short or strided rows in one kernel: {} us, separate kernels {} us"
    SLOWER_KERNEL = "one kernel takes {} us on this GPU, separate kernels {} us"
    SLICE_CHAIN = "a deep chain of slices"
    NESTED_CONCAT_SLICES = "nested slices of concats: values would be recomputed too often"

    # no common axes
    INDIVISIBLE_EXTENTS = "extents {} and {} do not divide each other"
    DIFFERENT_SIZES = "sizes differ"
    EMPTY_AXIS = "an axis of size 0 cannot be split"
    RESHAPE_OF_SLICE = "a reshape of a sliced dimension"
    SLICE_OF_MERGED = "a slice of merged dimensions"
    VIEW_WITHOUT_STRIDES = "a view that strides cannot express"
    DIAGONAL = "a value would be read along its diagonal"
    GATHER_FROM_KERNEL = "a gather from a value computed in the same kernel"
    SCATTER_FROM_KERNEL = "the result of a scatter, whose elements are final after the last one"
    SEED_FROM_KERNEL = "a seed computed in the same kernel"
    OPERAND_LOOPS = "an operand of the {} has loops of its own"
    SLICE_OF_REDUCTION = "a slice of a reduction's result"
    SLICE_OF_SCAN = "a slice of a cumulative result, or of a loop's steps, along its dimension"
    SPLIT_SCAN = "a cumulative operator, or a loop, along a dimension that a reshape splits"
    NO_LOOP = "a dimension that no loop runs over"
    ONLY_PYTORCH = "an operator that only PyTorch runs"

    # no loops or launches
    DIFFERENT_LOOPS = "iteration spaces differ"
    SCAN_LOOP = "the steps of a cumulative operator or a loop along {} run one after another"
    SCATTER_LOOP = "a scatter combines the values along {} one after another"
    SCAN_DIRECTIONS = "cumulative operators along {} in both directions"
    UNKNOWN_AXIS = "there is no axis {}"
    AXIS_LOOPS = "{} needs one loop, and at most one tile loop outside of it"
    PARALLEL_TILES = "an axis and its tiles are both parallel"
    PARALLEL_VECTOR = "the vector loop is parallel"
    TOO_MANY_LAUNCHES = "more than {} launches, one after another"
    DYNAMIC_REDUCTIONS = "reductions over several axes of dynamic size"
    LARGE_REDUCTIONS = (
        "reductions over different axes, whose more than {} elements do not fit in registers"
    )
    TOO_MANY_GROUPS = "more than four groups of axes"
    DIFFERENT_PRODUCTS = "matrix products of different rows, columns or depth"
    ILLEGAL_TILING = "no legal tiling: {}"
    OTHER_LOOPS_OF_PRODUCT = "loops beside those of the matrix product's factors and result"

    # remarks
    NOT_BATCHED = "not batched: {}"
    NOT_REROLLED = "{} steps of a loop stay unrolled: {}"

    def __call__(self, *parameters: str | int) -> Reason:
        """Return the rule with its parameters."""
        return Reason(self, tuple(map(str, parameters)))


@dataclass(frozen=True)
class Reason:
    """A rule with its parameters, which prints as a sentence."""

    rule: Rule
    parameters: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.rule.value.format(*self.parameters)


class RejectedKernel(Exception):
    """Ops or statements cannot be one kernel, for a reason that a verdict gives."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason
