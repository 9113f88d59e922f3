"""A condition that masks iterations of an axis."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mask:
    """A condition that masks iterations of an axis where its value is `masked_if`.

    `required_maxima` pairs the name of a row's maximum over the axis with a number. The mask counts
    only in rows where each maximum exceeds its number.
    """

    axis: str
    condition: str
    masked_if: bool
    required_maxima: tuple[tuple[str, float], ...]

    def __repr__(self) -> str:
        negated = "" if self.masked_if else "not "
        least = "".join(f" while {name} > {number!r}" for name, number in self.required_maxima)
        return f"{self.axis} masked if {negated}{self.condition}{least}"
