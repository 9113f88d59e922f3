"""Find the fusion that breaks a check, by compiling with fewer and fewer of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch.utils._pytree import tree_leaves

from tofuse.config import Config, Option, make_config
from tofuse.driver.compile import compile_reporting
from tofuse.errors import VerifyError
from tofuse.ir.executor import KERNELS, LIBRARY
from tofuse.ir.region import Verdict
from tofuse.report.model import Report
from tofuse.report.repro import write_fusion_repro

R = TypeVar("R")


@dataclass(frozen=True)
class Culprit:
    """The fusion without which a check passes.

    `number` counts the fusions up to and with it; `region` and `ops` are the kernel it made;
    `repro` is a file that runs the program's graph with and without it.
    """

    verdict: Verdict
    number: int
    phase: str
    region: str
    ops: tuple[str, ...]
    repro: Path | None

    def __str__(self) -> str:
        line = f"\n    {self.verdict.loc.code}" if self.verdict.loc else ""
        at = f"\n  {self.repro} shows it again" if self.repro else ""
        return (
            f"fusion {self.number} breaks the check, in the {self.phase}: {self.verdict!r}{line}\n"
            f"  it is in kernel {self.region}: {' '.join(self.ops)}{at}"
        )


def bisect(
    target: Callable[..., R],
    inputs: Sequence[object],
    check: Callable[[R], object],
    *,
    repro: str | Path | None = None,
    **options: Option,
) -> Culprit | None:
    """The fusion that breaks a check; None where the check passes with all of them.

    `check` gets the result of `target(*inputs)`; it fails where it gives False, or a tensor that
    is, or raises AssertionError. It may run the backward: fusions of that count too. Each time
    the inputs, and a module's parameters and buffers, are as they were, their `.grad` is None, and
    random numbers start anew. `repro` is a folder for a file that shows the fusion's effect again.
    The culprit is printed and returned.

    Raises VerifyError where the check fails without any fusion too.
    """
    _check_arguments(target, inputs, check)
    trial = _Trial(target, inputs, check, make_config(options | {"fuel": None}))
    passes, report = trial.run(None)
    if passes:
        return None
    if not trial.run(0)[0]:
        raise VerifyError(f"the check fails without any fusion too; {trial.suspect()}")
    good, bad = 0, len(report.fusions)
    while bad - good > 1:
        middle = (good + bad) // 2
        passes, found = trial.run(middle)
        good, bad, report = (middle, bad, report) if passes else (good, middle, found)
    culprit = _culprit(report, bad, None if repro is None else Path(repro))
    print(culprit)
    return culprit


def _check_arguments(target: object, inputs: object, check: object) -> None:
    if not callable(target):
        raise TypeError(f"bisect takes a function or a module, not {target!r}")
    if not isinstance(inputs, Sequence):
        kind = type(inputs).__name__
        raise TypeError(f"bisect takes the inputs in a list, such as [x], not a {kind}")
    if not callable(check):
        raise TypeError(f"bisect takes a function that checks a result, not {check!r}")


@dataclass(frozen=True)
class _Trial:
    """Compiles with some fuel, runs, and checks."""

    target: Callable[..., object]
    inputs: Sequence[object]
    check: Callable[..., object]
    config: Config

    def run(self, fuel: int | None) -> tuple[bool, Report]:
        tensors = self.tensors()
        before = [t.detach().clone() for t in tensors]
        gradients = [t.grad if t.is_leaf else None for t in tensors]
        for t in tensors:
            t.grad = None
        compiled, report = compile_reporting(self.target, replace(self.config, fuel=fuel))
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                return self.passes(compiled(*self.inputs)), report
        finally:
            for t, old, gradient in zip(tensors, before, gradients, strict=True):
                t.grad = gradient
                if not torch.equal(t.detach(), old):
                    t.detach().copy_(old)

    def suspect(self) -> str:
        """What to do where no fusion is at fault."""
        theirs = [n for n in self.config.executors if n not in (KERNELS, LIBRARY)]
        ours = tuple(n for n in self.config.executors if n not in theirs)
        alone = replace(self, config=replace(self.config, executors=ours or (LIBRARY,)))
        if theirs and alone.run(0)[0]:
            return f"it passes without {', '.join(map(repr, theirs))} among the executors"
        return "compile with verify=True to hold each kernel against the reference"

    def tensors(self) -> list[torch.Tensor]:
        """What a run may write to: the inputs, and what a module holds."""
        found = [t for t in tree_leaves(self.inputs) if isinstance(t, torch.Tensor)]
        owner = getattr(self.target, "__self__", self.target)  # of a method
        if isinstance(owner, torch.nn.Module):
            found += [*owner.parameters(), *owner.buffers()]
        return found

    def passes(self, result: object) -> bool:
        try:
            answer = self.check(result)
            return answer is None or bool(answer)
        except AssertionError:
            return False


def _culprit(report: Report, number: int, folder: Path | None) -> Culprit:
    fuel, graphs = number, iter(report.graphs)
    graph = next(graphs)
    while fuel > len(graph.fusions):
        fuel -= len(graph.fusions)
        graph = next(graphs)
    verdict = graph.fusions[fuel - 1]
    region = next(r for r in graph.regions if verdict.consumer in r.values)
    path = None
    if folder is not None:
        path = write_fusion_repro(graph.graph, fuel, repr(verdict), folder)
    return Culprit(verdict, number, graph.phase, region.name, region.ops, path)
