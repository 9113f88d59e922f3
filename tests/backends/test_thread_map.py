"""Functions on several threads: order, errors, and a process whose main thread has ended."""

import subprocess
import sys
import threading

import pytest

from tofuse.backends.thread_map import thread_map

AFTER_THE_MAIN_THREAD = """
import sys, threading, torch, tofuse
def serve():
    threading.main_thread().join()
    x = torch.randn(300, 257)
    program = lambda x: (x.softmax(-1) @ x.T[:, :64]).tanh() + (x @ x.T[:, :64]).softmax(0)
    options = {"strict": True, "cache_dir": sys.argv[1], "hand_back": False}
    torch.testing.assert_close(tofuse.compile(program, **options)(x), program(x))
    print("served")
tofuse.compile(lambda x: x.sin() + 1)(torch.ones(3))  # imports what cannot be imported later
threading.Thread(target=serve).start()
"""


@pytest.mark.parametrize("threads", [1, 2, 9])
@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_results_are_in_order(threads, count):
    used: set[int] = set()

    def square(k: int) -> int:
        used.add(threading.get_ident())
        return k * k

    assert thread_map(square, range(count), threads) == [k * k for k in range(count)]
    assert len(used) <= threads


def test_threads_run_at_once():
    barrier = threading.Barrier(3)
    thread_map(lambda _: barrier.wait(60), range(3), threads=3)


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_is_raised_and_ends_the_others(threads):
    seen: list[int] = []

    def fail(k: int) -> None:
        seen.append(k)
        if k == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        thread_map(fail, range(10_000), threads)
    assert 4 in seen and len(seen) < 10_000


def test_a_thread_compiles_after_the_main_thread_has_ended(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", AFTER_THE_MAIN_THREAD, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "served", done.stderr
