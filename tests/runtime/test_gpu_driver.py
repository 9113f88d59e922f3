"""Run programs on a fake GPU in another process: Triton decides at import whether it interprets."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("name", ["on", "graphs_on", "products_on"])
def test_programs_on_a_fake_gpu(name: str):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [
            *command,
            "-W",
            "ignore::RuntimeWarning",
            str(Path(__file__).with_name(f"{name}_fake_gpu.py")),
        ],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
