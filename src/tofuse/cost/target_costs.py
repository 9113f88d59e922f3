"""What fusion must know of a target: the costs of calls, and what its kernels do well."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tofuse.cost.machine import Machine
from tofuse.ir.rules import Rule
from tofuse.ir.types import DType

RowLimits: TypeAlias = Sequence[tuple[int, int]]  # at most so many elements, and so many rows


@dataclass(frozen=True)
class TargetCosts:
    """Numbers and rules by which fusion decides for a target.

    - `machine`: of PyTorch's calls, and of transfers.
    - `max_concat_operands`: of a concat that a kernel computes.
    - `eliminates_concats`: producers may write into a concat that no kernel would store otherwise.
    - `splits_reductions`: a reduction over channels and places is faster in two steps.
    - `merges_equal_loops`: kernels whose loops agree are merged, whatever the cost.
    - `max_contracted_rows`: rows of a product that a kernel computes as fast as a library does,
      while it computes the weight; if the columns of the weight are contiguous, and not its depth,
      `max_contracted_rows_by_columns`.
    - `tiled_rows`: by the dtype of a product, the number of rows from which its kernel runs by
      blocks of matrix tiles even so.
    - `blocked_dtypes`: a kernel computes products of these dtypes by blocks as fast as the library.
    - `blocked_rows`: by the dtype of a weight in memory, the number of rows from which products by
      blocks are faster than the library.
    - `streamed_rows`: by the dtype of a weight in memory, the rows up to which a kernel multiplies
      it faster than the library does, by the elements of the weight.
    - `max_chained_bytes`: of a factor of a product in one kernel with what reads its result.
    - `split_threshold`: two kernels stay separate if they take less than this part of the time of
      one, for the reason `separate_rule`.
    """

    machine: Machine
    max_concat_operands: int
    eliminates_concats: bool
    splits_reductions: bool
    merges_equal_loops: bool
    max_contracted_rows: int
    max_contracted_rows_by_columns: int
    tiled_rows: Mapping[DType, int]
    blocked_dtypes: frozenset[DType]
    blocked_rows: Mapping[DType, int]
    streamed_rows: Mapping[DType, RowLimits]
    max_chained_bytes: int
    split_threshold: float
    separate_rule: Rule


CostsOf = Callable[[str], TargetCosts]  # of a device
