"""Results as a terminal table."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from benchmarks.measure import Result


def table(results: Sequence[Result], title: str) -> Table:
    """One row for each result."""
    drawn = Table(title=title, title_justify="left")
    for heading in COLUMNS:
        drawn.add_column(heading, justify="left" if heading in LEFT else "right", no_wrap=True)
    for result in results:
        drawn.add_row(*row(result))
    return drawn


def row(result: Result) -> list[Text]:
    """The cells of one result; those that are unknown stay empty."""
    cells = [Text(result.name), verdict(result)]
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


def verdict(result: Result) -> Text:
    return Text("yes", style="green") if result.right else Text("NO", style="bold red")


def complaint(result: Result) -> str:
    """Why `result` is not right, in one line."""
    if result.failure is not None:
        return f"{result.name}: {result.failure}"
    worst = result.worst
    assert worst is not None
    return f"{result.name}: {worst.what} is off by {worst.error:.2e}, allowed {worst.limit:.2e}"


def megabytes(count: int) -> str:
    return f"{count / 1e6:.1f}" if count >= 1e5 or count == 0 else f"{count / 1e6:.3f}"


def milliseconds(time: float) -> str:
    return f"{time:.2f}" if time >= 0.1 else f"{time:.4f}"


COLUMNS = (
    "seed",
    "right",
    "kernels",
    "MB moved",
    "compile ms",
    "eager ms",
    "tofuse ms",
    "speed-up",
)
LEFT = frozenset({"seed", "right"})
