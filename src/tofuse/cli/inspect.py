"""`tofuse inspect`: print what an exported program holds, without running it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from tofuse.cli.script import UsageError
from tofuse.errors import ProgramFileError
from tofuse.ir.plan import Call, Launch
from tofuse.ir.runtime_kind import TrainingRuntime
from tofuse.report.number_format import plural, show_bytes
from tofuse.runtime.exported_module import show_input
from tofuse.runtime.program_file import ProgramFile, program_json, read_program

SUMMARY = "print what an exported program holds"
DETAILS = """It reads a
file of `tofuse.export`, checks its digests, and executes nothing."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="a file of tofuse.export")
    parser.add_argument("--plan", action="store_true", help="print the plans, too")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print the program; raise UsageError for a file that is none."""
    try:
        program, tensors = read_program(options.file)
    except (OSError, ProgramFileError) as error:
        raise UsageError(str(error)) from error
    if options.json:
        print(json.dumps(program_json(program), indent=2))
        return 0
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for line in _lines(program, sum(tensors[key].nbytes for key in _keys(program))):
        console.print(line)
    for name, code in program.code.items() if options.plan else ():
        for graph in code.graphs:
            console.print(f"\n{name}\n{graph.plan!r}")
    return 0


def _keys(program: ProgramFile) -> set[str]:
    """Return the keys of the state's tensors; tied ones have one."""
    return {x.key for x in program.state}


def _lines(program: ProgramFile, state_bytes: int) -> Iterator[str]:
    has_backward = isinstance(program.kind, TrainingRuntime)
    yield f"{program.name}: {'forward and backward' if has_backward else 'forward'}"
    yield f"exported with torch {program.torch}"
    yield "inputs:"
    for x in program.inputs:
        yield f"  {show_input(x)}"
    for symbol, (least, most) in program.sizes.items():
        yield f"  {symbol}: at least {least}" + ("" if most is None else f", at most {most}")
    for other in program.of_size_one:
        yield f"of size one: {', '.join(map(show_input, other.inputs))}"
    yield f"results: {len(program.results)}"
    parameters = sum(x.is_parameter for x in program.state)
    yield (
        f"state: {plural(parameters, 'parameter')}, "
        f"{plural(len(program.state) - parameters, 'buffer')}, {show_bytes(state_bytes)}"
    )
    for name, code in program.code.items():
        steps = [step for graph in code.graphs for step in graph.plan.steps]
        launches = sum(isinstance(step, Launch) for step in steps)
        calls = sum(isinstance(step, Call) for step in steps)
        yield (
            f"{name}: {plural(launches, 'kernel launch')}, "
            f"{plural(calls, 'library call')}, {show_bytes(len(code.image.code))} of machine code"
        )
