"""Compilation pauses the garbage collector and restores its state."""

import gc

import pytest
import torch

from tofuse.capture.aot.gc_pause import pause_gc
from tofuse.capture.dynamo.backend import aot_backend
from tofuse.capture.lower.executor_claims import claim_nothing
from tofuse.driver.pipeline import capture_passes


@pytest.fixture
def restored_gc():
    enabled = gc.isenabled()
    yield
    gc.enable() if enabled else gc.disable()


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_collector_state_is_restored(fresh_dynamo, restored_gc, enabled, fails):
    states = []

    def compile_graph(gm, phase):
        states.append(gc.isenabled())
        if fails:
            raise ValueError("no")
        return lambda args: gm(*args)

    backend = aot_backend(compile_graph, capture_passes(claim_nothing))
    compiled = torch.compile(lambda x: x.sin() + 1, backend=backend)
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
