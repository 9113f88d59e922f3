"""`tofuse opt`: run passes over a program of any level, given as text."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tofuse.backends.cpu.llvm.load import host_target
from tofuse.backends.cpu.processors import PROCESSORS
from tofuse.backends.cpu.runtime.launch import thread_count
from tofuse.cli.script import UsageError
from tofuse.driver.passes_by_level import (
    LEVELS,
    Pass,
    Program,
    emit_program,
    parse_program,
    passes_by_level,
    run_passes,
    show_program,
)
from tofuse.errors import CompileError, OptionError, ParseError, VerifyError
from tofuse.ir.line_reader import SEPARATOR
from tofuse.ir.rules import RejectedKernel
from tofuse.ir.schedule import Target
from tofuse.ir.tile import GpuTarget

SUMMARY = "run passes over the text of a program: a graph, a partition, a kernel, its loops, a plan"
DETAILS = f"""The text is
what TOFUSE_DUMP writes; several programs are separated by lines {SEPARATOR}.

examples:
  tofuse opt -p dead_code,cse graph.txt                 # the graph after two passes
  tofuse opt -p fuse,lower_regions graph.txt            # the kernels of its regions
  tofuse opt -p unroll_axes,build_nest kernel.txt       # a kernel's loops
  tofuse opt --emit llvm --processor avx2 kernel.txt    # its code for AVX2"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", default="-", help="the text; default: standard input")
    parser.add_argument(
        "-p", "--passes", default="", metavar="NAMES", help="the passes to run, in this order"
    )
    parser.add_argument("--emit", choices=("llvm", "triton"), help="print the code of the result")
    parser.add_argument(
        "--processor", choices=tuple(PROCESSORS), help="schedule for this one; default: this CPU"
    )
    parser.add_argument("--threads", type=int, help="schedule for so many; default: torch's")
    parser.add_argument("--list", action="store_true", help="print the passes over each level")


def run(options: argparse.Namespace) -> int:
    """Print the programs after the passes; raise UsageError for wrong passes or a wrong text."""
    if options.threads is not None and options.threads < 1:
        raise UsageError(f"--threads takes a number from 1 on, not {options.threads}")
    target, gpu = _target(options.processor, options.threads or thread_count()), GpuTarget()
    passes = passes_by_level(target, gpu)
    if options.list:
        print("\n\n".join(_list_passes(level, passes) for level in LEVELS.values()))
        return 0
    words = [word.strip() for word in options.passes.split(",")]
    names = [word for word in words if word]
    try:
        programs = run_passes(_read(options.file), names, passes)
        texts = [
            emit_program(x, options.emit, target, gpu) if options.emit else show_program(x)
            for x in programs
        ]
    except OptionError as error:
        raise UsageError(str(error)) from error
    except (CompileError, RejectedKernel, VerifyError) as error:
        print(f"tofuse opt: {error}", file=sys.stderr)
        return 1
    print(("\n" if options.emit else f"\n{SEPARATOR}\n").join(texts))
    return 0


def _target(processor: str | None, threads: int) -> Target:
    return host_target(threads) if processor is None else PROCESSORS[processor].target(threads)


def _read(file: str) -> list[Program]:
    """Return the programs of a file. Raises UsageError if a text is none."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not a text: {error}") from error
    name = "standard input" if file == "-" else file
    programs: list[Program] = []
    lines = text.splitlines()
    starts = [0, *(k + 1 for k, line in enumerate(lines) if line == SEPARATOR)]
    for start, end in zip(starts, [*starts[1:], len(lines) + 1], strict=True):
        above = "\n" * start  # so that errors have the numbers of the file's lines
        try:
            programs.append(parse_program(above + "\n".join(lines[start : end - 1])))
        except ParseError as error:
            raise UsageError(f"{name}: {error}") from error
    return programs


def _list_passes(level: str, passes: Sequence[Pass]) -> str:
    own = [p for p in passes if p.level == level]
    width = max((len(p.name) for p in own), default=0)
    lines = [f"  {p.name.ljust(width)}  {p.summary}" for p in own] or ["  (none)"]
    return "\n".join([f"{level}:", *lines])
