"""Calls run in eager while another process compiles them, and compiled afterwards."""

import logging
import os
import signal
import threading
import time
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tofuse
from tests.support.warm import backward, captures
from tofuse.driver.background import QUEUE, BackgroundCompiler, BackgroundQueue


class Counted(nn.Module):
    """A module whose Python code counts its runs: only eager runs it."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x, scale=2.0):
        RUNS.append(1) if not torch.compiler.is_compiling() else None
        return self.norm(self.linear(x)).relu() * scale


RUNS: list[int] = []


@pytest.fixture
def options(tmp_path, fresh_dynamo):
    """A cache of the test's own, and no process of another test."""
    if not _runs_autograd_in_fork():
        pytest.skip("autograd's threads do not survive a fork: the foreground compiles")
    tofuse.wait()
    RUNS.clear()
    captures()
    priority, QUEUE.priority = QUEUE.priority, 0  # other tests use all cores
    yield {"cache_dir": tmp_path, "hand_back": False, "background": True}
    tofuse.wait()
    QUEUE.priority = priority


@pytest.fixture
def log_lines():
    """What tofuse logs."""
    lines: list[str] = []
    handler, logger = logging.Handler(), logging.getLogger("tofuse")
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.setLevel("INFO")
    yield lines
    logger.removeHandler(handler)
    logger.setLevel("NOTSET")


def _runs_autograd_in_fork():
    pid = os.fork()
    if pid == 0:
        try:
            torch.ones(1, requires_grad=True).sum().backward()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def runs_eager(function, *args, **kwargs):
    """Run a call and its backward; return whether eager ran it."""
    before = len(RUNS)
    backward(function(*args, **kwargs))
    return len(RUNS) > before


def test_calls_run_in_eager_until_another_process_has_compiled_them(options):
    module, x = Counted(), torch.randn(5, 8)
    compiled = tofuse.compile(module, **options)
    before = tofuse.background_stats()
    assert runs_eager(compiled, x)
    assert runs_eager(compiled, x)
    assert tofuse.wait()
    assert not runs_eager(compiled, x)
    torch.testing.assert_close(compiled(x), module(x))
    after = tofuse.background_stats()
    assert after["succeeded"] == before["succeeded"] + 1
    assert after["failed"] == before["failed"]
    assert captures() == 0  # in this process


@pytest.mark.parametrize("change", ["size", "dtype", "mode", "argument", "grad", "weight"])
def test_a_call_of_another_kind_is_compiled_in_the_background(change, options):
    module, x = Counted(), torch.randn(5, 8)
    compiled = tofuse.compile(module, **options)
    compiled(x)
    tofuse.wait()
    assert not runs_eager(compiled, x)
    kwargs = {}
    if change == "size":
        x = torch.randn(3, 8)
    elif change == "dtype":
        module.double()
        x = x.double()
    elif change == "mode":
        module.eval()
    elif change == "argument":
        kwargs = {"scale": 3.0}
    elif change == "grad":
        module.requires_grad_(False)
    elif change == "weight":
        module.linear.weight.requires_grad_(False)
    assert runs_eager(compiled, x, **kwargs)
    assert tofuse.wait()
    assert not runs_eager(compiled, x, **kwargs)
    torch.testing.assert_close(compiled(x, **kwargs), module(x, **kwargs))
    assert captures() == 0


def test_gradients_are_those_of_eager(options):
    module, x = Counted(), torch.randn(5, 8, requires_grad=True)
    compiled = tofuse.compile(module, **options)
    found = []
    for _ in range(2):
        module.zero_grad()
        x.grad = None
        compiled(x).square().sum().backward()
        found.append([x.grad, *(p.grad for p in module.parameters())])
        tofuse.wait()
    assert len(RUNS) == 1
    # a norm of 5 rows cancels most of the gradient
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-4)


class Series(nn.Module):
    """A recurrent network on images whose columns are its steps."""

    def __init__(self):
        super().__init__()
        self.filter, self.cell = nn.Conv2d(2, 3, 3, padding=1), nn.GRUCell(15, 4)

    def forward(self, images):
        RUNS.append(1) if not torch.compiler.is_compiling() else None
        columns = self.filter(images).flatten(1, 2).unbind(-1)
        state = images.new_zeros(len(images), 4)
        for column in columns:
            state = self.cell(column, state)
        return state.softmax(-1).log().cumsum(0)


