"""What torch says of compilations holds for both ways to use tofuse, as for its own backends."""

import functools
import inspect

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import tofuse
from tofuse.errors import OptionError, UnsupportedError

WAYS = {
    "tofuse.compile": tofuse.compile,
    "torch.compile": functools.partial(torch.compile, backend="tofuse"),
}
LACKS_WORDS = "recompile_limit" not in inspect.signature(torch.compile).parameters


@pytest.fixture(params=WAYS, autouse=True)
def way(request, fresh_dynamo):
    return WAYS[request.param]


class Calls:
    """A function, and how often Python has run it, which a compiled call does not."""

    def __init__(self):
        self.in_python = 0

    def program(self, x):
        if not torch.compiler.is_compiling():
            self.in_python += 1
        return x.sin() * 2


def test_stances(way):
    calls = Calls()
    compiled, x = way(calls.program), torch.randn(5)
    compiled(x)
    assert calls.in_python == 0
    with torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(compiled(x), x.sin() * 2)
        assert calls.in_python == 1
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(x)
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            compiled(x.double())
    with torch.compiler.set_stance("eager_on_recompile"):
        compiled(x.int())
    assert calls.in_python == 2


def test_a_disabled_function_runs_in_python(way):
    calls = Calls()
    inner = torch.compiler.disable(calls.program)
    compiled, x = way(lambda x: inner(x + 1) * 3), torch.randn(5)
    torch.testing.assert_close(compiled(x), (x + 1).sin() * 6)
    assert calls.in_python == 1


def test_a_function_allowed_in_the_graph(way):
    def opaque(x):
        return x * 2 if type(x).__name__ != "str" else None

    torch.compiler.allow_in_graph(opaque)
    compiled, x = way(lambda x: opaque(x.sin()) + 1, fullgraph=True), torch.randn(5)
    torch.testing.assert_close(compiled(x), x.sin() * 2 + 1)


def test_a_nested_region(way):
    @torch.compiler.nested_compile_region
    def block(x, y):
        return torch.sin(x) @ y

    def program(x, y):
        for _ in range(3):
            x = block(x, y)
        return x

    x, y = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    results = [run(x, y) for run in (program, way(program, fullgraph=True))]
    torch.testing.assert_close(*results)
    gradients = [torch.autograd.grad(r.sum(), (x, y)) for r in results]
    torch.testing.assert_close(*gradients)


def count_programs(way, calls, **options):
    """Return how many programs calls with these arguments compile."""
    torch._dynamo.reset()
    counters.clear()
    compiled = way(lambda x: x * 2, **options)
    for x in calls:
        torch.testing.assert_close(compiled(x), x * 2)
    return counters["stats"]["unique_graphs"]


def test_marked_sizes_compile_once(way):
    rows = [torch.randn(n, 3) for n in (5, 7, 9, 11)]
    assert count_programs(way, rows, dynamic=False) == 4
    for x in rows:
        torch._dynamo.mark_dynamic(x, 0)
    assert count_programs(way, rows) == 1


def test_a_patch_of_dynamos_options(way):
    rows = [torch.randn(n, 3) for n in (5, 7, 9, 11)]
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        assert count_programs(way, rows) == 4


@pytest.mark.skipif(LACKS_WORDS, reason="this torch.compile has no recompile_limit")
def test_a_limit_of_programs(way, empty_cache_on_disk):
    rows = [torch.randn(n, 3) for n in (5, 7, 9, 11)]
    assert count_programs(way, rows, dynamic=False, recompile_limit=2) == 2


@pytest.mark.skipif(LACKS_WORDS, reason="this torch.compile has no isolate_recompiles")
def test_isolated_programs(way):
    def program(x):
        return x * 2

    first = way(program, dynamic=False, isolate_recompiles=True, recompile_limit=1)
    second = way(program, dynamic=False, isolate_recompiles=True, recompile_limit=1, name="second")
    x = torch.randn(5)
    torch.testing.assert_close((first(x), second(x)), (x * 2, x * 2))


@pytest.mark.skipif(not LACKS_WORDS, reason="this torch.compile has them")
def test_words_that_torch_lacks_are_an_error():
    with pytest.raises(UnsupportedError, match="has no 'recompile_limit'"):
        tofuse.compile(nn.Linear(3, 3), recompile_limit=3)


@pytest.mark.parametrize("limit", [0, -1, True, 2.5])
def test_a_limit_that_is_none_is_an_error(limit):
    with pytest.raises(OptionError, match="recompile_limit must be a number of programs"):
        tofuse.compile(nn.Linear(3, 3), recompile_limit=limit)
