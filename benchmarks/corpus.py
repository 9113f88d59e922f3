"""Dump the stages of every seed and workload, and compare two dumps: `python -m benchmarks.corpus`.

A refactoring changes no kernel and no plan:

    python -m benchmarks.corpus dump before     # at the old commit
    python -m benchmarks.corpus dump after      # at the new one
    python -m benchmarks.corpus compare before after
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

import tofuse
from benchmarks.seeds import RNG_SEED, SEEDS
from benchmarks.workloads.catalogue import WORKLOADS

LOCATION = re.compile(r" *# at \S+:-?\d+")  # of the user's line, which moves with the benchmarks
SHOWN = 6  # differing lines for each file


def main(arguments: Sequence[str] | None = None) -> int:
    """Dump or compare; the exit status of a comparison is 1 if any text differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.corpus", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    dump_command = commands.add_parser("dump", help="write the stages of the corpus to a folder")
    dump_command.add_argument("folder", type=Path)
    dump_command.add_argument("--only", default="", help="programs whose name contains this")
    compare_command = commands.add_parser("compare", help="compare the texts of two folders")
    compare_command.add_argument("folders", type=Path, nargs=2)
    options = parser.parse_args(arguments)
    if options.command == "dump":
        dump(options.folder, options.only)
        return 0
    differences = compare(*options.folders)
    print("\n".join(differences) or "no text differs")
    return 1 if differences else 0


def dump(folder: Path, only: str = "") -> None:
    """Compile every program whose name contains `only`, small, and write its stages."""
    for seed in (s for s in SEEDS if only in s.name):
        torch.compiler.reset()
        torch.manual_seed(RNG_SEED)
        compiled = tofuse.compile(seed.program, hand_back=False, dump=folder / f"seed_{seed.name}")
        output = compiled(*seed.make_inputs("small"))
        if seed.backward:
            assert isinstance(output, torch.Tensor)
            output.sum().backward()
    for workload in (w for w in WORKLOADS if w.group != "machine" and only in w.name):
        torch.compiler.reset()
        case = workload.build("small")
        name = f"{workload.group}_{workload.name}"
        case.drive(tofuse.compile(case.target, hand_back=False, dump=folder / name)).run()


def compare(before: Path, after: Path) -> list[str]:
    """Return a line for each file that only one folder has, and some lines of each that differs."""
    old, new = read_texts(before), read_texts(after)
    found = [f"only in one folder: {name}" for name in sorted(old.keys() ^ new.keys())]
    for name in sorted(old.keys() & new.keys()):
        if old[name] != new[name]:
            before_lines, after_lines = old[name].splitlines(), new[name].splitlines()
            lines = list(difflib.unified_diff(before_lines, after_lines, n=0, lineterm=""))
            found += [f"{name}:", *(f"  {line}" for line in lines[2 : 2 + SHOWN])]
    return found


def read_texts(folder: Path) -> dict[str, str]:
    """Return the texts of a dump without locations, by program, order of its graphs, and stage."""
    texts = {}
    for program in sorted({p.parent for p in folder.rglob("*.txt")}):
        files = [
            (int(number), stage, f)
            for f in program.glob("*.txt")
            for number, stage in [f.name.split("_", 1)]
        ]
        order = sorted({number for number, _, _ in files})
        for number, stage, file in files:
            name = f"{program.relative_to(folder)}/{order.index(number)}_{stage}"
            texts[name] = LOCATION.sub("", file.read_text("utf-8"))
    return texts


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
