"""Bundles of torch.compiler contain what is on disk; many processes read one cache."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.compiler._cache import CacheArtifactManager

import tofuse
from tests.support.warm import backward, captures
from tofuse.cache.bundles import write_entry
from tofuse.errors import TofuseWarning

SCRIPT = """
import torch, tofuse
from torch import nn
torch.manual_seed(0)
model, x = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32)), torch.randn(4, 16)
compiled = tofuse.compile(model, hand_back=False)
result = compiled(x)
result.sum().backward()
torch.testing.assert_close(result, model(x))
from torch._dynamo.utils import counters
print(counters["frames"]["total"])
"""


def test_a_bundle_has_all_that_a_later_process_needs(tmp_path, monkeypatch, fresh_dynamo):
    model, x = nn.Sequential(nn.Linear(19, 37), nn.GELU(), nn.LayerNorm(37)), torch.randn(3, 19)
    monkeypatch.setenv("TOFUSE_CACHE_DIR", str(tmp_path / "first"))
    with CacheArtifactManager.with_fresh_cache():
        backward(tofuse.compile(model, hand_back=False)(x))
        saved = torch.compiler.save_cache_artifacts()
    assert saved is not None
    content, info = saved
    kinds = {name.partition("-")[0] for name in info.artifacts["tofuse"]}
    assert kinds >= {"capture", "code", "program"}
    monkeypatch.setenv("TOFUSE_CACHE_DIR", str(tmp_path / "second"))
    with CacheArtifactManager.with_fresh_cache():
        loaded = torch.compiler.load_cache_artifacts(content)
        assert loaded is not None
        captures()
        backward(tofuse.compile(model, hand_back=False)(x))
        assert captures() == 0
        again = torch.compiler.save_cache_artifacts()  # a later process saves what it has read
    assert again is not None
    assert again[1].artifacts["tofuse"]


@pytest.mark.parametrize("name", ["../program-1/x.json", "/etc/passwd", "program-1/x", ""])
def test_a_bundle_writes_entries_only(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TOFUSE_CACHE_DIR", str(tmp_path))
    with pytest.warns(TofuseWarning, match="no entry"):
        write_entry(name, b"")
    assert not [*tmp_path.rglob("*")]


WITHOUT_CAPABILITIES = """
import ctypes
ctypes.CDLL(None).capset((ctypes.c_uint * 2)(0x20080522, 0), (ctypes.c_uint * 6)())
"""


def _start(cache: Path, script: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "TOFUSE_CACHE_DIR": str(cache)}
    source = str(Path(tofuse.__file__).parents[1])
    environment["PYTHONPATH"] = os.pathsep.join([source, environment.get("PYTHONPATH", "")])
    command, output = [sys.executable, "-c", script], subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=output, stderr=output, text=True)


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
def test_processes_share_a_cache_that_they_cannot_write(tmp_path):
    """Without its capabilities, root cannot write everything either."""
    cache = tmp_path / "cache"
    cache.mkdir()
    first = _start(cache, SCRIPT)
    assert first.communicate()[0] == "1\n"
    for folder in (*cache.iterdir(), cache):
        folder.chmod(0o555)
    other = SCRIPT.replace("(16, 32)", "(16, 64)").replace("(32)", "(64)")
    before = sorted(cache.rglob("*"))
    try:
        others = [
            _start(cache, WITHOUT_CAPABILITIES + script) for script in (SCRIPT, SCRIPT, other)
        ]
        for process, captured in zip(others, (0, 0, 1), strict=True):
            output, errors = process.communicate()
            assert (output, process.returncode) == (f"{captured}\n", 0), errors
        assert sorted(cache.rglob("*")) == before
    finally:
        for folder in (cache, *cache.iterdir()):
            folder.chmod(0o755)
