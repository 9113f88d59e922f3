"""Errors of the user's script are printed with the user's frames first, whatever fails and when."""

import re
import sys

import pytest
import torch

from tofuse.cli.main import main

HELPER = """
def fail():
    {line}
"""
SCRIPTS = {
    "import": "import helper_module\nhelper_module.fail()\nmodel, inputs = abs, (1,)\n",
    "inputs": "from helper_module import fail\nmodel = abs\n\ndef inputs():\n    return fail()\n",
    "make": """
import torch
from helper_module import fail

class model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        fail()

inputs = ()
""",
    "call": "from helper_module import fail\n\ndef model(x):\n    return fail()\n\ninputs = (1,)\n",
    "forward": """
import torch
from helper_module import fail

class model(torch.nn.Module):
    def forward(self, x):
        return fail() + x

inputs = torch.ones(3)
""",
    "shapes": """
import torch
import helper_module

def model(x):
    return helper_module.fail() + x @ x

inputs = torch.ones(3, 4)
""",
    "run": "from helper_module import fail\nfail()\n",
}
LINES = {
    "ValueError: boom": "raise ValueError('boom')",
    "KeyError: 'absent'": "return {}['absent']",
    "ZeroDivisionError: division": "return 1 / 0",
    "TofuseError: own": "import tofuse; raise tofuse.TofuseError('own')",
    "RuntimeError: mat1 and mat2": "import torch; return torch.ones(2, 3) @ torch.ones(2, 3)",
    "BrokenPipeError: own": "raise BrokenPipeError('own')",
}
COMMANDS = {
    "explain": ["explain"],
    "bench": ["bench", "--calls", "1"],
    "background": ["bench", "--calls", "1", "-o", "background=True"],
    "trace": ["explain", "-o", "capture=trace"],
}
RUN = {"run": ["run"]} if "set_default_backend" in dir(torch.compiler) else {}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)  # a process group has set another
    yield tmp_path
    for name in ("helper_module", "failing_script"):
        sys.modules.pop(name, None)
    if RUN:
        torch.compiler.set_default_backend(None)


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("explain", "import"),
        ("bench", "inputs"),
        ("explain", "make"),
        ("explain", "call"),
        ("bench", "call"),
        ("background", "forward"),
        ("trace", "call"),
        ("explain", "forward"),
        *((name, "run") for name in RUN),
    ],
)
def test_errors_begin_with_a_frame_of_the_user(folder, capsys, fresh_dynamo, command, script, line):
    code, frames, text = run(folder, capsys, {**COMMANDS, **RUN}[command], script, LINES[line])
    assert code == 1 and line in text.splitlines()[-1]
    assert frames[0][0] == "failing_script.py" and frames[-1] == ("helper_module.py", 3)


@pytest.mark.parametrize("command", COMMANDS)
def test_errors_of_torch_begin_with_a_frame_of_the_user(folder, capsys, fresh_dynamo, command):
    code, frames, text = run(folder, capsys, COMMANDS[command], "shapes", "return 1")
    assert code == 1 and "RuntimeError: mat1 and mat2 shapes cannot be multiplied" in text
    assert frames == [("failing_script.py", 6)]


@pytest.mark.parametrize("command", ["explain", "bench", *RUN])
@pytest.mark.parametrize("broken", ["failing_script.py", "helper_module.py"])
def test_a_syntax_error_shows_its_line(folder, capsys, command, broken):
    (folder / "helper_module.py").write_text("")
    (folder / "failing_script.py").write_text("import helper_module\n")
    (folder / broken).write_text("x = 1\ny = = 2\n")
    assert main([command, str(folder / "failing_script.py")]) == 1
    text = capsys.readouterr().err
    last = ("failing_script.py", 1) if broken == "helper_module.py" else (broken, 2)
    assert frames_of(text)[0] == last and frames_of(text)[-1] == (broken, 2)
    assert "y = = 2" in text and "SyntaxError" in text.splitlines()[-1]


def test_chained_errors_are_all_shown(folder, capsys):
    line = "\n    ".join(
        ["try:", "    raise KeyError('first')", "except KeyError as e:",
         "    raise ValueError('second') from e"]
    )  # fmt: skip
    code, frames, text = run(folder, capsys, ["explain"], "call", line)
    assert code == 1 and "KeyError: 'first'" in text and "ValueError: second" in text
    assert not any("tofuse" in name for name, _ in frames)


def test_the_hook_of_the_script_is_called(folder, capsys):
    (folder / "failing_script.py").write_text(
        "import sys\nsys.excepthook = lambda *error: print('hook', error[0].__name__)\n1 // 0\n"
    )
    before = sys.excepthook
    try:
        assert main(["explain", str(folder / "failing_script.py")]) == 1
    finally:
        sys.excepthook = before
    assert capsys.readouterr().out == "hook ZeroDivisionError\n"


def run(folder, capsys, command, script, line):
    """Return the exit code, the frames (file and line) and the text that a command prints."""
    (folder / "helper_module.py").write_text(HELPER.format(line=line))
    path = folder / "failing_script.py"
    path.write_text(SCRIPTS[script])
    code = main([command[0], str(path), *command[1:]])
    text = capsys.readouterr().err
    return code, frames_of(text), text[text.index("Traceback") :]


def frames_of(text):
    found = re.findall(r'^  File "(.*)", line (\d+)', text, re.MULTILINE)
    return [(name.rpartition("/")[2], int(line)) for name, line in found]
