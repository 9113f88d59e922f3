"""Which tiles of rows a thread runs one after the other."""

from __future__ import annotations

from tofuse.cost.thresholds import TILE_CHUNKS_PER_THREAD


def tile_chunks(count: int, threads: int) -> list[range]:
    """Return chunks of tiles, as equal as can be; threads take one after the other.

    Within a chunk, a tile finds rows that the one before has computed.
    """
    chunks = 1 if threads == 1 else min(count, threads * TILE_CHUNKS_PER_THREAD)
    return [range(count * k // chunks, count * (k + 1) // chunks) for k in range(chunks)]
