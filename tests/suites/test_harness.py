"""Runs of a suite: failing cases fail alone, and a stopped run goes on where it was."""

import argparse
from pathlib import Path

import pytest

from suites import harness

MODULE = "tests.suites.sample_suite"


def run(folder: Path, **options: object) -> dict[str, harness.Result]:
    defaults = dict(only="", shard="1/1", jobs=2, timeout=10.0, fresh=False, failed=False)
    arguments = argparse.Namespace(**{**defaults, **options})
    return harness.run_suite(MODULE, "sample", arguments, folder)


def test_a_case_that_crashes_or_hangs_fails_alone(tmp_path: Path):
    results = run(tmp_path)
    assert {case: result.status for case, result in results.items()} == {
        "passes": "same",
        "fails": "failed",
        "kills its process": "crashed",
        "hangs": "crashed",
        "passes, too": "same",
    }
    assert "ValueError: one is not two (sample_suite.py:" in results["fails"].detail
    assert "SIGABRT" in results["kills its process"].detail
    assert "no result after 10 s" in results["hangs"].detail
    assert harness.summarize(results).startswith("2 crashed, 2 same, 1 failed")


def test_a_stopped_run_goes_on(tmp_path: Path):
    journal = tmp_path / "sample.jsonl"
    assert set(run(tmp_path, only="passes")) == {"passes", "passes, too"}
    journal.write_text(journal.read_text()[:-5])  # killed in the middle of a line
    before = journal.read_text()
    assert set(run(tmp_path, only="passes")) == {"passes", "passes, too"}
    assert journal.read_text().startswith(before)
    assert len(journal.read_text().splitlines()) == 3
    run(tmp_path, only="passes")
    assert len(journal.read_text().splitlines()) == 3  # nothing was left to run


def test_shards_are_parts_of_the_whole(tmp_path: Path):
    cases = ["a", "b", "c", "d", "e"]
    parts = [
        harness.select_cases(
            cases, {}, argparse.Namespace(only="", shard=f"{k}/2", fresh=False, failed=False)
        )
        for k in (1, 2)
    ]
    assert sorted([*parts[0], *parts[1]]) == cases
    with pytest.raises(SystemExit, match="from 1 to 2"):
        harness.select_cases(cases, {}, argparse.Namespace(shard="3/2"))
