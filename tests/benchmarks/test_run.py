"""The command shows each seed, writes the page, and returns whether all seeds are correct."""

from pathlib import Path

import pytest
import torch

from benchmarks import run
from benchmarks.launches import count_launches


def test_single_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page = tmp_path / "deep" / "seeds.html"
    assert run.main(["--size", "small", "--only", "softmax", "--html", str(page)]) == 0
    assert "softmax" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert "<td>softmax</td>" in text
    assert "data:image/png;base64," in text
    assert "http" not in text


def test_failing_seed_fails_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def broken(program, **options):
        raise RuntimeError("no luck <today>")

    monkeypatch.setattr("tofuse.compile", broken)
    page = tmp_path / "seeds.html"
    assert run.main(["--size", "small", "--only", "softmax", "--html", str(page)]) == 1
    assert "softmax: RuntimeError: no luck <today>" in capsys.readouterr().out
    assert "no luck &lt;today&gt;" in page.read_text(encoding="utf-8")


def test_unknown_seed(capsys: pytest.CaptureFixture[str]):
    assert run.main(["--only", "nothing of this name"]) == 2
    assert "complex_activation" in capsys.readouterr().err


def test_unknown_device():
    with pytest.raises(SystemExit):
        run.main(["--device", "unknown"])


def test_views_and_allocations_are_not_launches():
    x = torch.randn(4, 6)
    assert count_launches(lambda: x.view(6, 4).t().unsqueeze(0).expand(3, 4, 6)) == 0
    assert count_launches(lambda: torch.empty_like(x)) == 0
    assert count_launches(lambda: x.t().contiguous()) == 1
    assert count_launches(lambda: x.add_(1.0)) == 1
    assert count_launches(lambda: torch.split(x, 2)) == 0
