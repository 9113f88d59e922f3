"""The tutorial's measurements run and write their plot."""

from pathlib import Path

import pytest

from benchmarks import tutorial


def test_measurements_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "plots" / "tutorial.png"
    arguments = ["--shape", "4", "5", "16", "--seconds", "0.01", "--plot", str(path)]
    assert tutorial.main(arguments) == 0
    assert path.stat().st_size > 1000
    text = capsys.readouterr().out
    for word in (*tutorial.NORMS, *tutorial.VARIANTS, "random sizes"):
        assert word in text


def test_step_clears_gradients():
    program, vectors = tutorial.NORMS["RMS"]
    block = tutorial.block((2, 3, 8), vectors, "cpu")
    block.step(program)
    assert all(t.grad is None for t in block.arguments)
