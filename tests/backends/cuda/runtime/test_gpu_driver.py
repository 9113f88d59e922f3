"""Run programs on a fake GPU in another process: Triton decides at import whether it interprets."""

from pathlib import Path

import pytest

from tests.support.interpreted import needs_triton, run_interpreted


@needs_triton
@pytest.mark.parametrize(
    "name", ["on", "graphs_on", "products_on", "families_on", "dependent_sums_on"]
)
def test_programs_on_a_fake_gpu(name: str):
    run_interpreted(Path(__file__).with_name(f"{name}_fake_gpu.py"))
