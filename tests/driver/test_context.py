"""What compilations log, and add to torch's structured trace."""

import logging
import os
import subprocess
import sys

import pytest
import torch

import tofuse

PROGRAM = """
import torch, tofuse
x = torch.randn(8, requires_grad=True)
tofuse.compile(lambda x: (x.sin() + x).sum())(x).backward()
"""


@pytest.fixture
def records():
    """The messages of the loggers below `tofuse`."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = Handler()
    logger = logging.getLogger("tofuse")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_graphs_and_verdicts_are_logged(records, fresh_dynamo):
    tofuse.compile(lambda x: (x.sin() + x).sum(), verify=True)(torch.randn(8))
    assert any(m.startswith("inference: 1 kernel, 0 library calls, ") for m in records)
    assert any("sin -> add: fused" in m for m in records)


def test_nothing_is_logged_by_default(capfd, fresh_dynamo):
    tofuse.compile(lambda x: (x.sin() + x).sum())(torch.randn(8))
    assert capfd.readouterr() == ("", "")


def test_torch_shows_the_log_and_traces_the_stages(tmp_path):
    """TORCH_LOGS takes the names of packages, TORCH_TRACE a folder that tlparse reads."""
    names = {"TORCH_LOGS": "tofuse", "TORCH_TRACE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | names,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "forward: 1 kernel, 0 library calls" in done.stderr
    (log,) = tmp_path.glob("*.log")
    text = log.read_text()
    for stage in ("graph", "regions", "loops", "source", "plan", "report"):
        assert f'"tofuse_forward_{stage}"' in text
        assert f'"tofuse_backward_{stage}"' in text
