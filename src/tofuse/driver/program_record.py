"""The record of one program of Dynamo: facts that decide whether eager runs its calls."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tofuse.cost.call_overhead import COMPILED_IS_FASTER, Faster, Prediction


@dataclass(eq=False)
class ProgramRecord:
    """The predictions for the graphs of one program, without its backward.

    `pure` is false if an effect is outside of these graphs. `has_fixed_bits` has an entry for each
    graph, including that of a backward: see `analysis/fixed_bits.py`.
    """

    predictions: list[Prediction] = field(default_factory=list)
    pure: bool = True
    has_fixed_bits: list[bool] = field(default_factory=list)

    def add_eager_graph(self, why: str) -> None:
        """Record that PyTorch runs a whole graph."""
        self.predictions.append(Prediction(Faster.EAGER, why))
        self.has_fixed_bits.append(False)

    @property
    def prediction(self) -> Prediction:
        """The prediction for the program: eager if eager is faster for each of its graphs."""
        found = {p.faster: p for p in reversed(self.predictions)}
        first = next(iter(found.values()), COMPILED_IS_FASTER)
        prediction = found.get(Faster.COMPILED) or found.get(Faster.UNKNOWN) or first
        leans = all(p.leans_to_eager or p.faster is Faster.EAGER for p in self.predictions)
        pure = self.pure and all(p.pure for p in self.predictions)
        return replace(prediction, leans_to_eager=leans, pure=pure)
