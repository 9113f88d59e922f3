"""Calls that eager runs anyway go to it without guards, and others do not."""

import threading
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tofuse
from tofuse.config import make_config
from tofuse.dispatch.call_kind import kind_of_call
from tofuse.driver.compile import compile_target, with_entries
from tofuse.driver.function_record import make_record

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Counted(nn.Module):
    """A module that counts how often Python runs its `forward`."""

    def __init__(self, function):
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.randn(8))

    def forward(self, x, scale=1.0):
        calls.append(tuple(x.shape)) if not torch.compiler.is_compiling() else None
        return self.function(x, self.weight) * scale


calls: list[tuple[int, ...]] = []


def ran_in_eager(compiled, *args, **kwargs):
    """Call twice; return whether the second call ran Python."""
    with torch.no_grad():
        first = compiled(*args, **kwargs)
        calls.clear()
        assert torch.equal(compiled(*args, **kwargs), first)
    return bool(calls)


def chain(x, w):
    for _ in range(40):
        x = (x * w).sin()
    return x


CASES = {
    "a small call": (lambda x, w: x * w, (4, 8), True),
    "a library call": (lambda x, w: torch.linalg.qr(x)[0], (64, 8), True),
    "many operations": (chain, (4, 8), False),
    "a large call": (lambda x, w: (x * w).sin(), (100_000, 8), False),
}


@pytest.mark.broad(1)
@pytest.mark.parametrize("name", CASES)
def test_kinds_of_calls(name):
    function, shape, expected = CASES[name]
    module, x = Counted(function), torch.randn(shape)
    compiled = tofuse.compile(module, hand_back=True)
    assert ran_in_eager(compiled, x, 2.0) == expected
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, 2.0), module(x, 2.0), rtol=1e-2, atol=1e-2)
    assert not ran_in_eager(tofuse.compile(Counted(function), hand_back=False), x)


def test_a_kind_has_shapes_strides_dtypes_numbers_and_grad_mode():
    compiled = tofuse.compile(Counted(lambda x, w: x * w), hand_back=True, dynamic=False)
    small, large = torch.randn(4, 8), torch.randn(100_000, 8)
    for _ in range(2):
        assert ran_in_eager(compiled, small)
        assert not ran_in_eager(compiled, large)
        assert ran_in_eager(compiled, small, scale=2.0)
    for other in (small.double(), torch.randn(8, 4).t(), torch.randn(5, 8)):
        calls.clear()
        compiled(other)
        assert not calls  # Dynamo captures it
    assert kind_of_call((small,), {}) != kind_of_call((torch.randn(8, 4).t(),), {})
    assert kind_of_call((small, small), {}) != kind_of_call((small, small.clone()), {})


def handed_back(*args, **kwargs):
    """A function whose calls of one kind are handed back; return it, and the calls of each way."""
    function, ran = make_record(make_config({})), list[str]()

    def compiled(*args, **kwargs):
        ran.append("compiled")

    def original(*args, **kwargs):
        ran.append("eager")

    function.hand_back.programs = 1
    function.hand_back.add(1, args, kwargs)
    return with_entries(compiled, function, None, original), ran


X, Y = torch.randn(4), torch.randn(4)
KINDS = [
    ((X,), {}, [((Y,), {})], [((X[::2],), {}), ((), {}), ((X, Y), {}), ((1,), {})]),
    ((X, Y), {}, [((Y, X), {})], [((X,), {}), ((X, X), {}), ((X,), {"y": Y})]),
    ((X, X), {}, [((Y, Y), {})], [((X, Y), {})]),
    ((X, 2.0), {}, [((Y, 2.0), {}), ((X, 4.0 / 2), {})], [((X, 2), {}), ((X, 3.0), {})]),
    ((X, True), {}, [((Y, True), {})], [((X, 1), {})]),
    ((2.0, X), {}, [((2.0, Y), {})], [((X, 2.0), {})]),
    ((X,), {"y": Y}, [((Y,), {"y": X})], [((X, Y), {}), ((X,), {"z": Y}), ((X,), {})]),
    ((X,), {"class": 1}, [((Y,), {"class": 1})], [((X,), {"class": 2})]),
    ((X,), {"_": 1, "a b": "t"}, [((Y,), {"_": 1, "a b": "t"})], [((X,), {"_": 1})]),
    ((), {"x": X}, [((), {"x": Y})], [((X,), {})]),
    ((X,), {"mode": "sum", "count": 7}, [((Y,), {"mode": "sum", "count": 7})], [((X,), {})]),
    (("a", 1), {}, [], [((), {"a": 1})]),
]


@pytest.mark.parametrize(("args", "kwargs", "same", "others"), KINDS)
def test_what_is_the_same_kind(args, kwargs, same, others):
    call, ran = handed_back(*args, **kwargs)
    for _ in range(2):  # looked up, and compared with the last call
        for more, words in ((args, kwargs), *same):
            call(*more, **words)
            assert ran.pop() == "eager"
        for more, words in others:
            call(*more, **words)
            assert ran.pop() == "compiled"
    with torch.no_grad():
        call(*args, **kwargs)
        assert ran.pop() == "compiled"
    with torch.autocast("cpu", torch.bfloat16):
        call(*args, **kwargs)
        assert ran.pop() == "compiled"
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        call(*args, **kwargs)
        assert ran.pop() == "compiled"
    finally:
        torch.set_num_threads(threads)
    call(*args, **kwargs)
    assert ran.pop() == "eager"


