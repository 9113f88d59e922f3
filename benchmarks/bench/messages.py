"""The messages between the benchmark and its workers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FirstStep:
    """Request the first step, which compiles."""


@dataclass(frozen=True)
class WarmUp:
    """Request a few steps that show the time of a step and the memory that it needs."""


@dataclass(frozen=True)
class TimedSteps:
    """Request that many timed steps, after an untimed one if `warm_up_step`."""

    steps: int
    warm_up_step: bool = True


Request = FirstStep | WarmUp | TimedSteps


@dataclass(frozen=True)
class Ready:
    """The worker has made its inputs."""


@dataclass(frozen=True)
class Compiled:
    """The time of the first step, and the mean magnitude of each result to find wrong results.

    `predicted_s` is the cost model's prediction for the regions of a step, if the peer has one.
    """

    seconds: float
    min_bytes: int | None
    magnitudes: tuple[float, ...]
    predicted_s: float | None = None


@dataclass(frozen=True)
class WarmedUp:
    """The time of a step, and the growth of the process's memory during some steps."""

    seconds: float
    memory_bytes: int


@dataclass(frozen=True)
class StepTime:
    """The median of the timed steps."""

    seconds: float


@dataclass(frozen=True)
class Failed:
    """The worker failed."""

    reason: str


Reply = Ready | Compiled | WarmedUp | StepTime | Failed
