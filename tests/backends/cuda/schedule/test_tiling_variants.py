"""Variants of tilings: their texts, and their results in Triton's interpreter."""

from pathlib import Path

import pytest

from tests.support.cases import Case, accept, read_cases
from tests.support.interpreted import needs_triton, run_interpreted
from tests.support.kernels import kernel
from tests.support.tilings import parse_tiling_choice
from tofuse.backends.cuda.schedule.build_tiles import build_tiles
from tofuse.backends.cuda.schedule.tiling_variants import tiling_variants
from tofuse.ir.tile import GpuTarget

CASES = read_cases(Path(__file__).parent / "tiling_variants.txt")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_text(case: Case, request: pytest.FixtureRequest):
    head, _, text = case.before.partition("\n")
    k, target = kernel(text), GpuTarget(int(head.split()[-1]))
    program = build_tiles(k, target)
    variants = tiling_variants(program, target)
    found = "\n".join(repr(p.choice) for p in (program, *variants))
    if request.config.getoption("--accept"):
        accept(case, found)
    else:
        assert found == case.after
    for variant in (program, *variants):
        choice = parse_tiling_choice(repr(variant.choice))
        assert choice == variant.choice
        assert repr(build_tiles(k, target, choice=choice)) == repr(variant)


def test_there_are_at_most_as_many_as_allowed():
    k = kernel(CASES[0].before.partition("\n")[2])
    program = build_tiles(k, GpuTarget())
    assert len(tiling_variants(program, GpuTarget(), limit=3)) == 3


@needs_triton
def test_results_in_the_interpreter():
    """In another process: Triton decides at import whether it interprets."""
    run_interpreted(Path(__file__).with_name("interpreted_variants.py"))
