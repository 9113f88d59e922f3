"""A condition that masks iterations of an axis."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mask:
    """A condition that masks iterations of an axis where its value is `masked_if`.

    It does if every value of `least`, a maximum over the axis, exceeds the number there.
    """

    axis: str
    condition: str
    masked_if: bool
    least: tuple[tuple[str, float], ...]

    def __repr__(self) -> str:
        negated = "" if self.masked_if else "not "
        least = "".join(f" while {name} > {number!r}" for name, number in self.least)
        return f"{self.axis} masked if {negated}{self.condition}{least}"
