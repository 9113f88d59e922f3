"""tofuse is a guest in torch: it assigns nothing there, and other backends make the same graphs."""

import json
import subprocess
import sys
from pathlib import Path

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.fx import GraphModule

import tofuse
from tests.support import guest

# By `config.patch` around our own call, for this thread alone.
SETTINGS = (
    ["torch._dynamo.config", "record_runtime_overhead"],
    [
        "torch._dynamo.config",
        "error_on_nested_fx_trace",  # torch 2.11, which has no `_compile_session_context`
    ],
)
# By torch's `CacheArtifactFactory.register`.
REGISTERED = (["torch.compiler._cache.CacheInfo", "tofuse_artifacts"],)


def test_nothing_in_torch_is_assigned():
    """What differs during a compilation of ours, and after it, torch itself changes."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.guest"]
    root = Path(__file__).parents[1]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert ["torch._dynamo.convert_frame", "FRAME_COUNTER"] in result["torch during"]  # it can look
    assert [name for name in result["during"] if name not in (*SETTINGS, *REGISTERED)] == []
    assert [name for name in result["after"] if name not in REGISTERED] == []


def graphs_of_torch() -> list[str]:
    """Return the graphs that Dynamo and AOTAutograd make for another backend."""
    graphs: list[str] = []

    def record(gm, inputs):
        graphs.append(gm.code)
        return aot_autograd(fw_compiler=record_aten, bw_compiler=record_aten)(gm, inputs)

    def record_aten(gm: GraphModule, inputs):
        graphs.append(gm.code)
        return make_boxed_func(gm)

    torch._dynamo.reset()
    torch.manual_seed(0)
    guest.compile_all(lambda f: torch.compile(f, backend=record))
    return graphs


def test_other_backends_make_the_same_graphs_beside_ours():
    before = graphs_of_torch()
    guest.compile_all(tofuse.compile)
    tofuse.memory_efficient_fusion(guest.losses)(torch.randn(4, 4))
    assert len(before) > 6
    assert graphs_of_torch() == before