INPUTS = {
    "odd": lambda: torch.randn(3, 2, 5, 7),
    "one": lambda: torch.randn(1, 2, 5, 1),
    "no rows": lambda: torch.randn(0, 2, 5, 3),
    "transposed": lambda: torch.randn(7, 5, 2, 3).permute(3, 2, 1, 0),
    "with gaps": lambda: torch.randn(6, 2, 5, 14)[::2, :, :, ::2],
    "expanded": lambda: torch.randn(3, 1, 1, 7).expand(3, 2, 5, 7),
    "double": lambda: torch.randn(3, 2, 5, 7, dtype=torch.float64),
}


@pytest.mark.broad(1)
@pytest.mark.parametrize("name", INPUTS)
def test_sizes_layouts_and_dtypes(name, options):
    images = INPUTS[name]()
    module = Series().to(images.dtype)
    compiled = tofuse.compile(module, **options)
    assert runs_eager(compiled, images)
    tofuse.wait()
    RUNS.clear()
    found = []
    for function in (compiled, module):
        module.zero_grad()
        result = function(images)
        result.square().sum().backward()
        found.append([result, *(p.grad for p in module.parameters())])
    assert len(RUNS) == 1
    torch.testing.assert_close(*found)
    assert found[0][0].stride() == found[1][0].stride()


def test_functions(options):
    def scaled(x, n):
        RUNS.append(1) if not torch.compiler.is_compiling() else None
        return x.sin() * n

    compiled, x = tofuse.compile(scaled, **options), torch.randn(7)
    assert runs_eager(compiled, x, 2)
    tofuse.wait()
    assert not runs_eager(compiled, x, 2)
    torch.testing.assert_close(compiled(x, 2), x.sin() * 2)
    torch.testing.assert_close(compiled(x, 5), x.sin() * 5)


def test_errors_are_those_of_eager(options):
    compiled = tofuse.compile(Counted(), **options)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        compiled(torch.randn(5, 9))
    assert tofuse.background_stats()["running"] == 0


