"""Our calls run without Dynamo's profiler marks; those of other backends have them."""

import threading

import pytest
import torch

import tofuse
from tofuse.torch_internals.dynamo import compiling_session

config = torch._dynamo.config
pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def half(x):
    return x * 0.5


def third(x):
    return x / 3


def count_marks(compiled, x):
    """Return the number of profiler marks of one call."""
    compiled(x)
    with torch.profiler.profile(acc_events=True) as profile:
        compiled(x)
    return sum("Pregraph bytecode" in e.name for e in profile.events())


def test_only_our_programs_have_no_marks():
    x = torch.randn(3)
    assert count_marks(tofuse.compile(half), x) == 0
    assert config.record_runtime_overhead
    assert count_marks(torch.compile(third, backend="eager"), x) == 1


def test_users_setting_is_preserved():
    with config.patch(record_runtime_overhead=False):
        tofuse.compile(half)(torch.randn(3))
        assert not config.record_runtime_overhead
    assert config.record_runtime_overhead


def test_setting_is_restored_if_compilation_fails():
    with pytest.raises(Exception, match=r"(?i)size|shape"):
        tofuse.compile(lambda x: x @ torch.randn(5, 5))(torch.randn(3, 4))
    assert config.record_runtime_overhead


def test_programs_of_other_threads_run_while_one_is_traced():
    """torch refuses a call of Dynamo's program while make_fx traces, unless it compiles."""
    x = torch.randn(3)
    compiled = tofuse.compile(half)
    compiled(x)
    results = []

    def traced(y):
        thread = threading.Thread(target=lambda: results.append(compiled(x)))
        thread.start()
        thread.join()
        return y + 1

    with compiling_session():
        torch.fx.symbolic_trace(traced)
    torch.testing.assert_close(results, [half(x)])
