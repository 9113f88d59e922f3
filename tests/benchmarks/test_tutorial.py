"""The tutorial's measurements run, and make their plot."""

from pathlib import Path

import pytest

from benchmarks import tutorial


def test_it_measures_and_plots(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "plots" / "tutorial.png"
    arguments = ["--shape", "4", "5", "16", "--seconds", "0.01", "--plot", str(path)]
    assert tutorial.main(arguments) == 0
    assert path.stat().st_size > 1000
    text = capsys.readouterr().out
    for word in (*tutorial.NORMS, *tutorial.WAYS, "random sizes"):
        assert word in text


def test_a_step_leaves_no_gradients():
    program, vectors = tutorial.NORMS["RMS"]
    block = tutorial.block((2, 3, 8), vectors, "cpu")
    block.step(program)
    assert all(t.grad is None for t in block.arguments)
