"""Compilation pauses the garbage collector and restores its state."""

import gc

import pytest
import torch

import tofuse
from tofuse.driver import compile_program
from tofuse.gc_pause import pause_gc


@pytest.fixture
def restored_gc():
    enabled = gc.isenabled()
    yield
    gc.enable() if enabled else gc.disable()


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_collector_state_is_restored(
    fresh_dynamo, monkeypatch, tmp_path, restored_gc, enabled, fails
):
    states, compile_graph = [], compile_program.compile_graph

    def recorded(*args, **options):
        states.append(gc.isenabled())
        if fails:
            raise ValueError("no")
        return compile_graph(*args, **options)

    monkeypatch.setattr(compile_program, "compile_graph", recorded)
    compiled = tofuse.compile(lambda x: x.sin() + 1, strict=True, cache_dir=tmp_path)
    gc.enable() if enabled else gc.disable()
    if fails:
        with pytest.raises(Exception, match="no"):
            compiled(torch.ones(3))
    else:
        compiled(torch.ones(3))
    assert gc.isenabled() is enabled
    assert states == [False]


def test_pauses_nest(restored_gc):
    gc.enable()
    with pause_gc():
        with pause_gc():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
