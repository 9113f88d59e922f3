"""The cost of products: monotonic, and for few rows that of the large operand."""

from dataclasses import replace
from itertools import pairwise

import pytest

from tofuse.backends.cpu.cost.products import (
    ProductSize,
    blocked_dtypes,
    blocked_rows,
    is_faster,
    product_costs,
    streamed_rows,
)
from tofuse.backends.cpu.processors import LEVELS, PROCESSORS, SCALAR
from tofuse.cost.machine import default_machine
from tofuse.ir.schedule import Target
from tofuse.ir.types import DType

ROWS = (1, 2, 4, 8, 16, 32, 64, 256, 1024, 4096)


@pytest.mark.parametrize("avx512", [False, True])
def test_costs_grow_with_each_size(avx512):
    machine = default_machine(1, 16)
    for kind in ("library", "packed", "direct"):
        costs = [
            getattr(product_costs(ProductSize(m, 512, 512), machine, avx512), kind) for m in ROWS
        ]
        assert all(a <= b for a, b in pairwise(costs))
        wider = product_costs(ProductSize(8, 1024, 512), machine, avx512)
        assert getattr(wider, kind) > costs[3]


def test_few_rows_cost_the_reading_of_the_large_operand():
    machine = default_machine(1, 16)
    few, twice = (product_costs(ProductSize(m, 2048, 4096), machine, True) for m in (4, 8))
    assert twice.direct < 1.3 * few.direct and twice.library < 1.3 * few.library


def test_who_wins():
    machine = default_machine(1, 16)
    chosen = {}
    for rows in ROWS:
        costs = product_costs(ProductSize(rows, 1024, 1024), machine, True)
        chosen[rows] = is_faster(costs.direct, costs.library)
    assert [m for m, direct in chosen.items() if direct] == [4, 8, 16]


@pytest.mark.parametrize(("columns", "depth"), [(64, 64), (256, 256), (512, 512), (1001, 1000)])
def test_the_library_wins_if_the_operand_is_cached_or_its_rows_cross_lines(columns, depth):
    machine = default_machine(1, 16)
    for rows in (8, 16, 32):
        costs = product_costs(ProductSize(rows, columns, depth), machine, True)
        assert not is_faster(costs.direct, costs.library)


def test_products_of_blocks_follow_the_processor():
    """Where the library is fast, products with weights in memory run by blocks in float32 only."""
    plain = Target(16, 2, avx512=True)
    avx2 = PROCESSORS["avx2"].target(2)
    assert blocked_dtypes(avx2) == blocked_rows(avx2).keys() == {DType.F32, DType.F16, DType.BF16}
    assert streamed_rows(avx2).keys() == {DType.F32, DType.F16, DType.BF16}
    neon = PROCESSORS["neon"].target(2)
    assert blocked_dtypes(neon) == {DType.F32} and not blocked_rows(neon)
    for level in (SCALAR, *(p for p in LEVELS if p.name == "sse2")):
        assert not blocked_dtypes(level.target(2)) and not blocked_rows(level.target(2))
    assert blocked_dtypes(plain) == {DType.F32, DType.F16}
    assert blocked_dtypes(replace(plain, native_f16=True)) == {DType.F32}
    assert blocked_rows(plain).keys() == {DType.F32, DType.F16}
    for field in ("bf16_dot", "bf16_tiles"):
        assert DType.BF16 in blocked_dtypes(replace(plain, **{field: True}))
        assert DType.BF16 not in blocked_rows(replace(plain, **{field: True}))
