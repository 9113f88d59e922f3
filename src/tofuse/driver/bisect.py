"""Bisect a failing check: find the fusion that breaks it by a binary search over the fuel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch

from tofuse.config import Config, Option, make_config
from tofuse.driver.compile import compile_reporting
from tofuse.errors import VerifyError
from tofuse.ir.executor import KERNELS, LIBRARY
from tofuse.ir.region import Verdict
from tofuse.report.model import Report
from tofuse.report.repro import write_fusion_repro
from tofuse.torch_internals.trees import tensor_leaves

R = TypeVar("R")


@dataclass(frozen=True)
class Culprit:
    """The fusion that breaks a check.

    `number` is its position among all fusions, from 1. `region` and `ops` describe the kernel that
    contains it. `repro` is a script that runs the program's graph with and without it.
    """

    verdict: Verdict
    number: int
    phase: str
    region: str
    ops: tuple[str, ...]
    repro: Path | None

    def __str__(self) -> str:
        line = f"\n    {self.verdict.loc.code}" if self.verdict.loc else ""
        repro = f"\n  {self.repro} reproduces it" if self.repro else ""
        return (
            f"fusion {self.number} breaks the check, in the {self.phase}: {self.verdict!r}{line}\n"
            f"  it is in kernel {self.region}: {' '.join(self.ops)}{repro}"
        )


def bisect(
    target: Callable[..., R],
    inputs: Sequence[object],
    check: Callable[[R], object],
    *,
    repro: str | Path | None = None,
    **options: Option,
) -> Culprit | None:
    """Find the fusion that breaks a check; print and return it. None if the check passes.

    `check` gets the result of `target(*inputs)`. It fails if it returns False or a false tensor,
    or raises AssertionError. It may run the backward; fusions in the backward are searched, too.
    Before each trial, the inputs and a module's parameters and buffers are restored, their `.grad`
    is set to None, and the random seed is reset. With a folder `repro`, a script that reproduces
    the fusion's effect is written to it.

    Raises VerifyError if the check fails even without any fusion.
    """
    _check_arguments(target, inputs, check)
    trial = _Trial(target, inputs, check, make_config(options | {"fuel": None}))
    passes, report = trial.run(None)
    if passes:
        return None
    if not trial.run(0)[0]:
        raise VerifyError(f"the check fails even without any fusion; {trial.advice()}")
    good, bad = 0, len(report.fusions)
    while bad - good > 1:
        middle = (good + bad) // 2
        passes, trial_report = trial.run(middle)
        good, bad, report = (middle, bad, report) if passes else (good, middle, trial_report)
    culprit = _make_culprit(report, bad, None if repro is None else Path(repro))
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
    """Compiles the target with some fuel, runs it, and checks its result."""

    target: Callable[..., object]
    inputs: Sequence[object]
    check: Callable[..., object]
    config: Config

    def run(self, fuel: int | None) -> tuple[bool, Report]:
        tensors = self._mutable_tensors()
        originals = [t.detach().clone() for t in tensors]
        gradients = [t.grad if t.is_leaf else None for t in tensors]
        for t in tensors:
            t.grad = None
        compiled, report = compile_reporting(self.target, replace(self.config, fuel=fuel))
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                return self._passes(compiled(*self.inputs)), report
        finally:
            for t, original, gradient in zip(tensors, originals, gradients, strict=True):
                t.grad = gradient
                if not torch.equal(t.detach(), original):
                    t.detach().copy_(original)

    def advice(self) -> str:
        """Return what to do if the check fails without any fusion."""
        registered = [n for n in self.config.executors if n not in (KERNELS, LIBRARY)]
        others = tuple(n for n in self.config.executors if n not in registered)
        trial = replace(self, config=replace(self.config, executors=others or (LIBRARY,)))
        if registered and trial.run(0)[0]:
            return f"it passes without {', '.join(map(repr, registered))} among the executors"
        return "compile with verify=True to compare each kernel with the reference"

    def _mutable_tensors(self) -> list[torch.Tensor]:
        """Return the tensors that a run may write: inputs, parameters and buffers."""
        tensors = tensor_leaves(self.inputs)
        owner = getattr(self.target, "__self__", self.target)  # a method's module
        if isinstance(owner, torch.nn.Module):
            tensors += [*owner.parameters(), *owner.buffers()]
        return tensors

    def _passes(self, result: object) -> bool:
        try:
            outcome = self.check(result)
            return outcome is None or bool(outcome)
        except AssertionError:
            return False


def _make_culprit(report: Report, number: int, folder: Path | None) -> Culprit:
    fuel, graphs = number, iter(report.graphs)
    graph = next(graphs)
    while fuel > len(graph.fusions):
        fuel -= len(graph.fusions)
        graph = next(graphs)
    verdict = graph.fusions[fuel - 1]
    region = next(r for r in graph.regions if verdict.consumer in r.values)
    path = None
    if folder is not None:
        path = write_fusion_repro(graph.partition.graph, fuel, repr(verdict), folder)
    return Culprit(verdict, number, graph.phase, region.name, region.ops, path)
