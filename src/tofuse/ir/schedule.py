"""Schedule: the order, tiles, threads and vectors of a kernel's loops, as printable data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Loop:
    """One loop. With `strip`, it steps over tiles of that many elements; another loop of the same
    axis, further in, then runs inside a tile."""

    axis: str
    strip: int = 0

    def __repr__(self) -> str:
        return f"{self.axis}/{self.strip}" if self.strip else self.axis


@dataclass(frozen=True)
class Schedule:
    """Loops from the outermost in. The first `parallel` are shared out among threads; the last is
    run in vectors of `vector` lanes, `unroll` of them at a time."""

    loops: tuple[Loop, ...]
    parallel: int
    vector: int
    unroll: int

    def __repr__(self) -> str:
        order = " ".join(map(repr, self.loops))
        return (
            f"order {order}; parallel {self.parallel}; vector {self.vector}; unroll {self.unroll}"
        )


@dataclass(frozen=True)
class Target:
    """What a backend generates for: lanes of 4 bytes in a vector, threads, bytes of L2 a core,
    whether it has AVX-512, whether matrix products of ours are faster than PyTorch's, and how many
    floats a register of the machine itself holds."""

    lanes: int
    threads: int
    l2_bytes: int = 1 << 20
    avx512: bool = False
    products: bool = False
    native: int = 16


def parse_schedule(text: str) -> Schedule:
    """Read what `repr` wrote."""
    parts = dict(p.strip().partition(" ")[::2] for p in text.split(";"))
    loops = []
    for word in parts["order"].split():
        axis, _, strip = word.partition("/")
        loops.append(Loop(axis, int(strip or 0)))
    return Schedule(
        tuple(loops), int(parts["parallel"]), int(parts["vector"]), int(parts["unroll"])
    )
