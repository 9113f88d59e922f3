"""Every known fault of the field has a regression test that names it."""

import ast
from pathlib import Path

# Where each fault was reported; the docstring of its test has the same text.
REFERENCES = (
    *("pytorch 82784", "pytorch 86020", "pytorch 152425", "pytorch 139789", "pytorch 133512"),
    *("pytorch 142853", "thunder 1109, 801, 1893", "pytorch 191449, 197431", "pytorch 185888"),
    *("pytorch 148073", "pytorch 142316", "csarofeen 1859", "thunder 1490, 2700"),
    *("pytorch PR 180930", "pytorch 135305, 122512, 120381", "TensorRT-LLM 6142"),
    *("pytorch 121369", "pytorch 93718", 'pytorch test_perf, "would be nice"', "pytorch 153346"),
    "pytorch 168126, 168186, 182225, 181568, 183761, 159239",
    *("The field's common complaint", "p = 0, p = 1, and eval mode", "Fields of OpInfo"),
    *("OpInfo: as eager, including the error", "Common: ", "pytorch 191330", "thunder 1251"),
    "csarofeen, bookend views",
)


def test_every_reference_has_a_test():
    docstrings = []
    for file in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                docstrings.append(ast.get_docstring(node) or "")
    missing = [r for r in REFERENCES if not any(r in text for text in docstrings)]
    assert not missing
