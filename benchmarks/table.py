"""Results of seed programs as a terminal table."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from benchmarks.measure import Result


def table(results: Sequence[Result], title: str) -> Table:
    """Return a table with one row per result."""
    rich_table = Table(title=title, title_justify="left")
    for heading in COLUMNS:
        rich_table.add_column(heading, justify="left" if heading in LEFT else "right", no_wrap=True)
    for result in results:
        rich_table.add_row(*row(result))
    return rich_table


def row(result: Result) -> list[Text]:
    """Return the cells of one result; unknown cells are omitted."""
    cells = [Text(result.name), correctness_cell(result)]
    if result.cost is None:
        return cells
    cost = result.cost
    faster = cost.speedup >= 1.0
    return [
        *cells,
        Text(f"{cost.kernels_before} → {cost.kernels_after}"),
        Text(f"{megabytes(cost.bytes_before)} → {megabytes(cost.bytes_after)}"),
        Text(f"{cost.compile_ms:.1f}"),
        Text(milliseconds(cost.eager_ms)),
        Text(milliseconds(cost.tofuse_ms)),
        Text(f"{cost.speedup:.2f}x", style="green" if faster else "yellow"),
    ]


def correctness_cell(result: Result) -> Text:
    return Text("yes", style="green") if result.is_correct else Text("NO", style="bold red")


def failure_message(result: Result) -> str:
    """Return in one line why a result is not correct."""
    if result.failure is not None:
        return f"{result.name}: {result.failure}"
    worst = result.worst
    assert worst is not None
    return (
        f"{result.name}: {worst.tensor} has an error of {worst.error:.2e}, limit {worst.limit:.2e}"
    )


def megabytes(count: int) -> str:
    return f"{count / 1e6:.1f}" if count >= 1e5 or count == 0 else f"{count / 1e6:.3f}"


def milliseconds(time: float) -> str:
    return f"{time:.2f}" if time >= 0.1 else f"{time:.4f}"


COLUMNS = (
    "seed",
    "correct",
    "kernels",
    "MB moved",
    "compile ms",
    "eager ms",
    "tofuse ms",
    "speed-up",
)
LEFT = frozenset({"seed", "correct"})
