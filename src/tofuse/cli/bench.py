"""`tofuse bench script.py`: time a function in eager, with tofuse and with other backends."""

from __future__ import annotations

import argparse
import difflib
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.table import Table

import tofuse
from tofuse.cli.progress import progress
from tofuse.cli.script import Target, UsageError, add_target_arguments, load_target, parse_options
from tofuse.config import Option
from tofuse.driver.time_calls import timed_call
from tofuse.report.number_format import show_ratio, show_us
from tofuse.torch_internals.trees import tensor_leaves

SUMMARY = "time a function: eager, tofuse, and other backends of torch.compile"
DETAILS = """The calls alternate, and
the medians are printed. The backward is timed if a result requires grad. The exit code is 1 if
results differ from eager's by more than the tolerance of torch.testing.assert_close. Gradients are
not compared, nor results that vary from call to call, such as those of dropout.

examples:
  tofuse bench model.py
  tofuse bench train.py:loss --args "torch.randn(8, 64)" --peers inductor --calls 50"""
EAGER, OURS = "eager", "tofuse"


@dataclass(frozen=True)
class BenchRow:
    """The times of one contender: the first call, and medians of the others in microseconds.

    `equal`: whether the results are eager's; None if eager's own vary from call to call.
    """

    name: str
    first_ms: float
    forward_us: float
    backward_us: float
    equal: bool | None

    @property
    def total_us(self) -> float:
        return self.forward_us + self.backward_us


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target_arguments(parser)
    parser.add_argument(
        "--peers",
        default="",
        metavar="BACKENDS",
        help="other backends of torch.compile, separated by commas: "
        f"{', '.join(_peers())}; also those for debugging, such as aot_eager",
    )
    parser.add_argument(
        "--calls", type=int, default=21, metavar="N", help="calls of each (default: 21)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    if options.calls < 1:
        raise UsageError(f"--calls must be at least 1, not {options.calls}")
    peers = [name for text in options.peers.split(",") if (name := text.strip())]
    known = torch.compiler.list_backends(exclude_tags=())
    for name in peers:
        if name in (EAGER, OURS):
            raise UsageError(f"--peers {name}: {name} is timed in any case")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}? It has" if near else "it has"
            raise UsageError(
                f"torch.compile has no backend {name!r}; {hint} {', '.join(_peers())}, and others "
                "for debugging"
            )
    target = load_target(options.target, options.args)
    rows = measure(target, peers, options.calls, parse_options(options.option))
    if options.json:
        print(json.dumps({"name": target.name, "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        Console().print(_table(rows))
    return 1 if any(row.equal is False for row in rows) else 0


def _peers() -> list[str]:
    """Return the backends that torch.compile lists, without those for debugging."""
    return [name for name in torch.compiler.list_backends() if name not in (EAGER, OURS)]


def measure(
    target: Target, peers: list[str], calls: int, options: dict[str, Option]
) -> list[BenchRow]:
    """Time eager, tofuse and the peers, in that order."""
    contenders: dict[str, Callable[..., object]] = {EAGER: target.call}
    contenders[OURS] = tofuse.compile(target.call, **options)
    contenders |= {name: torch.compile(target.call, backend=name) for name in peers}
    first: dict[str, float] = {}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}

    def rounds() -> Iterator[None]:
        for name, call in contenders.items():
            first[name] = sum(timed_call(call, target.args, target.kwargs)) / 1e3
            yield
        for _ in range(calls):
            for name, call in contenders.items():
                times[name].append(timed_call(call, target.args, target.kwargs))
                yield

    total = len(contenders) * (1 + calls)
    for _ in progress(rounds(), f"time {target.name}", total):
        pass
    expected = _results(target.call, target, seed=0)
    varies = not _close(_results(target.call, target, seed=1), expected)
    return [
        BenchRow(
            name,
            first[name],
            statistics.median(forward for forward, _ in times[name]),
            statistics.median(backward for _, backward in times[name]),
            None if varies else _close(_results(call, target, seed=0), expected),
        )
        for name, call in contenders.items()
    ]


def _results(call: Callable[..., object], target: Target, seed: int) -> list[torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return [t.detach() for t in tensor_leaves(call(*target.args, **target.kwargs))]


def _close(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    try:
        torch.testing.assert_close(actual, expected, equal_nan=True)
    except AssertionError:
        return False
    return True


def _table(rows: list[BenchRow]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("")
    for column in ("first call", "forward", "backward", "both", "speed", "results"):
        table.add_column(column, justify="right")
    eager = rows[0].total_us
    for row in rows:
        table.add_row(
            row.name,
            f"{row.first_ms:.1f} ms",
            show_us(row.forward_us),
            show_us(row.backward_us) if row.backward_us else "",
            show_us(row.total_us),
            show_ratio(eager / row.total_us),
            RESULTS[row.equal],
        )
    return table


RESULTS = {True: "as eager", False: "differ", None: "vary in eager"}
