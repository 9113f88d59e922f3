"""New values of arguments are made in place where that is right, and right where it is not."""

import pytest
import torch

import tofuse


def plan_of(f, *args):
    torch._dynamo.reset()
    return tofuse.explain(f)(*args).graphs[0].plan


def check(f, *args):
    """The compiled function changes its arguments as eager does; the plan."""
    mine, theirs = [a.clone() for a in args], [a.clone() for a in args]
    torch._dynamo.reset()
    compiled = tofuse.compile(f, strict=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(*mine), f(*theirs))
        torch.testing.assert_close(mine, theirs)
    return plan_of(f, *[a.clone() for a in args])


def test_in_place():
    def f(x, y):
        x.mul_(2).add_(y)

    plan = check(f, torch.randn(100_001), torch.randn(100_001))
    assert "allocate" not in plan and "copy_" not in plan


def test_the_row_is_overwritten_after_its_statistics():
    def f(x):
        x.copy_(torch.softmax(x, -1))

    assert "allocate" not in check(f, torch.randn(37, 100))


def test_transposed_memory():
    def f(x, y):
        x.add_(y)

    plan = check(f, torch.randn(31, 64).t(), torch.randn(64, 31))
    assert "allocate" not in plan and "copy_" not in plan


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: (x.add_(1), x.clone())[1],  # the caller gets a tensor of its own
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
def test_what_is_read_later(f):
    check(f, torch.randn(20, 20), torch.randn(20, 20))


def test_exchange():
    def f(x, y):
        old = x.clone()
        x.copy_(y)
        y.copy_(old)

    check(f, torch.randn(5000), torch.randn(5000))


def test_two_arguments_get_one_value():
    def f(x, y):
        z = x * y
        x.copy_(z)
        y.copy_(z)
        return z

    check(f, torch.randn(5000), torch.randn(5000))


def test_gaps_in_memory():
    base = torch.zeros(40, 30)
    other = base.clone()

    def f(x):
        x.add_(1)

    tofuse.compile(f, strict=True)(base[:, 3:20])
    f(other[:, 3:20])
    torch.testing.assert_close(base, other)


def test_the_same_tensor_twice_and_views_of_one():
    def f(x, y):
        x.add_(y)
        y.mul_(2)

    compiled = tofuse.compile(f, strict=True)
    a, b = torch.randn(1000), torch.randn(1000)
    compiled(a, b)  # compiled for tensors that have nothing in common
    for pick in (lambda t: (t, t), lambda t: (t[:9], t[9:18]), lambda t: (t[::2], t[1::2])):
        mine = torch.randn(2000)
        theirs = mine.clone()
        compiled(*pick(mine))
        f(*pick(theirs))
        torch.testing.assert_close(mine, theirs)


def test_autograd_sees_the_change():
    def f(x):
        x.add_(1)

    x = torch.randn(10)
    w = torch.randn(10, requires_grad=True)
    product = (w * x).sum()
    tofuse.compile(f, strict=True)(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_training_writes_buffers():
    norm = torch.nn.BatchNorm1d(8)
    twin = torch.nn.BatchNorm1d(8)
    x = torch.randn(30, 8)
    for _ in range(2):
        tofuse.compile(norm)(x).sum().backward()
        twin(x).sum().backward()
    torch.testing.assert_close(norm.running_var, twin.running_var)
    torch.testing.assert_close(norm.weight.grad, twin.weight.grad)


def test_sizes_named_as_arguments():
    text = """p(x: f32[n0,n1]) {
  v0 = mul(x, x) : f32[n0,n1]
  v1 = broadcast(v0, shape=(n0,n1,n0), dims=(0,1)) : f32[n0,n1,n0]
  v2 = neg(v1) : f32[n0,n1,n0]
  return v2
}"""
    from tofuse.config import Config
    from tofuse.driver.pipeline import compile_text

    x = torch.randn(3, 5)
    (result,) = compile_text(text, Config())([x, 3, 5])
    torch.testing.assert_close(result, -(x * x)[:, :, None].expand(3, 5, 3))
