"""The command line: help, exit codes, and errors of one sentence."""

import json
import subprocess
import sys

import pytest
import torch

import tofuse
from tofuse.cli.main import COMMANDS, main


def run(*words):
    """Run a command in a process of its own; return its exit code, output and errors."""
    command = [sys.executable, "-m", "tofuse", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


def test_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["--version"])
    assert exit.value.code == 0
    assert capsys.readouterr().out == f"tofuse {tofuse.__version__}\n"


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=str)
def test_help_describes_each_command_and_argument(capsys, command):
    with pytest.raises(SystemExit) as exit:
        main([*command, "--help"])
    assert exit.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: tofuse")
    assert all(name in text for name in (COMMANDS if not command else ["-h, --help"]))


@pytest.mark.parametrize("words", [[], ["fuse"], ["cache"], ["cache", "rm"], ["explain"]], ids=str)
def test_wrong_words_are_a_usage_error(capsys, words):
    with pytest.raises(SystemExit) as exit:
        main(words)
    assert exit.value.code == 2
    assert "usage: tofuse" in capsys.readouterr().err


def test_python_m_runs_it(tmp_path):
    code, output, errors = run("cache", "path", "--dir", tmp_path)
    assert (code, output, errors) == (0, f"{tmp_path}\n", "")


def test_a_missing_script_is_one_sentence_and_code_2(tmp_path):
    code, output, errors = run("explain", tmp_path / "absent.py:f")
    assert (code, output) == (2, "")
    assert errors == f"tofuse explain: there is no script '{tmp_path}/absent.py'\n"


def test_inspect_prints_what_a_file_holds(tmp_path, capsys):
    path = tmp_path / "model.tofuse"
    tofuse.export(torch.nn.Linear(4, 3), (torch.randn(5, 4),), path, dynamic=True)
    assert main(["inspect", str(path), "--plan"]) == 0
    text = capsys.readouterr().out
    assert "Linear: forward\n" in text and "input: float32[s" in text and "plan inference(" in text
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"][0]["name"] == "weight"
    path.write_text("nothing")
    assert main(["inspect", str(path)]) == 2
    assert "not a program exported by tofuse" in capsys.readouterr().err
