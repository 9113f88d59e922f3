"""What the bench and its workers say to each other."""

from dataclasses import dataclass


@dataclass(frozen=True)
class First:
    """Ask for the first step, which compiles."""


@dataclass(frozen=True)
class Settle:
    """Ask for a few steps that show how long a step takes and how much memory it needs."""


@dataclass(frozen=True)
class Turn:
    """Ask for so many timed steps, after an untimed one if `warm`."""

    steps: int
    warm: bool = True


Request = First | Settle | Turn


@dataclass(frozen=True)
class Ready:
    """The inputs are made; the worker waits."""


@dataclass(frozen=True)
class Compiled:
    """The first step took so long; the mean magnitude of each result tells peers that differ.

    `predicted_s` is what the cost model says of a step's regions, where the peer has one.
    """

    seconds: float
    least_bytes: int | None
    magnitudes: tuple[float, ...]
    predicted_s: float | None = None


@dataclass(frozen=True)
class Settled:
    """A step takes so long, and the process grew by so many bytes to run some."""

    seconds: float
    memory_bytes: int


@dataclass(frozen=True)
class Took:
    """The median of the timed steps."""

    seconds: float


@dataclass(frozen=True)
class Failed:
    """The worker gave up, and why."""

    reason: str


Reply = Ready | Compiled | Settled | Took | Failed
