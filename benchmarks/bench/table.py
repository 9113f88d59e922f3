"""Results of workloads as terminal tables and lines."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from benchmarks.bench.peers import OURS, PEERS
from benchmarks.bench.result import MET, WorkloadResult
from benchmarks.table import milliseconds

MAX_CELL_CHARACTERS = 40  # of a failure's reason; the full reason is printed below the table


def tables(results: Sequence[WorkloadResult], peers: Sequence[str]) -> list[Table]:
    """Return one table per group, in order of appearance."""
    groups = dict.fromkeys(result.group for result in results)
    members = {group: [r for r in results if r.group == group] for group in groups}
    return [table(group, found, _known(found, peers)) for group, found in members.items()]


def _known(results: Sequence[WorkloadResult], peers: Sequence[str]) -> list[str]:
    """Return the peers that ran some of the workloads, or failed to."""
    return [p for p in peers if any(p in r.peers or p in r.failures for r in results)]


def table(title: str, results: Sequence[WorkloadResult], peers: Sequence[str]) -> Table:
    """Return a table with one row per result; `peers` are those besides us."""
    caption = legend(peers)
    rich_table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    rich_table.add_column("workload", no_wrap=True)
    for heading in headings(peers):
        rich_table.add_column(heading, justify="right", overflow="fold")
    rich_table.add_column("target", overflow="fold")
    for result in results:
        rich_table.add_row(result.workload, *cells(result, peers), status(result))
    return rich_table


def headings(peers: Sequence[str]) -> list[str]:
    return [
        f"{SHORT[OURS]} ms",
        "predicted ms",
        *(f"{SHORT[name]} ms" for name in peers),
        *(f"{SHORT[name]}/ours" for name in peers),
        "share",
        "compile s",
        "memory MB",
    ]


def legend(peers: Sequence[str]) -> str:
    """Explain the columns."""
    all_peers = [SHORT[name] for name in (OURS, *peers)]
    compiling = [SHORT[name] for name in (OURS, *peers) if name in COMPILERS]
    return (
        f"compile s: {', '.join(compiling)}; memory MB: {', '.join(all_peers)}; "
        "share: minimum bytes / our time / copy bandwidth; "
        "predicted: by tofuse.calibrate()'s model of this machine, else by a default model"
    )


def cells(result: WorkloadResult, peers: Sequence[str]) -> list[Text]:
    """Return the cells of one result."""
    all_peers = (OURS, *peers)
    compiling = [name for name in all_peers if name in COMPILERS]
    seconds = {name: f"{p.compile_s:.2f}" for name, p in result.peers.items()}
    memory = {name: f"{p.memory_bytes / 1e6:.0f}" for name, p in result.peers.items()}
    share = result.bandwidth_share
    return [
        time(result, OURS),
        predicted(result),
        *(time(result, name) for name in peers),
        *(ratio(result.ratio(name)) for name in peers),
        Text("" if share is None else f"{share:.2f}"),
        Text(", ".join(seconds.get(name, "-") for name in compiling)),
        Text(", ".join(memory.get(name, "-") for name in all_peers)),
    ]


def time(result: WorkloadResult, peer: str) -> Text:
    """Return the milliseconds, or why there are none."""
    if peer in result.failures:
        return Text(result.failures[peer][:MAX_CELL_CHARACTERS], style="red")
    if peer not in result.peers:
        return Text("")
    return Text(milliseconds(result.peers[peer].median_s * 1e3))


def predicted(result: WorkloadResult) -> Text:
    """Return the predicted milliseconds of a step's regions, without the calls around them."""
    seconds = result.peers[OURS].predicted_s if OURS in result.peers else None
    return Text("" if seconds is None else milliseconds(seconds * 1e3))


def ratio(value: float | None) -> Text:
    if value is None:
        return Text("")
    return Text(f"{value:.2f}x", style="green" if value >= 1.0 else "yellow")


def status(result: WorkloadResult) -> Text:
    text = result.status()
    if not result.is_correct:
        return Text(text, style="bold red")
    return Text(text, style="green" if text == MET else "yellow")


def line(result: WorkloadResult, peers: Sequence[str]) -> Text:
    """Return the result in one line, to show progress."""
    parts = [Text(f"{result.workload:<28}")]
    for name in (OURS, *peers):
        if name not in result.peers and name not in result.failures:
            continue
        if name in result.failures:
            parts.append(Text(f"{SHORT[name]} failed", style="red"))
        else:
            parts += [Text(f"{SHORT[name]} "), time(result, name), Text(" ms")]
        if result.ratio(name) is not None and name != OURS:
            parts += [Text(" ("), ratio(result.ratio(name)), Text(")")]
        parts.append(Text("  "))
    if result.bandwidth_share is not None:
        parts.append(Text(f"share {result.bandwidth_share:.2f}  "))
    return Text.assemble(*parts, status(result))


def failure_messages(results: Sequence[WorkloadResult]) -> list[str]:
    """Return the full reason of every failure."""
    return [
        f"{result.workload}, {peer}: {reason}"
        for result in results
        for peer, reason in result.failures.items()
    ]


def summary(results: Sequence[WorkloadResult]) -> str:
    """Return how many of the workloads with targets meet them all."""
    statuses = [result.status() for result in results if result.has_targets]
    known = [text for text in statuses if text]
    if not known:
        return "no targets were measured"
    text = f"{known.count(MET)} of {len(known)} meet every target"
    partial = sum(text.startswith(MET + ",") for text in known)
    return text + (f", and {partial} every target that was measured" if partial else "")


SHORT = {
    OURS: "ours",
    "eager": "eager",
    "inductor": "inductor",
    "inductor-warm": "warm",
    "inductor-max": "max",
    "operator": "operator",
}
COMPILERS = frozenset(PEERS) - {"eager", "operator"}
