"""Run random programs in two processes, and print the stale ones: `python -m suites.stale`.

One thing is changed between the processes. A program is stale if the second process still computes
what the first did. An unchanged program is warm if the second process does not capture it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from suites.stale.program import Part, Program, random_program, read_parts

BATCH = 50  # programs of a process
OLD = 10_000.0  # seconds since 1970: when an older file was written


@dataclass
class Outcome:
    """The programs that are wrong, and of the others how many ran without a capture."""

    wrong: list[str] = field(default_factory=list)
    unchanged: int = 0
    warm: int = 0
    cold_parts: Counter[str] = field(default_factory=Counter)  # of unchanged ones

    def __str__(self) -> str:
        lines = [*self.wrong, f"{self.warm} of {self.unchanged} unchanged programs are warm"]
        lines.append(f"captured again: {dict(self.cold_parts.most_common(30))}")
        return "\n".join([*lines, f"{len(self.wrong)} wrong"])


@dataclass(frozen=True)
class Setting:
    """Whether programs compile in the background, and what else differs in the second process.

    `environment` are variables of its environment; `change_cache` changes the cache's folder.
    """

    background: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    change_cache: Callable[[Path], None] = lambda folder: None


def run_batch(programs: Sequence[Program], outcome: Outcome, setting: Setting) -> None:
    """Run programs in two processes, and add what was found to an outcome."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for program in programs:
            (folder / f"{program.name}.py").write_text(program.first)
        first = _run(folder, programs, setting.background, {"PHASE": "1"})
        for program in programs:
            _change(folder, program)
        setting.change_cache(folder / "cache")
        second = _run(folder, programs, setting.background, {"PHASE": "2", **setting.environment})
    for program, before, after in zip(programs, first, second, strict=True):
        description = f"{program.name} ({program.change}): {', '.join(program.parts)}"
        if not before["agrees"]:
            outcome.wrong.append(f"{description}: wrong in the first process{_error(before)}")
        elif not after["agrees"]:
            outcome.wrong.append(f"{description}: wrong in the second process{_error(after)}")
        if program.change == "nothing":
            outcome.unchanged += 1
            outcome.warm += not after["captured"]
            outcome.cold_parts.update(program.parts if after["captured"] else ())


def _run(
    folder: Path, programs: Sequence[Program], background: bool, variables: Mapping[str, str]
) -> list[dict[str, object]]:
    environment = {**os.environ, "CACHE": str(folder / "cache"), **variables}
    mode = "background" if background else "foreground"
    command = [sys.executable, "-m", "suites.stale.process", str(folder), mode]
    command += [program.name for program in programs]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: list[dict[str, object]] = json.loads(done.stdout.rpartition("found:")[2])
    return found


def _error(found: dict[str, object]) -> str:
    return f": {found['error']}" if "error" in found else ""


def _change(folder: Path, program: Program) -> None:
    """Give the second process its file of a program."""
    path = folder / f"{program.name}.py"
    if program.change == "folder":
        path = folder / "other" / f"{program.name}.py"
        path.parent.mkdir(exist_ok=True)
    if program.change != "nothing":
        path.write_text(program.second)
    if program.change == "older file":
        os.utime(path, (OLD, OLD))


def run(first: int, count: int, parts: list[Part], setting: Setting) -> Outcome:
    """Run the programs of `count` seeds from `first` on."""
    outcome = Outcome()
    for begin in range(first, first + count, BATCH):
        seeds = range(begin, min(begin + BATCH, first + count))
        run_batch([random_program(seed, parts) for seed in seeds], outcome, setting)
    return outcome


def main() -> int:
    """Run the programs that the command line names; return 1 if one is wrong."""
    parser = argparse.ArgumentParser(prog="python -m suites.stale", description=__doc__)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--background", action="store_true", help="compile in other processes")
    parser.add_argument("--only", default="", help="parts whose names contain this text")
    words = parser.parse_args()
    parts = [part for part in read_parts() if words.only in part.name]
    outcome = run(words.seed, words.programs, parts, Setting(words.background))
    print(outcome)
    return bool(outcome.wrong)


if __name__ == "__main__":
    sys.exit(main())
