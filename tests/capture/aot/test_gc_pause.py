"""Compiling pauses the collector of cycles, and puts it back as it was."""

import gc

import pytest
import torch

from tofuse.capture.aot.gc_pause import collector_paused
from tofuse.capture.dynamo.backend import aot_backend


@pytest.fixture
def collecting():
    was = gc.isenabled()
    yield
    gc.enable() if was else gc.disable()


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_the_collector_is_put_back_as_it_was(fresh_dynamo, collecting, enabled, fails):
    states = []

    def compiles(gm, phase):
        states.append(gc.isenabled())
        if fails:
            raise ValueError("no")
        return lambda args: gm(*args)

    compiled = torch.compile(lambda x: x.sin() + 1, backend=aot_backend(compiles))
    gc.enable() if enabled else gc.disable()
    if fails:
        with pytest.raises(Exception, match="no"):
            compiled(torch.ones(3))
    else:
        compiled(torch.ones(3))
    assert gc.isenabled() is enabled
    assert states == [False]


def test_pauses_nest(collecting):
    gc.enable()
    with collector_paused():
        with collector_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
