"""Which bytes of its buffers a kernel accesses in each iteration of its outermost loop."""

from __future__ import annotations

from dataclasses import dataclass

Interval = tuple[int, int]  # from the first to the last one, which is not included


@dataclass(frozen=True)
class RowAccess:
    """The bytes of buffer number `buffer` that iterations from `first` to `end` access.

    Iteration k accesses some of the bytes from `k * step + low` to `k * step + high`.
    """

    buffer: int
    writes: bool
    first: int
    end: int
    step: int
    low: int
    high: int

    def __repr__(self) -> str:
        kind = "writes" if self.writes else "reads"
        numbers = self.first, self.end, self.step, self.low, self.high
        return f"{kind} {self.buffer} {' '.join(map(str, numbers))}"

    def bytes_of(self, iterations: Interval) -> Interval | None:
        """Return the bytes that some iterations access; None if they access none."""
        first, end = max(self.first, iterations[0]), min(self.end, iterations[1])
        if first >= end:
            return None
        return first * self.step + self.low, (end - 1) * self.step + self.high

    def iterations_of(self, accessed: Interval) -> Interval:
        """Return the iterations that access some of these bytes; `step` must be positive."""
        first = max(self.first, (accessed[0] - self.high) // self.step + 1)
        return first, min(self.end, -((self.low - accessed[1]) // self.step))


@dataclass(frozen=True)
class KernelRows:
    """The accesses of a kernel whose outermost loop threads share, without a sum over that loop.

    The outermost loop has `iterations`. In each, the other parallel loops have `inner` iterations
    in all.
    """

    iterations: int
    inner: int
    accesses: tuple[RowAccess, ...]

    def __repr__(self) -> str:
        return " ".join([f"{self.iterations} by {self.inner}", *map(repr, self.accesses)])

    def of_buffers(self, buffers: frozenset[int]) -> KernelRows:
        """Return the accesses of some buffers."""
        kept = tuple(a for a in self.accesses if a.buffer in buffers)
        return KernelRows(self.iterations, self.inner, kept)


def merged(intervals: list[Interval]) -> list[Interval]:
    """Return the union of intervals, in order; adjacent intervals become one."""
    found: list[Interval] = []
    for first, end in sorted(intervals):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        elif first < end:
            found.append((first, end))
    return found


def without(intervals: list[Interval], removed: Interval | None) -> list[Interval]:
    """Return the parts of intervals that are outside of `removed`."""
    if removed is None:
        return intervals
    parts = [(a, min(b, removed[0])) for a, b in intervals]
    parts += [(max(a, removed[1]), b) for a, b in intervals]
    return merged([(a, b) for a, b in parts if a < b])
