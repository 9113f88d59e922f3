"""The memory pool reuses a block exactly when nothing holds it any more."""

import gc
import os
import resource
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import tofuse
from tests.support.memory_limit import address_space
from tofuse.backends.cpu.runtime.pool import POOL, Block, Bucket, Pool, size_class
from tofuse.cost.machine import SMALLEST_POOLED as SMALLEST

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
N = 1 << 18  # float32 elements: well above the smallest block


@pytest.fixture
def one_thread():
    """Use one thread: waking the others takes most of the time of a small call."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def add(x):
    return x + 1.0


# How a tensor is held, and how the holder is read as a tensor.
HOLDERS = {
    "the tensor": lambda t: (t, lambda h: h),
    "a view": lambda t: (t[5:10], lambda h: h),
    "a reshape": lambda t: (t.view(2, -1)[1, :3], lambda h: h),
    "a detached alias": lambda t: (t.detach(), lambda h: h),
    "another dtype": lambda t: (t.view(torch.int32)[:4], lambda h: h.view(torch.float32)),
    "numpy": lambda t: (t.numpy()[3:9], torch.from_numpy),
    "memoryview": lambda t: (memoryview(t.numpy()), lambda h: torch.from_numpy(np.asarray(h))),
    "dlpack": lambda t: (t.__dlpack__(), torch.utils.dlpack.from_dlpack),
    "a storage": lambda t: (t.untyped_storage(), lambda h: torch.tensor([]).set_(h)),
    "a typed storage": lambda t: (t.storage().untyped(), lambda h: torch.tensor([]).set_(h)),
    "set_": lambda t: (torch.empty(0).set_(t), lambda h: h),
    "shared memory": lambda t: (t.share_memory_(), lambda h: h),
    "a parameter": lambda t: (torch.nn.Parameter(t), lambda h: h.data),
    "a list of a list": lambda t: ([[t]], lambda h: h[0][0]),
    "data of a parameter": lambda t: (as_parameter_data(t), lambda h: h.data),
    "chunks": lambda t: (t.chunk(3)[1], lambda h: h),
    "a sparse tensor": lambda t: (as_sparse_values(t), lambda h: h._values()),
}


def as_parameter_data(t):
    p = torch.nn.Parameter(torch.empty(1))
    p.data = t
    return p


def as_sparse_values(t):
    index = torch.arange(N)[None]
    return torch.sparse_coo_tensor(index, t, (N,), check_invariants=False)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("name", HOLDERS)
def test_held_memory_is_not_reused(name):
    compiled, x = tofuse.compile(add), torch.full((N,), 6.0)
    compiled(x)
    holder, read = HOLDERS[name](compiled(x))
    gc.collect()
    other, results = torch.full((N,), -1.0), []
    for _ in range(4):
        results.append(compiled(other))
    assert all((r == 0).all() for r in results)
    assert (read(holder).reshape(-1)[:3] == 7).all()


def test_memory_saved_for_backward_is_not_reused():
    w = torch.full((N,), 2.0, requires_grad=True)
    compiled = tofuse.compile(add)
    y = compiled(torch.ones(N))  # soon held by the autograd graph of `z` alone
    z = (y * w).sum()
    del y
    for _ in range(4):
        assert (compiled(torch.full((N,), 4.0)) == 5).all()
    z.backward()
    assert w.grad is not None and w.grad.unique().tolist() == [2]


def test_memory_saved_by_compiled_programs_is_not_reused():
    x = torch.rand(N, requires_grad=True)
    compiled = tofuse.compile(lambda x: (x.exp() @ x.sin()).sqrt())
    losses = [compiled(x) for _ in range(3)]  # each holds the saved tensors of its backward
    expected = torch.autograd.grad((x.exp() @ x.sin()).sqrt(), x)[0]
    for loss in reversed(losses):
        torch.testing.assert_close(torch.autograd.grad(loss, x)[0], expected)


def test_memory_held_by_another_thread_is_not_reused():
    compiled, x = tofuse.compile(add), torch.full((N,), 6.0)
    compiled(x)
    ready, go, correct = threading.Event(), threading.Event(), []

    def hold():
        result = compiled(x)
        ready.set()
        go.wait()
        correct.append(bool((result == 7).all()))

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait()
    for _ in range(4):
        compiled(torch.zeros(N))
    go.set()
    thread.join()
    assert correct == [True]


def test_threads_do_not_share_results():
    compiled = tofuse.compile(lambda x: (x * 2).softmax(-1))
    inputs = [torch.randn(256, 400) for _ in range(4)]
    expected = [(x * 2).softmax(-1) for x in inputs]
    compiled(inputs[0])

    def work(k):
        return all(torch.allclose(compiled(inputs[k]), expected[k]) for _ in range(40))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_a_resized_storage_leaves_the_pool():
    compiled, x = tofuse.compile(add), torch.full((N,), 6.0)
    for change in (lambda t: t.untyped_storage().resize_(8 * N), lambda t: t.resize_(4 * N)):
        result = compiled(x)
        change(result)
        assert (result[:N] == 7).all()
        del result
        for _ in range(3):
            assert (compiled(x) == 7).all()
    result = compiled(x)
    result.untyped_storage().resize_(0)
    del result
    assert (compiled(x) == 7).all()


def test_memory_exported_to_numpy_is_not_reused_since_it_cannot_be_resized():
    compiled, x = tofuse.compile(add), torch.full((N,), 6.0)
    assert compiled(x).numpy()[5] == 7
    for _ in range(3):
        compiled(x).resize_(4 * N)


def test_memory_that_nothing_holds_is_reused():
    compiled, x = tofuse.compile(add), torch.randn(N)
    addresses = {compiled(x).data_ptr() for _ in range(20)}
    assert len(addresses) == 1
    a = compiled(x)
    b = compiled(x)
    assert a.data_ptr() != b.data_ptr()


def test_the_pool_keeps_its_limit():
    pool = Pool(limit=10 * 1024 * 1024)
    held = [pool.empty(4 * N, (N,), (1,), torch.float32) for _ in range(20)]
    assert len({t.data_ptr() for t in held}) == 20
    assert pool.stats()["held_bytes"] <= pool.limit
    held.clear()
    assert pool.stats()["used_bytes"] == 0
    large = pool.empty(8 * 1024 * 1024, (2 * 1024 * 1024,), (1,), torch.float32)
    held_bytes = pool.stats()["held_bytes"]
    assert 8 * 1024 * 1024 <= held_bytes <= pool.limit
    del large
    assert pool.trim() == held_bytes and pool.stats()["held_bytes"] == 0


def test_one_block_serves_several_dtypes():
    pool = Pool(limit=1 << 30)
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.float32):
        count = 4 * N // dtype.itemsize
        t = pool.empty(4 * N, (count,), (1,), dtype)
        t.fill_(1)
        assert t.dtype == dtype and t.shape == (count,)
        del t
    assert pool.stats()["blocks"] == 1 and pool.stats()["hits"] == 4


def test_a_free_block_serves_smaller_requests_down_to_half():
    pool = Pool(limit=1 << 30)
    large = pool.empty(8 * N, (2 * N,), (1,), torch.float32)
    address = large.data_ptr()
    del large
    for count in (2 * N, N + N // 2, N):
        small = pool.empty(4 * count, (count,), (1,), torch.float32)
        assert small.data_ptr() == address
        del small
    held = [pool.empty(4 * N, (N,), (1,), torch.float32) for _ in range(2)]
    assert held[1].data_ptr() != address and pool.stats()["held_bytes"] == 12 * N
    held.clear()
    exact = pool.empty(4 * N, (N,), (1,), torch.float32)
    assert exact.data_ptr() != address
    assert pool.empty(2 * N, (N // 2,), (1,), torch.float32).data_ptr() != address


def test_a_request_does_not_check_every_block(monkeypatch):
    pool, is_free = Pool(limit=1 << 30), Block.is_free
    checked: list[Block] = []
    addresses: list[set[int]] = []

    def count_check(block):
        checked.append(block)
        return is_free(block)

    monkeypatch.setattr(Block, "is_free", count_check)
    for _ in range(3):  # a training step holds all its tensors to its end
        checked.clear()
        held = [pool.empty(4 * N, (N,), (1,), torch.float32) for _ in range(60)]
        addresses.append({t.data_ptr() for t in held})
        assert len(addresses[-1]) == 60
    # the second step begins while `held` still holds the tensors of the first
    assert addresses[1] != addresses[0] and addresses[2] == addresses[0]
    assert len(checked) <= 60 * 4


def test_the_most_recently_used_block_is_reused_first():
    pool = Pool(limit=1 << 30)
    held = [pool.empty(4 * N, (N,), (1,), torch.float32) for _ in range(8)]
    held.clear()
    address = pool.empty(4 * N, (N,), (1,), torch.float32).data_ptr()
    for _ in range(8):
        assert pool.empty(4 * N, (N,), (1,), torch.float32).data_ptr() == address


def test_torch_allocates_small_and_oversized_tensors():
    pool = Pool(limit=1 << 20)
    pool.empty(SMALLEST - 1, (SMALLEST - 1,), (1,), torch.uint8)
    pool.empty(1 << 21, (1 << 21,), (1,), torch.uint8)
    assert pool.stats()["blocks"] == 0


def test_size_classes_waste_at_most_an_eighth():
    for nbytes in (SMALLEST, SMALLEST + 1, 3 << 20, (5 << 20) - 1, 123_456_789):
        assert nbytes <= size_class(nbytes) <= nbytes * 9 / 8 + 4096


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.usefixtures("one_thread")  # OpenMP's threads do not exist in the child
def test_a_forked_process_has_separate_memory():
    compiled, x = tofuse.compile(add), torch.full((N,), 6.0)
    compiled(x)
    held = compiled(x)
    with POOL.lock:  # as another thread could at the time of the fork
        child = os.fork()
    if child == 0:
        right = all(bool((compiled(torch.zeros(N)) == 1).all()) for _ in range(3))
        os._exit(0 if right and bool((held == 7).all()) else 1)
    for _ in range(3):
        assert (compiled(torch.full((N,), 2.0)) == 3).all()
    assert os.waitpid(child, 0)[1] == 0
    assert (held == 7).all()


def test_a_signal_handler_may_request_memory_in_the_middle_of_a_request():
    pool, inner = Pool(limit=1 << 30), []
    held = pool.empty(4 * N, (N,), (1,), torch.float32)

    def interrupt(frame, event, arg):
        if event == "call" and frame.f_code is Bucket.take.__code__:
            sys.setprofile(None)
            inner.append(pool.empty(4 * N, (N,), (1,), torch.float32))
            assert pool.stats()["blocks"] == 1 and pool.trim() == 0

    sys.setprofile(interrupt)
    try:
        outer = pool.empty(4 * N, (N,), (1,), torch.float32)
    finally:
        sys.setprofile(None)
    assert len({t.data_ptr() for t in (held, outer, *inner)}) == 3


def test_the_pool_gives_its_free_blocks_up_where_the_system_has_no_memory():
    """Torch allocates memory that the pool would keep from it."""
    pool = Pool(limit=1 << 40)
    del_later = pool.empty(1 << 28, (1 << 28,), (1,), torch.uint8)
    used = pool.empty(4 * N, (N,), (1,), torch.float32)
    with address_space(1 << 27):
        with pytest.raises(
            RuntimeError, match="can't allocate memory: you tried to allocate 201326592"
        ):
            pool.empty(3 << 26, (3 << 26,), (1,), torch.uint8)
        del del_later
        large = pool.empty(5 << 26, (5 << 26,), (1,), torch.uint8)
        assert large.numel() == 5 << 26
    assert pool.stats()["held_bytes"] == (5 << 26) + 4 * N == pool.stats()["used_bytes"]
    assert used.data_ptr() != large.data_ptr()


def test_stats_and_empty_cache():
    compiled, x = tofuse.compile(add), torch.randn(N)
    result = compiled(x)
    tofuse.empty_cache()
    stats = tofuse.memory_stats()
    assert stats["used_bytes"] == stats["held_bytes"] >= result.nbytes
    del result
    assert tofuse.memory_stats()["used_bytes"] < stats["used_bytes"]
    assert tofuse.empty_cache() >= x.nbytes
    assert tofuse.memory_stats()["held_bytes"] < stats["held_bytes"]


def scores(x):
    return (x @ x * 0.125).softmax(-1)


SOAK_PROGRAMS = (add, lambda x: (x * 2).softmax(-1), lambda x: x.t() + x.sum(0), scores)


@pytest.mark.usefixtures("one_thread")
def test_many_calls_do_not_leak_or_corrupt_memory(request):
    """Call several programs with several sizes thousands of times, and hold some results."""
    calls = 100_000 if request.config.getoption("--full") else 3_000
    programs = [tofuse.compile(f, capture="trace") for f in SOAK_PROGRAMS]
    inputs = [torch.randn(n, n) for n in (16, 260, 300)]
    expected = [[f(x) for x in inputs] for f in SOAK_PROGRAMS]
    held = []

    def call_programs(count):
        for k in range(count):
            p, i = k % 4, (k // 4) % 3
            held.append((p, i, programs[p](inputs[i])))
            if len(held) > 7:
                p, i, result = held.pop((k * 5) % 7)
                if k % 11 == 0:
                    torch.testing.assert_close(result, expected[p][i], rtol=1e-4, atol=1e-4)

    call_programs(600)
    before, blocks = resident_kb(), POOL.stats()["blocks"]
    call_programs(calls)
    assert resident_kb() - before < 24 * 1024
    assert POOL.stats()["blocks"] <= blocks + 2


def resident_kb():
    gc.collect()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
