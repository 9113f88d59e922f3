"""`tofuse run script.py`: run a script whose torch.compile uses tofuse."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

import torch

from tofuse.cli.script import UsageError

SUMMARY = "run a script; tofuse is the default backend of its torch.compile"
DETAILS = """Calls that name
another backend keep it.

example:
  tofuse run train.py --epochs 3"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("script", metavar="SCRIPT", help="the script, as for python")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="arguments of the script"
    )


def run(options: argparse.Namespace) -> int:
    path = Path(options.script)
    if not path.exists():
        raise UsageError(f"there is no script {options.script!r}")
    set_default_backend = getattr(torch.compiler, "set_default_backend", None)
    if set_default_backend is None:
        raise UsageError(
            f"torch.compile of torch {torch.__version__} has no default backend to set (newer ones"
            ' have one); write torch.compile(model, backend="tofuse") in the script'
        )
    set_default_backend("tofuse")
    sys.argv = [options.script, *options.arguments]
    sys.path.insert(0, str(path.parent.resolve()))
    runpy.run_path(str(path), run_name="__main__")
    return 0
