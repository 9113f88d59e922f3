"""Read and rewrite text fixtures of named before/after pairs."""

from dataclasses import dataclass, replace
from pathlib import Path

ARROW = "-->"


@dataclass(frozen=True)
class Case:
    """One pair of a file; `after` is the expected result for `before`."""

    file: Path
    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file.stem}: {self.name}"


def read_cases(file: Path) -> list[Case]:
    """Return the cases of a file: `== name`, the text before, a line `-->`, the text after."""
    cases: list[Case] = []
    for block in f"\n{file.read_text(encoding='utf-8')}".split("\n== ")[1:]:
        name, _, body = block.partition("\n")
        before, arrow, after = body.partition(f"\n{ARROW}")
        assert arrow, f"{file.name}: case {name!r} has no line {ARROW!r}"
        cases.append(Case(file, name.strip(), before.strip(), after.strip()))
    return cases


def accept(case: Case, after: str) -> None:
    """Replace the text after `-->` of a case in its file."""
    cases = [replace(c, after=after) if c.name == case.name else c for c in read_cases(case.file)]
    blocks = [f"== {c.name}\n{c.before}\n{ARROW}\n{c.after}\n" for c in cases]
    case.file.write_text("\n".join(blocks), encoding="utf-8")
