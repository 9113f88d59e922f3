"""Dynamo's profiler marks and guard timing are off for our programs and on for other backends."""

import logging

import pytest
import torch
from torch._dynamo import guards

import tofuse
from tofuse.api import dynamo_backend

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
config = torch._dynamo.config


def count_marks(compiled, x):
    """Return the number of profiler marks of one call."""
    compiled(x)
    with torch.profiler.profile(acc_events=True) as profile:
        compiled(x)
    return sum("Pregraph bytecode" in e.name for e in profile.events())


def half(x):
    return x * 0.5


def third(x):
    return x / 3


def test_only_our_programs_have_no_marks():
    x = torch.randn(3)
    assert count_marks(tofuse.compile(half), x) == 0
    assert config.record_runtime_overhead
    assert count_marks(torch.compile(third, backend="eager"), x) == 1


@pytest.mark.parametrize("level", [logging.WARNING, logging.DEBUG])
def test_guards_are_timed_only_with_the_debug_log(level, monkeypatch):
    timed = []

    def profile_guard_manager(*args):
        timed.append(args)
        return 0.0

    monkeypatch.setattr(guards, "profile_guard_manager", profile_guard_manager)
    monkeypatch.setattr(guards.guards_log, "isEnabledFor", lambda at: at >= level)
    tofuse.compile(half)(torch.randn(3))
    assert len(timed) == (level == logging.DEBUG)
    torch.compile(third, backend="eager")(torch.randn(3))
    assert len(timed) == 1 + (level == logging.DEBUG)


def test_setting_is_restored_if_compilation_fails():
    def broken(x):
        return x @ torch.randn(5, 5)

    with pytest.raises(Exception, match=r"(?i)size|shape"):
        tofuse.compile(broken)(torch.randn(3, 4))
    torch._dynamo.reset()  # removes callbacks that run after compilation
    tofuse.compile(half)(torch.randn(3))
    assert config.record_runtime_overhead


def test_users_setting_is_preserved():
    with config.patch(record_runtime_overhead=False):
        tofuse.compile(half)(torch.randn(3))
        assert not config.record_runtime_overhead
    assert config.record_runtime_overhead


def test_direct_call_of_the_backend_changes_nothing():
    gm = torch.fx.symbolic_trace(lambda x: (half(x),))
    compiled = dynamo_backend(gm, [torch.randn(3)])
    assert config.record_runtime_overhead and compiled is not None
