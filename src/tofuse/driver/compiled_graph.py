"""What a compilation returns: a callable, the program as data, and what it has found."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tofuse.analysis.fixed_bits import has_fixed_bits
from tofuse.cache.artifact import Artifact
from tofuse.capture.aot.tangent_layouts import TangentLayouts
from tofuse.cost.call_overhead import COMPILED_IS_FASTER, Faster, Prediction
from tofuse.ir.graph import Graph
from tofuse.report.model import GraphReport
from tofuse.runtime.execute import CompiledPlan
from tofuse.runtime.timing import Clock


@dataclass(frozen=True, eq=False)
class Findings:
    """What compiling some graphs has found; the sum is that of all of them.

    `clocks` has an entry for each report. `predictions` are those of all graphs but backwards.
    `pure` is false if the program has effects that no graph shows. `has_fixed_bits`: no schedule
    changes the bits of a result, see `analysis/fixed_bits.py`.
    """

    reports: tuple[GraphReport, ...] = ()
    clocks: tuple[Clock, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    pure: bool = True
    has_fixed_bits: bool = True

    def __add__(self, other: Findings) -> Findings:
        return Findings(
            self.reports + other.reports,
            self.clocks + other.clocks,
            self.predictions + other.predictions,
            self.pure and other.pure,
            self.has_fixed_bits and other.has_fixed_bits,
        )

    @property
    def fusions(self) -> int:
        """The number of fusions. A fusion takes one unit of fuel."""
        return sum(len(report.fusions) for report in self.reports)

    @property
    def prediction(self) -> Prediction:
        """The prediction for the program: compiled, if for any graph; else unknown; else eager."""
        found = {p.faster: p for p in reversed(self.predictions)}
        first = next(iter(found.values()), COMPILED_IS_FASTER)
        prediction = found.get(Faster.COMPILED) or found.get(Faster.UNKNOWN) or first
        leans = all(p.leans_to_eager or p.faster is Faster.EAGER for p in self.predictions)
        pure = self.pure and all(p.pure for p in self.predictions)
        return replace(prediction, leans_to_eager=leans, pure=pure)


@dataclass(frozen=True, eq=False)
class CompiledGraph:
    """A compiled graph: as a callable, what was found, and as data if it consists of data.

    `tangents` are there to compile a backward again for gradients with other strides.
    """

    run: CompiledPlan
    findings: Findings = Findings()
    artifact: Artifact | None = None
    tangents: TangentLayouts | None = None


def graph_findings(report: GraphReport, prediction: Prediction, captured: Graph) -> Findings:
    """Return the findings for one compiled graph, which was captured as given."""
    predictions = () if report.phase == "backward" else (prediction,)
    fixed = has_fixed_bits(captured)
    return Findings((report,), (Clock(),), predictions, has_fixed_bits=fixed)


def eager_findings(reason: str, phase: str = "inference", what: str = "program") -> Findings:
    """Return the findings for a program or a graph that PyTorch runs as a whole."""
    why = f"PyTorch runs the whole {what}: {reason}"
    report = GraphReport(phase, notes=(why,))
    prediction = Prediction(Faster.EAGER, why)
    return Findings((report,), (Clock(),), (prediction,), has_fixed_bits=False)
