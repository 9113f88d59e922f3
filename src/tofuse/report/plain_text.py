"""Plain text of what prints in colour on a terminal."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType

WIDTH = 110  # of plain text; a terminal's own width is used under `rich.print`


class PrintsAsText:
    """Prints as text, and in colour under `rich.print`; `__rich__` gives the content."""

    def __rich__(self) -> RenderableType:
        raise AssertionError("each report defines its content")

    def __str__(self) -> str:
        return plain_text(self)

    def __repr__(self) -> str:
        return plain_text(self)


def plain_text(content: RenderableType) -> str:
    """Return the content as text without colours."""
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(content, highlight=False)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
