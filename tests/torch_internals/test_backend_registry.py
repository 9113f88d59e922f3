"""The backend's name is known to torch.compile where the package is only imported."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tofuse

# Without site-packages' metadata of tofuse: all that is beside it is linked into a folder.
PROGRAM = """
import os, sys
package, folder, order = sys.argv[1:]
for place in [p for p in sys.path if os.path.isdir(p)]:
    for name in os.listdir(place):
        if "tofuse" not in name and not os.path.lexists(f"{folder}/{name}"):
            os.symlink(f"{place}/{name}", f"{folder}/{name}")
os.symlink(package, f"{folder}/tofuse")
sys.path[:] = [folder]
import importlib.metadata, torch
names = [e.name for e in importlib.metadata.entry_points(group="torch_dynamo_backends")]
assert "tofuse" not in names, names
x = torch.ones(3)
if order == "after Dynamo":
    torch.compile(torch.neg, backend="eager")(x)
    assert "tofuse" not in torch.compiler.list_backends()
if order == "with Dynamo":
    import torch._dynamo
import tofuse
assert "tofuse.api" not in sys.modules
assert ("torch._dynamo" in sys.modules) == (order != "before Dynamo")
assert "tofuse" in torch.compiler.list_backends()
compiled = torch.compile(lambda x: x.sin() + 1, backend="tofuse", options={"strict": True})
torch.testing.assert_close(compiled(x), x.sin() + 1)
assert "tofuse.api" in sys.modules
"""


@pytest.mark.parametrize("order", ["before Dynamo", "with Dynamo", "after Dynamo"])
def test_a_copy_that_is_not_installed(order, tmp_path):
    package = Path(tofuse.__file__).parent
    command = [sys.executable, "-c", PROGRAM, str(package), str(tmp_path), order]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_other_folders_and_names_have_no_copy(tmp_path):
    assert importlib.metadata.version("tofuse") == tofuse.__version__
    assert not [*importlib.metadata.distributions(path=[str(tmp_path)])]
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("tofuse-of-another-name")


@pytest.mark.parametrize("imports", ["torch, torch._dynamo", "torch, tofuse", "torch"])
def test_an_entry_point_is_loaded_once(imports):
    program = f"import {imports}\ntorch.compile(torch.sin, backend='tofuse')(torch.ones(3))"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert "tofuse" in torch.compiler.list_backends()
