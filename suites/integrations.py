"""Runs the examples of frameworks, and times a step of each: eager, tofuse and Inductor.

It writes docs/integrations.md. Run it with `--jobs 1`: it measures.
"""

import contextlib
import importlib
import io
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

import torch

from suites import harness
from suites.harness import ROOT, Result
from suites.zoo.torchvision_operators import define_missing_operators

SUITE = "integrations"
EXAMPLES = ROOT / "examples"
TEXT = ROOT / "suites" / "integrations.md"  # above the table
PAGE = ROOT / "docs" / "integrations.md"
ROUNDS, SECONDS = 5, 1.0  # steps of each contender: at least so many, and for so long
DISTRIBUTION_OF_PACKAGE = {"optimum": "optimum-quanto"}
BACKENDS = (None, "tofuse", "inductor")


def list_cases() -> list[str]:
    return sorted(path.stem for path in EXAMPLES.glob("*.py"))


def run_case(case: str) -> Result:
    """Time the first step of each contender, then steps in turn; then run the example."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    define_missing_operators()
    sys.path.insert(0, str(EXAMPLES))
    output = io.StringIO()
    example = importlib.import_module(case)
    with tempfile.TemporaryDirectory() as caches:
        os.environ["TOFUSE_CACHE_DIR"] = os.environ["TORCHINDUCTOR_CACHE_DIR"] = caches
        for compiler in ("tofuse", "inductor"):  # lazy imports
            torch.compile(torch.neg, backend=compiler)(torch.ones(2))
        steps: dict[str | None, Callable[[], object]] = {}
        first: dict[str | None, float] = {}
        for backend in BACKENDS:
            step = steps[backend] = example.step(backend)
            first[backend] = _seconds(step)
        times = _alternate(steps)
        with contextlib.redirect_stdout(output):
            example.main()
    data: dict[str, str | int | float | list[str]] = {"packages": _packages(example)}
    for backend in BACKENDS:
        data[f"{backend}_first_s"] = first[backend]
        data[f"{backend}_ms"] = 1e3 * times[backend]
    return Result(case, "ok", output.getvalue().strip().splitlines()[-1], data)


def _alternate(steps: dict[str | None, Callable[[], object]]) -> dict[str | None, float]:
    """Return the median seconds of a step of each; they take turns."""
    times: dict[str | None, list[float]] = {backend: [] for backend in steps}
    end = time.perf_counter() + SECONDS * len(steps)
    while len(times[None]) < ROUNDS or time.perf_counter() < end:
        for backend, step in steps.items():
            times[backend].append(_seconds(step))
    return {backend: statistics.median(found) for backend, found in times.items()}


def _seconds(step: Callable[[], object]) -> float:
    with contextlib.redirect_stdout(io.StringIO()):
        begin = time.perf_counter()
        step()
        return time.perf_counter() - begin


def _packages(example: ModuleType) -> list[str]:
    found = []
    for name in example.REQUIRES or ("torch",):
        name = DISTRIBUTION_OF_PACKAGE.get(name, name)
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{name.replace('_', '-')} {version(name)}")
    return found


def page(results: dict[str, Result]) -> str:
    """Return docs/integrations.md."""
    rows = [_row(results[case]) for case in list_cases() if case in results]
    passed = sum(not result.failed for result in results.values())
    lines = [
        "# Integrations",
        "",
        f"{passed} of {len(list_cases())} examples run, with eager's results.",
        "",
        *TEXT.read_text().strip().splitlines(),
        "",
        "| example | with | result | eager, ms | tofuse, ms | Inductor, ms | over eager "
        "| over Inductor | first step: tofuse, Inductor, s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def _row(result: Result) -> str:
    link = f"[{result.case}](../examples/{result.case}.py)"
    if result.failed:
        return f"| {link} | | {result.status} | | | | | | |"
    data = result.data
    eager, ours, inductor = (float(str(data[f"{b}_ms"])) for b in BACKENDS)
    packages = data["packages"]
    assert isinstance(packages, list)
    first = " / ".join(f"{float(str(data[f'{b}_first_s'])):.1f}" for b in BACKENDS[1:])
    times = f"{eager:.3g} | {ours:.3g} | {inductor:.3g}"
    ratios = f"{eager / ours:.2f} | {inductor / ours:.2f}"
    return f"| {link} | {', '.join(packages)} | {result.detail} | {times} | {ratios} | {first} |"


if __name__ == "__main__":
    harness.run_and_write_page(
        "suites.integrations", SUITE, "Run and time the examples of frameworks.", PAGE, page
    )
