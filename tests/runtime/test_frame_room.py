"""A plan of many calls maps no memory for the frames of each call, wherever it is called from."""

import resource
import sys
from collections.abc import Callable
from types import FunctionType

import pytest

from tofuse.runtime.frame_room import with_room

CALLS, MAX_FAULTS = 100, 20


def caller() -> FunctionType:
    """Return a function that makes `CALLS` calls of Python functions."""
    scope: dict[str, FunctionType] = {}
    exec("def launch(*words):\n  return words", scope)
    launch = scope["launch"]
    launch.__code__ = launch.__code__.replace(co_stacksize=100)
    exec("def run():\n" + "  launch(1, 2, 3)\n" * CALLS, scope)
    return scope["run"]


def most_faults(run: Callable[[], object]) -> int:
    """Return the most page faults of a call, of calls from stacks of many depths."""

    def call(depth: int) -> int:
        if depth:
            return call(depth - 1)
        run()
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        run()
        return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

    return max(map(call, range(300)))


@pytest.mark.skipif(sys.platform != "linux", reason="page faults of a thread are counted on Linux")
def test_calls_from_any_depth_map_no_memory():
    plain, roomy = caller(), caller()
    with_room(roomy)
    assert roomy() == plain()
    assert most_faults(roomy) <= MAX_FAULTS
    if sys.version_info[:2] in ((3, 11), (3, 12), (3, 13)):  # where the test can fail
        assert most_faults(plain) >= CALLS
