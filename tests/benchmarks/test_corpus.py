"""Dumps of the corpus: two of one program are equal, and a changed text is reported."""

import pytest

from benchmarks import corpus

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def test_two_dumps_are_equal_and_a_change_is_reported(tmp_path, capsys):
    before, after = tmp_path / "before", tmp_path / "after"
    for folder in (before, after):
        assert corpus.main(["dump", str(folder), "--only", "gelu_bookends_kept"]) == 0
    assert list(before.rglob("*_plan.txt"))
    assert corpus.main(["compare", str(before), str(after)]) == 0
    assert "no text differs" in capsys.readouterr().out
    source = next(after.rglob("*_source.txt"))
    source.write_text(source.read_text() + "\n; changed")
    assert corpus.main(["compare", str(before), str(after)]) == 1
    assert "; changed" in capsys.readouterr().out


def test_locations_do_not_count(tmp_path):
    for name, line in (("a", 3), ("b", 4)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1_graph.txt").write_text(f"v0 = relu(x)  # at model.py:{line}")
    assert corpus.compare(tmp_path / "a", tmp_path / "b") == []
