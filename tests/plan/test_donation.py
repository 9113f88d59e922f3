"""New values of mutated arguments are computed in the argument's memory where that is legal."""

import pytest
import torch

import tofuse
from tofuse.config import Config
from tofuse.driver.compile_graph import compile_text


def plan_of(f, *args):
    torch._dynamo.reset()
    return tofuse.explain(f)(*args).graphs[0].plan


def check(f, *args):
    """Compare results and mutated arguments with eager; return the plan."""
    actual, expected = [a.clone() for a in args], [a.clone() for a in args]
    torch._dynamo.reset()
    compiled = tofuse.compile(f, strict=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(*actual), f(*expected))
        torch.testing.assert_close(actual, expected)
    return plan_of(f, *[a.clone() for a in args])


def test_pointwise_ops_run_in_place():
    def f(x, y):
        x.mul_(2).add_(y)

    plan = check(f, torch.randn(100_001), torch.randn(100_001))
    assert "allocate" not in plan and "copy_" not in plan


def test_softmax_runs_in_place():
    def f(x):
        x.copy_(torch.softmax(x, -1))

    assert "allocate" not in check(f, torch.randn(37, 100))


def test_a_transposed_argument():
    def f(x, y):
        x.add_(y)

    plan = check(f, torch.randn(31, 64).t(), torch.randn(64, 31))
    assert "allocate" not in plan and "copy_" not in plan


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: (x.add_(1), x.clone())[1],  # the result must not alias the argument
        lambda x, y: x.copy_(x.flip(0)),
        lambda x, y: (x.add_(y.mean()), y.add_(x.mean()))[0],
        lambda x, y: x.cumsum_(0),
        lambda x, y: x[10:].add_(x[:10]),
        lambda x, y: x.sub_(x[3].clone()),
        lambda x, y: x.copy_(x @ y),
        lambda x, y: (x.zero_(), y.fill_(3.0))[0],
        lambda x, y: x.copy_(y),
        lambda x, y: x.add_((x + 1).t()),
    ],
)
def test_arguments_that_are_read_later(f):
    check(f, torch.randn(20, 20), torch.randn(20, 20))


def test_swap_of_two_arguments():
    def f(x, y):
        old = x.clone()
        x.copy_(y)
        y.copy_(old)

    check(f, torch.randn(5000), torch.randn(5000))


def test_two_arguments_get_the_same_value():
    def f(x, y):
        z = x * y
        x.copy_(z)
        y.copy_(z)
        return z

    check(f, torch.randn(5000), torch.randn(5000))


def test_an_argument_with_gaps_in_memory():
    base = torch.zeros(40, 30)
    other = base.clone()

    def f(x):
        x.add_(1)

    tofuse.compile(f, strict=True)(base[:, 3:20])
    f(other[:, 3:20])
    torch.testing.assert_close(base, other)


def test_arguments_that_alias_each_other():
    def f(x, y):
        x.add_(y)
        y.mul_(2)

    compiled = tofuse.compile(f, strict=True)
    a, b = torch.randn(1000), torch.randn(1000)
    compiled(a, b)  # compiled for tensors that do not alias
    for pick in (lambda t: (t, t), lambda t: (t[:9], t[9:18]), lambda t: (t[::2], t[1::2])):
        actual = torch.randn(2000)
        expected = actual.clone()
        compiled(*pick(actual))
        f(*pick(expected))
        torch.testing.assert_close(actual, expected)


def test_the_version_counter_is_increased():
    def f(x):
        x.add_(1)

    x = torch.randn(10)
    w = torch.randn(10, requires_grad=True)
    product = (w * x).sum()
    tofuse.compile(f, strict=True)(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_batch_norm_buffers_are_updated():
    norm = torch.nn.BatchNorm1d(8)
    eager_norm = torch.nn.BatchNorm1d(8)
    x = torch.randn(30, 8)
    for _ in range(2):
        tofuse.compile(norm)(x).sum().backward()
        eager_norm(x).sum().backward()
    torch.testing.assert_close(norm.running_var, eager_norm.running_var)
    torch.testing.assert_close(norm.weight.grad, eager_norm.weight.grad)


def test_size_symbols_with_the_names_of_arguments():
    text = """p(x: f32[n0,n1]) {
  v0 = mul(x, x) : f32[n0,n1]
  v1 = broadcast(v0, shape=(n0,n1,n0), dims=(0,1)) : f32[n0,n1,n0]
  v2 = neg(v1) : f32[n0,n1,n0]
  return v2
}"""
    x = torch.randn(3, 5)
    (result,) = compile_text(text, Config()).run([x, 3, 5])
    torch.testing.assert_close(result, -(x * x)[:, :, None].expand(3, 5, 3))


@pytest.mark.parametrize("form", ["index_copy_", "index_put", "masked", "slice", "scatter_"])
@pytest.mark.parametrize("read_before", [False, True])
def test_updates_of_arguments(form, read_before):
    """The argument has the new values, and reads before the update see the old ones."""

    def update(cache, x, i):
        before = cache.sum(-1) if read_before else None
        if form == "index_copy_":
            cache.index_copy_(1, i, x)
        elif form == "index_put":
            cache[:, i] = x
        elif form == "masked":
            cache.masked_scatter_(cache > 1, x)
        elif form == "slice":
            cache[:, 3:5] = x
        else:
            cache.scatter_(1, i[None, :, None].expand(2, 2, 4), x)
        return before, cache.exp().sum(-1), cache

    x, i = torch.randn(2, 2, 4), torch.tensor([5, 0])
    mine, theirs = torch.randn(2, 8, 4), None
    theirs = mine.clone()
    versions = mine._version, theirs._version
    actual, expected = tofuse.compile(update)(mine, x, i), update(theirs, x, i)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(mine, theirs)
    assert actual[2] is mine
    assert mine._version > versions[0]


@pytest.mark.parametrize("length", [8, 3000])
@pytest.mark.parametrize("form", ["index_copy_", "index_put", "scatter_"])
def test_a_cache_is_updated_in_place(form, length):
    """Whatever its size, and whatever the layout of what is written."""

    def update(cache, x, i):
        rows = x.transpose(1, 2) * 1.5
        if form == "index_copy_":
            cache.index_copy_(2, i, rows)
        elif form == "index_put":
            cache[:, :, i] = rows
        else:
            cache.scatter_(2, i[None, None, :, None].expand(1, 4, 2, 16), rows)
        return cache.amax(2)

    x, i = torch.randn(1, 2, 4, 16), torch.tensor([7, 0])
    plan = check(update, torch.randn(1, 4, length, 16), x, i)
    assert "copy_." not in plan, plan
