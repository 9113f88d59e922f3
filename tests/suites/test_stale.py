"""Of programs in which one thing changes between two processes, none runs stale code."""

import os
import re
import shutil

import pytest
import torch

from suites.stale.__main__ import Outcome, Setting, run, run_batch
from suites.stale.program import CHANGES, random_program, read_parts
from tofuse.config import PACKAGE


def test_each_part_may_change():
    parts = read_parts()
    assert len({part.name for part in parts}) == len(parts) > 100
    for part in parts:
        compile(part.first, part.name, "exec") if "%" not in part.first else None
        assert part.numbered("1").first != part.numbered("1").changed
        assert "%" not in part.numbered("1").expression


def test_programs_repeat_and_differ():
    parts = read_parts()
    assert random_program(1, parts) == random_program(1, parts)
    found = [random_program(seed, parts) for seed in range(100)]
    assert {program.change for program in found} == set(CHANGES)
    for program in found:
        compile(program.first, program.name, "exec")
        is_same = program.change in ("nothing", "flag")
        assert (program.first == program.second) is is_same


@pytest.mark.parametrize(("background", "count"), [(False, 30), (True, 8)])
def test_no_program_runs_stale_code(background, count):
    outcome = run(10_000, count, read_parts(), Setting(background))
    assert outcome.wrong == []
    assert outcome.warm >= outcome.unchanged / 2, str(outcome)
    assert re.search(r"\d+ of \d+ unchanged programs are warm", str(outcome))


def _give_away(folder):
    for path in folder.rglob("*.json"):
        os.chown(path, 12345, 12345)


def _others(tmp_path):
    """A copy of the package with another source."""
    shutil.copytree(PACKAGE, tmp_path / "tofuse")
    with (tmp_path / "tofuse" / "errors.py").open("a") as file:
        file.write("# another release\n")
    return Setting(environment={"PYTHONPATH": str(tmp_path)})


@pytest.mark.parametrize(
    "setting",
    [
        lambda _: Setting(environment={"OMP_NUM_THREADS": "1"}),
        _others,
        lambda _: Setting(environment={"STALE_TORCH": "2.99.0"}),
        lambda _: Setting(environment={"STALE_PROCESSOR": "another"}),
        lambda _: Setting(change_cache=_give_away),
    ],
    ids=["threads", "tofuse", "torch", "processor", "user"],
)
def test_another_machine_or_release_captures_again(setting, tmp_path, request):
    if "user" in request.node.name and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    if "threads" in request.node.name and torch.get_num_threads() == 1:
        pytest.skip("there is one core")
    parts = read_parts()
    programs = [random_program(seed, parts) for seed in range(20_000, 20_020)]
    # one program: another one of the second process could compile its kernels
    unchanged = [program for program in programs if program.change == "nothing"][:1]
    outcome = Outcome()
    run_batch(unchanged, outcome, setting(tmp_path))
    assert outcome.wrong == [] and outcome.unchanged == 1 and outcome.warm == 0
