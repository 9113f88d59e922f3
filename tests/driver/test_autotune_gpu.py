"""Tune kernels on a fake GPU in another process: Triton decides at import whether it interprets."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_kernels_on_a_fake_gpu_are_tuned():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    file = Path(__file__).with_name("autotuned_on_fake_gpu.py")
    done = subprocess.run(
        [*command, "-W", "ignore::RuntimeWarning", str(file)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
