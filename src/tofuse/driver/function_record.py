"""What is known of one compiled function: findings, and which of its calls eager runs."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from torch.fx import GraphModule

from tofuse.cache.artifact import Artifact
from tofuse.cache.programs import LoadedProgram
from tofuse.capture.aot.tangent_layouts import TangentLayouts
from tofuse.capture.lower.convert import CapturedGraph
from tofuse.config import Config
from tofuse.driver.capture_record import CaptureRecord
from tofuse.driver.compiled_graph import CompiledGraph, Findings, eager_findings
from tofuse.driver.context import CompileContext, make_context
from tofuse.driver.hand_back import HandBack
from tofuse.driver.pipeline import compile_captured
from tofuse.driver.stride_variants import Strides, specialize_strides
from tofuse.report.model import GraphReport, Report
from tofuse.report.number_format import plural, show_bytes
from tofuse.report.report_text import ReportText
from tofuse.runtime.execute import CompiledPlan
from tofuse.runtime.timing import Clock
from tofuse.torch_internals.structured_trace import trace_artifact

log = logging.getLogger(__name__)


@dataclass(eq=False)
class FunctionRecord:
    """The options of a function, and what its compilations and calls have found.

    `report` receives the reports and decisions, if one is wanted; `clocks` has the clock of each
    report. `fusions` counts the fusions of all graphs. `hand_back` records which calls eager runs,
    and `capture` what Dynamo captures.
    """

    context: CompileContext
    report: Report | None = None
    clocks: list[Clock] = field(default_factory=list)
    fusions: int = 0
    hand_back: HandBack = field(default_factory=HandBack)
    capture: CaptureRecord = field(default_factory=CaptureRecord)

    @property
    def fuel(self) -> int | None:
        """The number of fusions that further graphs may make; None: any number."""
        fuel = self.context.config.fuel
        return None if fuel is None else fuel - self.fusions

    def begin_program(self, gm: GraphModule) -> None:
        """Record that Dynamo has traced a program."""
        self.capture.begin_program()
        self.hand_back.programs += 1
        reason = getattr(gm, "compile_subgraph_reason", None)
        self.hand_back.partial |= bool(getattr(reason, "graph_break", False))

    def add_graph(self, compiled: CompiledGraph) -> CompiledGraph:
        """Add what compiling a graph has found; return it, with variants if it is a backward."""
        self.add(compiled.findings)
        if compiled.tangents is None:
            return compiled
        layouts = compiled.tangents
        return self._with_strides(compiled, layouts.strides, lambda: layouts)

    def load_graphs(self, program: LoadedProgram) -> tuple[list[CompiledGraph], Findings]:
        """Return the graphs of a program that was kept on disk, and their findings."""
        loaded = [self._load_graph(run, artifact) for run, artifact in program.graphs]
        pure = not program.kind.mutated
        return loaded, sum((graph.findings for graph in loaded), Findings(pure=pure))

    def _load_graph(self, run: CompiledPlan, artifact: Artifact) -> CompiledGraph:
        """Return a graph that was kept on disk, with variants if it is a backward."""
        is_backward = artifact.plan.name == "backward"
        predictions = () if is_backward else (artifact.prediction,)
        findings = Findings(predictions=predictions, has_fixed_bits=artifact.has_fixed_bits)
        loaded = CompiledGraph(run, findings, artifact)
        if artifact.tangent_strides is None:
            return loaded
        layouts = partial(pickle.loads, artifact.tangent_layouts)
        return self._with_strides(loaded, artifact.tangent_strides, layouts)

    def _with_strides(
        self,
        backward: CompiledGraph,
        expected: Mapping[int, Strides],
        layouts: Callable[[], TangentLayouts],
    ) -> CompiledGraph:
        """Return a backward with variants for gradients of other strides."""

        def compile_backward(captured: CapturedGraph) -> CompiledPlan:
            variant = compile_captured(captured, "backward", self.context, self.fuel)
            self.fusions += variant.findings.fusions  # its report would repeat that of `backward`
            return variant.run

        arguments = backward.run, expected, layouts, compile_backward
        run = specialize_strides(*arguments, self.context, self.add_variant)
        return replace(backward, run=run)

    def add(self, findings: Findings) -> None:
        """Add findings to the report, and log them."""
        self.fusions += findings.fusions
        for graph in findings.reports:
            _log_graph(graph)
        if self.report is not None:
            self.report.graphs += findings.reports
            self.clocks += findings.clocks

    def add_fallback(self, reason: str) -> Findings:
        """Add that PyTorch runs a whole program; return it as findings."""
        log.info("PyTorch runs a whole program: %s", reason)
        findings = eager_findings(reason)
        if self.report is not None:
            self.report.graphs += findings.reports
            self.clocks += findings.clocks
        return findings

    def add_variant(self, reason: str) -> None:
        """Add why a program got another variant; show it if any stage is shown."""
        self._show(f"another variant of a program: {reason}")
        if self.report is not None:
            self.report.variants.append(reason)

    def add_decision(self, text: str) -> None:
        """Add who runs a kind of call; show it if any stage is shown."""
        self._show(text)
        if self.report is not None:
            self.report.decisions.append(text)

    def _show(self, text: str) -> None:
        log.info("%s", text)
        if self.context.config.show:
            print(f"--- tofuse: {text} ---")


def make_record(
    config: Config, report: Report | None = None, *, timed: bool = False
) -> FunctionRecord:
    """Return the record of a function that is compiled with these options.

    Raises OptionError for unknown executors, and for files and folders that cannot be used.
    """
    return FunctionRecord(make_context(config, explains=report is not None, timed=timed), report)


def _log_graph(report: GraphReport) -> None:
    """Log what a graph became; its verdicts at the level DEBUG; the report in torch's trace."""
    trace_artifact(f"tofuse_{report.phase}_report", lambda: str(ReportText(graphs=[report])))
    if not log.isEnabledFor(logging.INFO):
        return
    log.info(
        "%s: %s, %s, %s -> %s, compiled in %.1f ms",
        report.phase,
        plural(len(report.kernels), "kernel"),
        plural(len(report.library_calls), "library call"),
        show_bytes(report.bytes_before),
        show_bytes(report.bytes_after),
        report.compile_ms,
    )
    for note in report.notes:
        log.info("%s: %s", report.phase, note)
    for verdict in report.verdicts:
        log.debug("%s: %r", report.phase, verdict)
