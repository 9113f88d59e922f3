"""`tofuse cache ls|clear|path`: the cache on disk."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from tofuse.config import make_config
from tofuse.disk_store import EntryKind, store_of
from tofuse.report.number_format import plural, show_bytes

SUMMARY = "show or clear the cache of compiled programs on disk"
DETAILS = """

examples:
  tofuse cache ls
  tofuse cache clear"""
ACTIONS = ("ls", "clear", "path")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=ACTIONS,
        help="ls: list the entries; clear: delete them; path: print the folder",
    )
    parser.add_argument("--dir", metavar="FOLDER", help="another folder than the user's cache")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    store = store_of(make_config({"cache_dir": options.dir} if options.dir else {}))
    if options.action == "path":
        print(json.dumps({"path": str(store.folder)}) if options.json else store.folder)
        return 0
    kinds = store.clear() if options.action == "clear" else store.kinds()
    count, nbytes = sum(k.entries for k in kinds), sum(k.nbytes for k in kinds)
    if options.json:
        print(json.dumps({"path": str(store.folder), "kinds": [asdict(k) for k in kinds]}))
    elif options.action == "clear":
        print(f"deleted {plural(count, 'file')} ({show_bytes(nbytes)}) from {store.folder}")
    else:
        _print_kinds(kinds)
        print(f"{plural(count, 'file')} ({show_bytes(nbytes)}) in {store.folder}")
    return 0


def _print_kinds(kinds: list[EntryKind]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("kind", "files", "size", "content"):
        table.add_column(column, justify="right" if column in ("files", "size") else "left")
    for k in kinds:
        table.add_row(k.name, str(k.entries), show_bytes(k.nbytes), CONTENT.get(k.name, ""))
    if kinds:
        Console().print(table)


CONTENT = {
    "capture": "captured functions",
    "choice": "what tune='measure' chose for a region",
    "code": "machine code of kernels",
    "machine": "costs that tofuse.calibrate() measured",
    "program": "compiled programs",
}