def test_what_another_process_cannot_compile_is_compiled_in_the_foreground(options, log_lines):
    def broken(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    compiled, x = tofuse.compile(broken, **options), torch.randn(7)
    torch.testing.assert_close(compiled(x), x.sin().cos())
    tofuse.wait()
    assert captures() == 0
    torch.testing.assert_close(compiled(x), x.sin().cos())
    assert captures() > 0
    assert any("compiled in the foreground: Unsupported" in line for line in log_lines)


def test_a_cache_that_cannot_be_written_is_seen(options, tmp_path):
    folder = tmp_path / "file"
    folder.write_text("not a folder")
    compiled, x = tofuse.compile(Counted(), **{**options, "cache_dir": folder}), torch.randn(5, 8)
    assert runs_eager(compiled, x)
    tofuse.wait()
    assert not runs_eager(compiled, x)
    assert captures() == 1


def test_under_deterministic_algorithms_code_is_taken_at_a_wait(options):
    compiled, x = tofuse.compile(Counted(), **options), torch.randn(5, 8)
    torch.use_deterministic_algorithms(True)
    try:
        assert runs_eager(compiled, x)
        while tofuse.background_stats()["running"]:
            time.sleep(0.01)
        assert all(runs_eager(compiled, x) for _ in range(5))
        assert tofuse.background_stats()["running"] == 0
        tofuse.wait()
        assert not runs_eager(compiled, x)
        again = tofuse.compile(Counted(), **options)
        assert runs_eager(again, x)  # whatever is on disk
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_checkpoint_saves_what_its_repetition_saves(options):
    module, x = Counted(), torch.randn(5, 8, requires_grad=True)
    compiled = tofuse.compile(module, **options)
    y = checkpoint(compiled, x, use_reentrant=False)
    tofuse.wait()
    y.square().sum().backward()
    assert not RUNS


def test_a_process_prints_nothing(options, capfd):
    queue = BackgroundQueue(priority=0)
    BackgroundCompiler(_print, abs, print, queue).begin(1, (1,), {}, 0)
    assert queue.wait()
    assert queue.stats()["succeeded"] == 1
    assert capfd.readouterr() == ("", "")


def _print(args, kwargs):
    print("compiling")
    os.write(2, b"compiling")
    return ""


def test_threads_share_one_compilation(options):
    compiled, x = tofuse.compile(Counted(), **options), torch.randn(5, 8)
    succeeded = tofuse.background_stats()["succeeded"]
    errors: list[BaseException] = []

    def work():
        try:
            for _ in range(20):  # while the compilation ends, too
                compiled(x)
                tofuse.wait(0.1)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert tofuse.background_stats()["succeeded"] == succeeded + 1
    assert not runs_eager(compiled, x)


def test_a_forked_process_has_no_compilations(options):
    compiled, x = tofuse.compile(Counted(), **options), torch.randn(5, 8)
    compiled(x)
    pid = os.fork()
    if pid == 0:
        os._exit(tofuse.background_stats()["running"])
    assert os.waitpid(pid, 0)[1] == 0
    assert tofuse.wait()
    assert not runs_eager(compiled, x)


@pytest.mark.parametrize(
    ("capture", "reason"),
    [
        (lambda args, kwargs: os._exit(3), "the process that compiled ended with 3"),
        (lambda args, kwargs: time.sleep(60), "the process that compiled did nothing for 0"),
        (lambda args, kwargs: 1 / 0, "the process that compiled ended with 1"),
    ],
    ids=["killed", "asleep", "error"],
)
def test_a_process_that_is_lost_is_given_up(capture, reason, options, log_lines):
    queue = BackgroundQueue(priority=0, patience=0.2)
    compiler = BackgroundCompiler(capture, abs, print, queue)
    assert compiler.takes(1)
    compiler.begin(1, (1,), {}, compiler.ended)
    assert not queue.wait(timeout=0.0)
    assert queue.wait(timeout=30.0)
    compiler.collect()
    assert not compiler.takes(1)
    assert reason in log_lines[0]
    assert queue.stats() == {"running": 0, "succeeded": 0, "failed": 1}


def test_handlers_of_signals_stay_in_the_parent(options, tmp_path):
    path = tmp_path / "saved"
    before = signal.signal(signal.SIGTERM, lambda *ignored: path.write_text("a checkpoint"))
    try:
        queue = BackgroundQueue(priority=0)
        compiler = BackgroundCompiler(_sleep_long, abs, print, queue)
        compiler.begin(1, (1,), {}, compiler.ended)
        time.sleep(0.5)
        queue.running[0].process.terminate()
        assert queue.wait(timeout=30.0)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not path.exists()


def test_what_is_compiled_in_the_foreground_stays_compiled(options):
    queue = BackgroundQueue(priority=0, limit=2)
    compiler = BackgroundCompiler(_sleep, abs, print, queue)
    compiler.foreground.add(1)
    compiler.begin(2, (2,), {}, compiler.ended)
    assert compiler.takes(2) and compiler.takes(3)
    assert not compiler.takes(1)
    assert queue.wait()


def _sleep_long(args, kwargs):
    time.sleep(60)
    return ""


def _sleep(args, kwargs):
    time.sleep(0.2)
    return ""


def test_one_process_runs_at_a_time(options):
    queue = BackgroundQueue(priority=0, limit=1)
    reloads: list[int] = []
    compilers = [BackgroundCompiler(_sleep, abs, partial(reloads.append, k), queue) for k in (0, 1)]
    for begun in ([0], [0, 1]):
        for compiler in compilers:
            assert compiler.takes(1)
            compiler.begin(1, (1,), {}, compiler.ended)
        assert queue.stats()["running"] == 1
        assert queue.wait()
        for compiler in compilers:
            compiler.collect()
        assert reloads == begun
        compilers.reverse()


def test_a_call_that_changes_the_kind_of_its_arguments_ends_in_the_foreground(options):
    linear = nn.Linear(8, 8)

    def accumulate(out, x):
        out += linear(x)
        return out

    compiled, x = tofuse.compile(accumulate, **options), torch.randn(5, 8)
    for _ in range(5):
        torch.testing.assert_close(compiled(torch.zeros(5, 8), x), linear(x))
        tofuse.wait()
    captures()
    failed = tofuse.background_stats()
    compiled(torch.zeros(5, 8), x)
    assert tofuse.background_stats() == failed


def test_a_stance_of_torch_is_obeyed(options):
    compiled, x = tofuse.compile(Counted(), **options), torch.randn(5, 8)
    with torch.compiler.set_stance("force_eager"):
        assert runs_eager(compiled, x)
        assert tofuse.background_stats()["running"] == 0
