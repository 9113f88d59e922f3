"""Run `interpreted.py` in another process: Triton decides at import whether it interprets."""

from pathlib import Path

from tests.support.interpreted import needs_triton, run_interpreted


@needs_triton
def test_triton_interpreter():
    run_interpreted(Path(__file__).with_name("interpreted.py"))
