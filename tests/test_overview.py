"""The commands of docs/overview.md print what the page shows."""

import re
import shutil
from pathlib import Path

import pytest
import torch

import tofuse
from tofuse.cli.main import main

PAGE = Path(__file__).parents[1] / "docs" / "overview.md"
BLOCK = re.compile(r"```text\n\$ (?P<command>[^\n]*)\n(?P<shown>.*?)```", re.S)
SKIPPED = "...\n"  # stands for any lines

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def dump_program(folder: Path, monkeypatch) -> None:
    """Write the texts of the page's program as `graph.txt` and `plan.txt`."""
    code = re.search(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    assert code is not None
    monkeypatch.setenv("TOFUSE_DUMP", str(folder / "dump"))
    exec(code[1], {"torch": torch, "tofuse": tofuse})
    (plan,) = (folder / "dump").glob("*_plan.txt")
    shutil.copy(plan, folder / "plan.txt")
    (graph,) = (folder / "dump").glob("*_graph.txt")
    text = re.sub(r"  # at .*", "", graph.read_text("utf-8"))
    (folder / "graph.txt").write_text(text, "utf-8")


def run(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command of the page prints, and write it where the command says."""
    words, _, target = command.partition(" > ")
    name, *arguments = words.split()
    if name == "cat":
        return Path(arguments[0]).read_text("utf-8")
    assert (name, arguments[0]) == ("tofuse", "opt")
    capsys.readouterr()
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    Path(target).write_text(printed, "utf-8")
    return printed


def test_commands_print_what_the_page_shows(tmp_path, monkeypatch, capsys):
    dump_program(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    blocks = list(BLOCK.finditer(PAGE.read_text("utf-8")))
    assert len(blocks) == 6
    for block in blocks:
        printed = run(block["command"], capsys)
        for part in filter(None, block["shown"].split(SKIPPED)):
            assert part in printed
        if SKIPPED not in block["shown"]:
            assert printed == block["shown"]
