"""Times in a report, and the limits of the machine that they are compared with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TimeSpan:
    """The begin and end, in nanoseconds, of a compilation stage or of a region's run."""

    name: str
    begin: int
    end: int

    @property
    def us(self) -> float:
        return (self.end - self.begin) / 1e3


@dataclass(frozen=True)
class CallTimes:
    """Median microseconds of whole calls, eager and compiled, over `rounds` calls of each."""

    rounds: int
    eager_forward: float
    eager_backward: float
    forward: float
    backward: float

    @property
    def eager(self) -> float:
        return self.eager_forward + self.eager_backward

    @property
    def ours(self) -> float:
        return self.forward + self.backward


@dataclass(frozen=True)
class MachineLimits:
    """Measured peak rates: bytes per second of a copy, operations per second of a product."""

    bandwidth: float
    arithmetic: float
