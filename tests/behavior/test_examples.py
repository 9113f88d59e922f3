"""Every example runs, with eager's results."""

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SITE = ROOT / ".venv-frameworks"  # made by `make test`


def required(path):
    """The packages that an example needs, without importing it."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "REQUIRES":
            return ast.literal_eval(node.value)
    raise AssertionError(f"{path} has no REQUIRES")


def is_installed(package):
    return importlib.util.find_spec(package) is not None or (SITE / package).is_dir()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path):
    if missing := [name for name in required(path) if not is_installed(name)]:
        pytest.skip(f"without {', '.join(missing)}")
    folders = [str(ROOT / "src"), str(SITE), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout


def test_each_example_gives_a_step_of_any_backend():
    for path in EXAMPLES:
        tree = ast.parse(path.read_text())
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert {"step", "main"} <= names, path