def test_a_guard_keeps_no_tensor_alive():
    for words in ({}, {"y": torch.ones(3)}):
        x = torch.ones(3)
        call, _ = handed_back(x, 2.0, **words)
        call(x, 2.0, **words)
        alive = weakref.ref(x)
        del x
        assert alive() is None


def test_a_module_in_training_is_another_kind():
    model = nn.Sequential(nn.Tanh(), nn.Dropout(0.5))
    x, results = torch.randn(8), []
    for kind in ([True], [False, True]):  # whether it trains
        torch._dynamo.reset()
        compiled = tofuse.compile(model, hand_back=True)
        for training in kind:
            compiled.train(training)
            with torch.no_grad():
                for _ in range(3):
                    torch.manual_seed(0)
                    result = compiled(x)
        results.append(result)
    assert torch.equal(*results)


def test_threads_know_what_ran_in_their_own_calls():
    function = make_record(make_config({}))
    record = function.hand_back
    record.programs = 1
    inside, leave = threading.Event(), threading.Event()

    def compiled(x):
        if len(x) == 2:  # eager runs it
            record.calls.in_eager += 1
            inside.set()
        leave.wait(10)

    call = with_entries(compiled, function, None, lambda x: None)
    slow = threading.Thread(target=call, args=(torch.ones(3),))
    slow.start()
    eager = threading.Thread(target=call, args=(torch.ones(2),))
    eager.start()
    assert inside.wait(10)
    leave.set()
    slow.join(10)
    eager.join(10)
    assert [*record.kinds] == [record.kind((torch.ones(2),), {})]


@pytest.mark.broad(1)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("network", [nn.LSTM, nn.GRU, nn.RNN])
def test_calls_whose_graph_breaks_leave_nothing_to_compile(network, training):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network(8, 8)

        def forward(self, x):
            return self.network(x)[0][-1]

    record = make_record(make_config({"hand_back": True}))
    module, x, y = Last(), torch.randn(3, 2, 8), torch.randn(5, 2, 8)
    compiled = compile_target(module, record)
    with torch.set_grad_enabled(training):
        with torch.compiler.set_stance("force_eager"):
            compiled(x)
        assert not record.hand_back.kinds  # Dynamo has not tried
        for argument in (x, y):
            assert torch.equal(compiled(argument), module(argument))
        assert len(record.hand_back.kinds) == 2


def test_a_function_with_a_graph_break_is_handed_back_if_eager_runs_all_of_it():
    def broken(x, large):
        y = x * 2
        torch._dynamo.graph_break()
        return chain(y, y) if large else y + 1

    x = torch.randn(4, 8)
    for large in (False, True):
        record = make_record(make_config({"hand_back": True}))
        compiled = compile_target(broken, record)
        first = compiled(x, large)
        assert record.hand_back.partial and bool(record.hand_back.kinds) == (not large)
        assert torch.equal(compiled(x, large), first)
        torch._dynamo.reset()


def test_training_of_lone_library_calls_is_handed_back():
    compiled = tofuse.compile(Counted(lambda x, w: x @ x.T), hand_back=True)
    x = torch.randn(64, 64, requires_grad=True)
    for _ in range(2):
        calls.clear()
        compiled(x).sum().backward()
    assert calls


def test_a_program_from_disk_is_handed_back_too(tmp_path):
    for _ in range(2):
        torch._dynamo.reset()
        compiled = tofuse.compile(Counted(lambda x, w: x * w), hand_back=True, cache_dir=tmp_path)
        assert ran_in_eager(compiled, torch.randn(4, 8))


def test_what_looks_into_calls_gets_them_all():
    x = torch.randn(4, 8)
    for options in ({"verify": True}, {"tune": "measure"}, {"fuel": 3}):
        module = Counted(lambda x, w: x * w)
        assert not ran_in_eager(tofuse.compile(module, hand_back=True, **options), x)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("size", [64, 4096])
def test_a_checkpoint_repeats_what_it_ran(reentrant, size):
    def dropped(x):
        return nn.functional.dropout(x.sin() * 2, 0.5)

    def normalized(x):
        return nn.functional.layer_norm(x.sin() * 2, x.shape)

    for function in (dropped, normalized):
        compiled = tofuse.compile(function, hand_back=True)
        for _ in range(3):
            x = torch.ones(size, requires_grad=True)
            y = checkpoint(compiled, x, use_reentrant=reentrant)
            y.sum().backward()
            assert x.grad is not None
            assert function is normalized or torch.equal(x.grad.bool(), y.bool())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_arguments_that_are_no_plain_tensors():
    compiled = tofuse.compile(lambda x: x + 1, hand_back=True)
    compiled(torch.ones(3))
    compiled(torch.ones(3))
    rows = torch.export.Dim("rows", min=2)
    module = nn.Module()
    module.forward = lambda x: compiled(x)
    torch.export.export(module, (torch.ones(4),), dynamic_shapes=({0: rows},))
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.strided)
    assert kind_of_call((nested,), {}) is None


def test_a_compiled_function_inside_of_another_is_inlined():
    inner = tofuse.compile(Counted(lambda x, w: x * w), hand_back=True)
    outer = tofuse.compile(lambda x: inner(x) + inner(x).sin(), hand_back=True, fullgraph=True)
    x = torch.randn(4, 8)
    with torch.no_grad():
        inner(x)
        torch.testing.assert_close(outer(x), inner(x) + inner(x).sin())
