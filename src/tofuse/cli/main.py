"""Parse the command line and run a command."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

import tofuse
from tofuse.cli import bench, cache, doctor, explain, inspect, opt, run
from tofuse.cli.script import UsageError
from tofuse.cli.user_error import has_user_frame, print_error
from tofuse.errors import did_you_mean

COMMANDS = {
    "explain": explain,
    "run": run,
    "bench": bench,
    "doctor": doctor,
    "cache": cache,
    "inspect": inspect,
    "opt": opt,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code.

    0: it succeeded; 1: it failed, or found a problem; 2: the arguments are wrong. An error of the
    user's code is printed, with the user's frames.
    """
    options = _parser().parse_args(argv)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except UsageError as error:
        print(f"tofuse {options.command}: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        is_own_output = options.command != "run" and not has_user_frame(error)
        if isinstance(error, BrokenPipeError) and is_own_output:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # its reader has enough
            return 0
        print_error(error)
        return 1
    return code


class _Parser(argparse.ArgumentParser):
    """Names the nearest choice for an unknown one."""

    def error(self, message: str) -> NoReturn:
        found = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        choices = re.findall(r"\w+", found[2]) if found else []
        super().error(message + (did_you_mean(found[1], choices) if found else ""))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tofuse", description="A fusing compiler for PyTorch that says why it fused, or not."
    )
    parser.add_argument("--version", action="version", version=f"tofuse {tofuse.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        summary = module.SUMMARY
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary}. {module.DETAILS}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser
