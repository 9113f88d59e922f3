"""Processes share what they capture on disk, until the source or the environment changes."""

import os
import subprocess
import sys
from pathlib import Path

import tofuse

SCRIPT = """
import os
import sys
import torch, tofuse
from torch import nn

class Model(nn.Module):
    factor = float(os.environ.get("FACTOR", "2"))
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32))
    def forward(self, x, flag=True):
        return self.layers(x) * self.factor CHANGE

torch.manual_seed(0)
model, x = Model(), torch.randn(4, 16)
compiled = tofuse.compile(model, hand_back=False)
result = compiled(x)
result.sum().backward()
torch.testing.assert_close(result, model(x))
from torch._dynamo.utils import counters
print(counters["frames"]["total"])
"""


def test_processes_share_what_they_capture(tmp_path):
    script, cache = tmp_path / "model.py", tmp_path / "cache"

    def captures(change="", factor="2"):
        script.write_text(SCRIPT.replace("CHANGE", change))
        environment = {**os.environ, "TOFUSE_CACHE_DIR": str(cache), "FACTOR": factor}
        source = str(Path(tofuse.__file__).parents[1])
        environment["PYTHONPATH"] = os.pathsep.join([source, environment.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, str(script)], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    assert captures() == 1
    assert captures() == 0
    assert captures(factor="3") == 1
    assert captures("+ 1") == 1
    assert captures("+ 1") == 0
