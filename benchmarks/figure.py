"""Measures and draws the README's figure: eager, Inductor and XLA:CPU beside tofuse.

    python -m benchmarks.figure --jax /path/to/python   # one that has JAX

Contenders take turns in one run; each bar is the median of rounds.
"""

import argparse
import functools
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

import tofuse
from benchmarks.figure_programs import PROGRAMS, Step, step

ROOT = Path(__file__).parents[1]
FIGURE = ROOT / "docs" / "images" / "speed.svg"
ROUNDS, STEPS = 15, 5
PAUSE_S = 0.05  # the threads of the contender before stop spinning
COLOURS = {"eager": "#9aa5b1", "Inductor": "#d98324", "XLA:CPU": "#7b61c9", "tofuse": "#1a8f5a"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure and draw the README's figure.")
    parser.add_argument("--jax", default="", help="a Python that has JAX; without it, no XLA:CPU")
    parser.add_argument("--output", type=Path, default=FIGURE, help=f"default: {FIGURE}")
    parser.add_argument("--json", default="", help="also write the milliseconds to this file")
    options = parser.parse_args()
    worker = _start_jax(options.jax) if options.jax else None
    results = {}
    for name in PROGRAMS:
        results[name] = measure(name, worker)
        print(name, {who: f"{1e3 * s:.3g} ms" for who, s in results[name].items()}, flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(results))
    draw(results, options.output)


def measure(name: str, worker: "subprocess.Popen[str] | None") -> dict[str, float]:
    """Return the median seconds of a step of each contender."""
    torch.compiler.reset()
    steps: dict[str, Step] = {
        "eager": step(name, lambda program: program),
        "Inductor": step(name, torch.compile),
        "tofuse": step(name, tofuse.compile),
    }
    timers: dict[str, Callable[[], float]] = {
        who: functools.partial(_median_seconds, call) for who, call in steps.items()
    }
    if worker is not None:
        program, shapes, backward = PROGRAMS[name]
        request = {"program": program.__name__, "shapes": shapes, "backward": backward}
        timers["XLA:CPU"] = lambda: _ask(worker, json.dumps({**request, "steps": STEPS}))
    times: dict[str, list[float]] = {who: [] for who in timers}
    for _ in range(ROUNDS):
        for who, timer in timers.items():
            time.sleep(PAUSE_S)
            times[who].append(timer())
    return {who: statistics.median(found) for who, found in times.items()}


def _median_seconds(call: Step) -> float:
    call()
    return statistics.median(_seconds(call) for _ in range(STEPS))


def _seconds(call: Step) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _start_jax(python: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [python, "-u", str(ROOT / "benchmarks" / "figure_xla.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _ask(worker: "subprocess.Popen[str]", line: str) -> float:
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write(line + "\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def draw(results: dict[str, dict[str, float]], path: Path) -> None:
    """Draw bars of times relative to tofuse's."""
    names = list(results)[::-1]
    contenders = [who for who in COLOURS if who in results[names[0]]]
    height = 0.8 / len(contenders)
    figure, axes = plt.subplots(figsize=(8.5, 0.75 * len(names) + 0.8))
    for k, who in enumerate(contenders):
        ratios = [results[name][who] / results[name]["tofuse"] for name in names]
        places = [n + 0.4 - height * (k + 0.5) for n in range(len(names))]
        bars = axes.barh(places, ratios, height * 0.92, color=COLOURS[who], label=who)
        axes.bar_label(bars, [f"{r:.1f}" for r in ratios], padding=2, fontsize=7)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("time, as a multiple of tofuse's (shorter is faster)")
    axes.legend(loc="lower right", frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
