"""The launches that may use a stack, move local memory, or have a low occupancy, and why."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

MIN_OCCUPANCY = 25  # percent


@dataclass(frozen=True)
class KnownLaunch:
    """What launches whose name matches may have."""

    pattern: str
    reason: str
    stack: int = 0
    local: int = 0
    occupancy: int = MIN_OCCUPANCY
    capability: int | None = None

    def covers(self, launch: str, capability: int) -> bool:
        """Return whether a launch, for a capability, is meant."""
        return self.capability in (None, capability) and fnmatchcase(launch, self.pattern)


EXCEPTIONS: tuple[KnownLaunch, ...] = ()
