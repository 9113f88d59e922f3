"""Outcomes as terminal tables and lines."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from benchmarks.bench.outcome import HELD, Outcome
from benchmarks.bench.peers import PEERS, US
from benchmarks.table import milliseconds

CELL_CHARACTERS = 40  # of a reason of failure; the whole reason stands below the table


def tables(outcomes: Sequence[Outcome], peers: Sequence[str]) -> list[Table]:
    """One table for each group, in order of appearance."""
    groups = dict.fromkeys(outcome.group for outcome in outcomes)
    return [
        table(group, [outcome for outcome in outcomes if outcome.group == group], peers)
        for group in groups
    ]


def table(title: str, outcomes: Sequence[Outcome], peers: Sequence[str]) -> Table:
    """One row for each outcome; the peers are those beside us."""
    caption = legend(peers)
    drawn = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    drawn.add_column("workload", no_wrap=True)
    for heading in headings(peers):
        drawn.add_column(heading, justify="right", overflow="fold")
    drawn.add_column("bar", overflow="fold")
    for outcome in outcomes:
        drawn.add_row(outcome.workload, *cells(outcome, peers), verdict(outcome))
    return drawn


def headings(peers: Sequence[str]) -> list[str]:
    return [
        f"{SHORT[US]} ms",
        "predicted ms",
        *(f"{SHORT[name]} ms" for name in peers),
        *(f"{SHORT[name]}/ours" for name in peers),
        "share",
        "compile s",
        "memory MB",
    ]


def legend(peers: Sequence[str]) -> str:
    """What the columns with several numbers hold."""
    everyone = [SHORT[name] for name in (US, *peers)]
    compiling = [SHORT[name] for name in (US, *peers) if name in COMPILERS]
    return (
        f"compile s: {', '.join(compiling)}; memory MB: {', '.join(everyone)}; "
        "share: of the copy's bandwidth; "
        "predicted: by the machine that tofuse.calibrate() measured, else an assumed one"
    )


def cells(outcome: Outcome, peers: Sequence[str]) -> list[Text]:
    everyone = (US, *peers)
    compiling = [name for name in everyone if name in COMPILERS]
    seconds = {name: f"{f.compile_s:.2f}" for name, f in outcome.figures.items()}
    memory = {name: f"{f.memory_bytes / 1e6:.0f}" for name, f in outcome.figures.items()}
    share = outcome.share
    return [
        time(outcome, US),
        predicted(outcome),
        *(time(outcome, name) for name in peers),
        *(ratio(outcome.ratio(name)) for name in peers),
        Text("" if share is None else f"{share:.2f}"),
        Text(", ".join(seconds.get(name, "-") for name in compiling)),
        Text(", ".join(memory.get(name, "-") for name in everyone)),
    ]


def time(outcome: Outcome, peer: str) -> Text:
    """Milliseconds, or why there are none."""
    if peer in outcome.failures:
        return Text(outcome.failures[peer][:CELL_CHARACTERS], style="red")
    return Text(milliseconds(outcome.figures[peer].median_s * 1e3))


def predicted(outcome: Outcome) -> Text:
    """Milliseconds that our cost model says of a step's regions, without the calls around them."""
    seconds = outcome.figures[US].predicted_s if US in outcome.figures else None
    return Text("" if seconds is None else milliseconds(seconds * 1e3))


def ratio(value: float | None) -> Text:
    if value is None:
        return Text("")
    return Text(f"{value:.2f}x", style="green" if value >= 1.0 else "yellow")


def verdict(outcome: Outcome) -> Text:
    words = outcome.verdict()
    if not outcome.sound:
        return Text(words, style="bold red")
    return Text(words, style="green" if words == HELD else "yellow")


def line(outcome: Outcome, peers: Sequence[str]) -> Text:
    """The outcome in one line, for those who watch."""
    parts = [Text(f"{outcome.workload:<28}")]
    for name in (US, *peers):
        if name in outcome.failures:
            parts.append(Text(f"{SHORT[name]} failed", style="red"))
        else:
            parts += [Text(f"{SHORT[name]} "), time(outcome, name), Text(" ms")]
        if outcome.ratio(name) is not None and name != US:
            parts += [Text(" ("), ratio(outcome.ratio(name)), Text(")")]
        parts.append(Text("  "))
    if outcome.share is not None:
        parts.append(Text(f"share {outcome.share:.2f}  "))
    return Text.assemble(*parts, verdict(outcome))


def complaints(outcomes: Sequence[Outcome]) -> list[str]:
    """The full reason of every failure."""
    return [
        f"{outcome.workload}, {peer}: {reason}"
        for outcome in outcomes
        for peer, reason in outcome.failures.items()
    ]


def summary(outcomes: Sequence[Outcome]) -> str:
    """How many workloads hold their bars, of those that could be judged."""
    verdicts = [outcome.verdict() for outcome in outcomes if outcome.judged]
    judged = [words for words in verdicts if words]
    if not judged:
        return "no bar judged"
    text = f"{judged.count(HELD)} of {len(judged)} held every bar"
    partly = sum(words.startswith(HELD + ",") for words in judged)
    return text + (f", and {partly} every bar that was measured" if partly else "")


SHORT = {US: "ours", "eager": "eager", "inductor": "inductor", "inductor-warm": "warm"}
COMPILERS = frozenset(PEERS) - {"eager"}
