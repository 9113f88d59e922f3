"""Options and fixtures of the test run."""

import os
import tempfile
from dataclasses import replace

import pytest
import torch

from tests.support.bounds import check_all_accesses
from tests.support.broad import sample_cases, select_brief, select_tests
from tests.support.compiler import Compiler
from tofuse.driver import compile_program, context


def pytest_configure(config: pytest.Config) -> None:
    """What tests keep on disk is theirs, and all processes of a run share it."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="tofuse-tests-")
        config.add_cleanup(folder.cleanup)
        os.environ["TOFUSE_CACHE_DIR"] = folder.name
        os.environ["TOFUSE_HAND_BACK"] = "0"  # tests call what is compiled


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--accept",
        action="store_true",
        help="rewrite the expected halves of text fixtures to what the code gives now",
    )
    parser.addoption(
        "--full",
        action="store_true",
        help="all cases of every test, and all operators, not a fixed part of them",
    )
    parser.addoption("--brief", action="store_true", help="one test of each file, but of long ones")


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `--full` runs, or what `--brief` does not."""
    if config.getoption("--brief"):
        items[:], left = select_brief(items)
        config.hook.pytest_deselected(items=left)
    elif not config.getoption("--full") and not config.getoption("--accept"):
        items[:], left = select_tests(items)
        config.hook.pytest_deselected(items=left)


@pytest.fixture
def some(request):
    """Of many cases that one test goes through: an n-th, always the same; all with `--full`."""
    full = request.config.getoption("--full")
    return lambda cases, n: list(cases) if full else sample_cases(cases, request.node.name, n)


@pytest.fixture
def fresh_dynamo():
    """Nothing compiled before counts, and random numbers start anew."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """Compiles as a new process would, and counts what is compiled."""
    compiler = Compiler(tmp_path, compile_program.compile_graph)
    monkeypatch.setattr(compile_program, "compile_graph", compiler.compile_and_record)
    return compiler


@pytest.fixture
def sixteen_lanes(monkeypatch):
    """Kernels as for vectors of 16 floats, whatever this processor has: decisions may differ."""
    target = context.host_target
    monkeypatch.setattr(context, "host_target", lambda n: replace(target(n), lanes=16))


@pytest.fixture(autouse=True)
def nothing_is_read_outside_of_operands(monkeypatch):
    """Of all kernels that a test makes: a value that is thrown away may still be no memory."""
    with check_all_accesses(monkeypatch) as found:
        yield
    assert not found, found[:5]


@pytest.fixture
def empty_cache_on_disk(monkeypatch, tmp_path):
    """Nothing that an earlier test has captured runs without Dynamo."""
    monkeypatch.setenv("TOFUSE_CACHE_DIR", str(tmp_path))
