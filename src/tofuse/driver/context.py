"""The compile context: what one call of `tofuse.compile` hands down to all of its compilations."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch.fx import GraphModule

from tofuse.backends.code_library import CodeLibrary
from tofuse.backends.cpu.llvm.load import CODE, host_target
from tofuse.backends.cpu.runtime.launch import find_vector_library
from tofuse.capture.dynamo.capture_errors import OUT_OF_MEMORY
from tofuse.capture.fx.location import source_location
from tofuse.capture.lower.executor_claims import ClaimPredicate, claim_nothing
from tofuse.config import Config
from tofuse.cost.machine_source import check_machine
from tofuse.driver.capture_record import CaptureRecord
from tofuse.driver.hand_back import HandBack
from tofuse.driver.program_record import ProgramRecord
from tofuse.errors import (
    CompileError,
    OptionError,
    TofuseError,
    TofuseWarning,
    first_line,
    message_of,
)
from tofuse.executors import executors_of
from tofuse.ir.executor import Request
from tofuse.ir.schedule import Target
from tofuse.report.model import GraphReport
from tofuse.report.number_format import plural, show_bytes
from tofuse.report.report_text import ReportText
from tofuse.runtime.timing import Clock
from tofuse.torch_internals.structured_trace import trace_artifact

log = logging.getLogger(__name__)

# receives the report of a graph; may return a clock that times the plan's steps
ReportSink = Callable[[GraphReport], "Clock | None"]


def discard_report(report: object) -> None:
    """Discard a report, or the reason for a variant."""


@dataclass
class Fuel:
    """The number of fusions that the graphs of a function may still make; None: any number."""

    remaining: int | None


@dataclass(frozen=True, eq=False)
class CompileContext:
    """The options of one call of `tofuse.compile`, and what follows from them.

    `claims` are the calls that capture must not decompose. `sink` receives the report of each
    graph, `variants` the reason for each variant of a program, and `decisions` whether eager or
    compiled code runs a program. `target` returns the processor to generate code for, from the
    number of threads, which is torch's at the time of each compilation; `library` receives the
    machine code, `hand_back` records which calls eager runs, and `record` what Dynamo captures.
    `program` is the record of the program that is compiled. With `capture_only`, programs are
    compiled with their backward, and calling one raises `Captured`.
    """

    config: Config
    claims: ClaimPredicate
    sink: ReportSink
    variants: Callable[[str], None]
    decisions: Callable[[str], None]
    fuel: Fuel
    target: Callable[[int], Target]
    library: CodeLibrary
    hand_back: HandBack
    record: CaptureRecord
    program: ProgramRecord = field(default_factory=ProgramRecord)
    capture_only: bool = False

    @property
    def decides(self) -> bool:
        """Whether eager may run calls: not if each call is to be looked into, or measured."""
        config = self.config
        looked_into = config.verify or config.tune == "measure" or config.fuel is not None
        return config.hand_back and not looked_into

    @property
    def reports(self) -> bool:
        """Whether the report of each graph is wanted, so that each graph must be compiled."""
        return self.sink is not discard_report

    @property
    def current_config(self) -> Config:
        """The options with the fuel that is left."""
        return replace(self.config, fuel=self.fuel.remaining)

    def report(self, report: GraphReport) -> Clock | None:
        """Hand over the report of a graph, and count its fusions."""
        if self.fuel.remaining is not None:
            self.fuel.remaining -= len(report.fusions)
        _log_graph(report)
        return self.sink(report)

    def report_variant(self, reason: str) -> None:
        """Record why a program got another variant; show it if any stage is shown."""
        log.info("another variant of a program: %s", reason)
        if self.config.show:
            print(f"--- tofuse: another variant of a program: {reason} ---")
        self.variants(reason)

    def report_decision(self, text: str) -> None:
        """Report who runs a kind of call; show it if any stage is shown."""
        log.info("%s", text)
        if self.config.show:
            print(f"--- tofuse: {text} ---")
        self.decisions(text)

    def report_fallback(self, reason: str) -> None:
        """Report that PyTorch runs a whole program."""
        log.info("PyTorch runs a whole program: %s", reason)
        self.program.add_eager_graph(f"PyTorch runs the whole program: {reason}")
        self.sink(GraphReport("inference", notes=(f"PyTorch runs the whole program: {reason}",)))

    def raise_if_fatal(self, error: Exception) -> None:
        """Raise an error of compilation under `strict`, or if memory was missing.

        Missing memory says nothing of later calls: the next one compiles.
        """
        if self.config.strict or isinstance(error, OUT_OF_MEMORY):
            raise error

    def fall_back(self, error: Exception, gm: GraphModule) -> None:
        """Warn and report that PyTorch runs a whole program, or raise a fatal error."""
        strict = self.config.strict
        reason = message_of(error) if strict else first_line(error)
        if not isinstance(error, TofuseError) and str(error).strip():
            reason = f"{type(error).__name__}: {reason}"
        lines = (loc for n in gm.graph.nodes if (loc := source_location(n)) is not None)
        where = next((f" (from {loc!r})" for loc in lines), "")
        if strict and not isinstance(error, (CompileError, *OUT_OF_MEMORY)):
            raise CompileError(f"a program{where} does not compile: {reason}") from error
        self.raise_if_fatal(error)
        message = f"tofuse runs a whole program{where} through PyTorch: {reason}"
        warnings.warn(message, TofuseWarning, stacklevel=2)
        self.report_fallback(reason)


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


def make_context(
    config: Config,
    sink: ReportSink = discard_report,
    variants: Callable[[str], None] = discard_report,
    decisions: Callable[[str], None] = discard_report,
) -> CompileContext:
    """Return the context for these options.

    Raises OptionError for unknown executors, and for files and folders that cannot be used.
    """
    claims = _claims(config)
    check_machine(config)
    try:
        if config.dump is not None:
            config.dump.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise OptionError(f"dump={str(config.dump)!r} is not a writable folder: {e}") from e
    return CompileContext(
        config,
        claims,
        sink,
        variants,
        decisions,
        Fuel(config.fuel),
        host_target,
        CODE,
        HandBack(),
        CaptureRecord(),
    )


def _claims(config: Config) -> ClaimPredicate:
    """Return whether a call is claimed.

    Executors before our kernels claim their operators, PyTorch the calls that our kernels reject.
    An operator whose function the vector library does not export is claimed on the CPU, because
    PyTorch has to run it.
    """
    executors = executors_of(config)
    missing = frozenset(
        f"aten.{f}.default" for f in CODE.bind_vector_library(find_vector_library())
    )

    def claims(request: Request) -> bool:
        is_missing = request.target in missing and all(t.device == "cpu" for t in request.inputs)
        return is_missing or executors.claims(request)

    return claims if missing or executors.may_claim else claim_nothing
