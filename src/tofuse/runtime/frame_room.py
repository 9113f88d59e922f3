"""Room for the calls of a function on Python's stack of frames."""

from __future__ import annotations

from types import FunctionType

FRAME_CHUNK_WORDS = 2048  # 16 KB, in CPython 3.11 and later


def with_room(function: FunctionType) -> None:
    """Give each call of a function a chunk of the stack of frames, with room for its own calls.

    CPython maps memory for a chunk when a frame does not fit into the last one, and unmaps it when
    that frame ends. Where a frame ends just before the end of a chunk, each call from it maps and
    unmaps a chunk, and interrupts the other threads for it: 10 us a call. Which callers are hit
    depends on how deep they are. A frame larger than a chunk gets a new one of twice that size.
    """
    code = function.__code__
    function.__code__ = code.replace(co_stacksize=max(code.co_stacksize, FRAME_CHUNK_WORDS))
