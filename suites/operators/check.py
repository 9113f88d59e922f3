"""Checks calls against eager: many in one program, and alone those that differ."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence

import torch

from suites.operators.calls import Call
from suites.operators.compare import compare_errors, describe_difference, show_error
from suites.operators.program import (
    Compiler,
    Outcome,
    compile_here,
    compile_with_torch,
    run_compiled,
    run_eager,
)
from tofuse.report.model import Report

Run = Callable[[Call, Compiler], Outcome]

BATCH = 32
ALONE = 3


@dataclasses.dataclass
class Findings:
    """What the calls of one case showed."""

    calls: int = 0
    left_out: int = 0
    refused: int = 0
    failures: list[str] = dataclasses.field(default_factory=list)
    as_torch: list[str] = dataclasses.field(default_factory=list)
    unconfirmed: int = 0
    graphs: int = 0
    kernels: int = 0
    library: Counter[str] = dataclasses.field(default_factory=Counter)

    @property
    def differences(self) -> int:
        """The number of calls that differ from eager or were not reached."""
        return len(self.failures) + len(self.as_torch) + self.unconfirmed

    def add_report(self, report: Report) -> None:
        self.graphs += len(report.graphs)
        self.kernels += len(report.kernels)
        self.library.update(f"{c.name}: {c.reason}" for c in report.library_calls)


@dataclasses.dataclass(frozen=True)
class Checker:
    """Checks calls with one compiler: `compiler` makes it from a report that it fills.

    The first `alone` failures are confirmed alone and described; the others are counted.
    """

    dynamic: bool = False
    alone: int = ALONE
    compiler: Callable[[Report, bool], Compiler] = compile_here

    def check(self, calls: Sequence[Call]) -> Findings:
        """Compare all calls with eager."""
        findings = Findings(calls=len(calls))
        pairs = [(call, run_eager(call)) for call in calls]
        for k, (call, outcome) in enumerate(pairs):
            if outcome.error is not None:  # its gradient may be what is missing
                plain = call.without_gradient()
                pairs[k] = plain, run_eager(plain)
        refused = [pair for pair in pairs if pair[1].error is not None]
        findings.refused = len(refused)
        for call, outcome in refused:
            if len(findings.failures) < self.alone:
                self._check_alone(call, outcome, findings)
        working = [pair for pair in pairs if pair[1].error is None]
        for k in range(0, len(working), BATCH):
            self._check_batch(working[k : k + BATCH], findings)
        return findings

    def _check_batch(self, pairs: Sequence[tuple[Call, Outcome]], findings: Findings) -> None:
        """Run the calls as one program; halve it if it raises, and run alone what differs.

        A program that raises although both of its halves pass is a failure of its own.
        """
        if len(findings.failures) >= self.alone and len(pairs) < BATCH:
            findings.unconfirmed += len(pairs)  # parts of a program that raised
            return
        if len(pairs) == 1:
            self._check_alone(*pairs[0], findings)
            return
        report = Report()
        try:
            outcomes = run_compiled([call for call, _ in pairs], self._compiler(report))
        except Exception as error:
            before = findings.differences
            middle = len(pairs) // 2
            for part in (pairs[:middle], pairs[middle:]):
                self._check_batch(part, findings)
            if findings.differences == before:
                self._record_error([call for call, _ in pairs], error, findings)
            return
        findings.add_report(report)
        for (call, expected), got in zip(pairs, outcomes, strict=True):
            difference = describe_difference(call, got, expected)
            if difference is None:
                continue
            if len(findings.failures) >= self.alone:
                findings.unconfirmed += 1
            elif not self._check_alone(call, expected, findings):
                findings.failures.append(f"{call}, among other calls only: {difference}")

    def _record_error(self, calls: Sequence[Call], error: Exception, findings: Findings) -> None:
        """Record the error of a program whose halves are both right."""
        difference = f"{calls[0]} and {len(calls) - 1} more, together only: {show_error(error)}"
        try:
            run_compiled(calls, compile_with_torch(self.dynamic))
        except Exception as torchs:
            if compare_errors(error, torchs) is None:
                findings.as_torch.append(difference)
                return
        findings.failures.append(difference)

    def check_steps(self, calls: Sequence[Call]) -> Findings:
        """Compare calls that compile a part of themselves with their argument `compiler`."""
        findings = Findings(calls=len(calls))
        for call in calls:
            torch._dynamo.reset()
            expected = run_eager(call)
            findings.refused += expected.error is not None
            self._check_alone(call, expected, findings, _run_steps)
        return findings

    def _check_alone(
        self, call: Call, expected: Outcome, findings: Findings, run: Run | None = None
    ) -> bool:
        """Compare one call with eager, and record how it fails; return whether it does.

        What torch.compile with eager's operators gives, too, is torch's own difference.
        """
        run = run or _run_alone
        report = Report()
        got = run(call, self._compiler(report))
        findings.add_report(report)
        difference = describe_difference(call, got, expected)
        if difference is None:
            return False
        torchs = run(call, compile_with_torch(self.dynamic))
        own = describe_difference(call, got, torchs) is not None
        (findings.failures if own else findings.as_torch).append(f"{call}: {difference}")
        return True

    def _compiler(self, report: Report) -> Compiler:
        return self.compiler(report, self.dynamic)


def _run_alone(call: Call, compiler: Compiler) -> Outcome:
    try:
        return run_compiled([call], compiler)[0]
    except Exception as error:
        return Outcome(error=error)


def _run_steps(call: Call, compiler: Compiler) -> Outcome:
    return run_eager(dataclasses.replace(call, kwargs={**call.kwargs, "compiler": compiler}))
