"""The programs of the tutorials run, in the order of their page."""

import importlib
import re
from pathlib import Path

import pytest

TUTORIALS = sorted((Path(__file__).parents[2] / "docs" / "tutorials").glob("*.md"))
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.filterwarnings("default")  # a reader's Python prints warnings
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorial(page, tmp_path, fresh_dynamo, monkeypatch):
    programs = PROGRAM.findall(page.read_text(encoding="utf-8"))
    assert programs
    name = f"tutorial_{page.stem.replace('-', '_')}"
    path = tmp_path / f"{name}.py"
    path.write_text("\n".join(programs), encoding="utf-8")  # reports show its lines
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module(name)
