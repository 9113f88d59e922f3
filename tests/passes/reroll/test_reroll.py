"""Loops over time become recurrences with eager's results, whatever their steps compute."""

import random

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.loops import compare, has_recurrence

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def low_pass(x):
    y, outputs = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        y = 0.9 * y + 0.1 * x[:, t]
        outputs.append(y)
    return torch.stack(outputs, 1)


def linear_attention(x):
    k, v, w = x.sin(), x.cos(), x * 0.1
    state, outputs = x.new_zeros(x.shape[0], x.shape[2], x.shape[2]), []
    for t in range(x.shape[1]):
        kv = k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2)
        outputs.append((x[:, t].unsqueeze(-1) * (state + kv)).sum(-2))
        state = state * torch.exp(-torch.exp(w[:, t])).unsqueeze(-1) + kv
    return torch.stack(outputs, 1), state


def state_space(x):
    a, h, outputs = torch.linspace(-1, -0.1, 6, dtype=x.dtype), 0.0, []
    for t in range(x.shape[1]):
        d = F.softplus(x[:, t])
        h = torch.exp(d.unsqueeze(-1) * a) * h + (d * x[:, t]).unsqueeze(-1)
        outputs.append(h.sum(-1))
    return torch.stack(outputs, 1), h


def spiking(x):
    v, spikes = torch.zeros_like(x[:, 0]), []
    for xt in x.unbind(1):
        v = 0.9 * v + xt
        spike = (v > 0.5).to(x.dtype)
        v = v - spike
        spikes.append(spike)
    return torch.stack(spikes)


def lorenz(x):
    a, b, c = x[:, 0], x[:, -1], x[:, 0] * 0.5
    for _ in range(11):
        da, db, dc = b - a, a * (2 - c) - b, a * b - 0.6 * c
        a, b, c = a + 0.01 * da, b + 0.01 * db, c + 0.01 * dc
    return a, b, c


def second_order(x):
    y1 = y2 = x1 = x2 = torch.zeros_like(x[:, 0])
    outputs = []
    for t in range(x.shape[1]):
        y = 0.2 * x[:, t] + 0.4 * x1 + 0.2 * x2 - 0.5 * y1 - 0.3 * y2
        x1, x2, y1, y2 = x[:, t], x1, y, y1
        outputs.append(y)
    return torch.stack(outputs, 1)


def from_the_end(x):
    advantage, outputs = torch.zeros_like(x[:, 0]), [x[:, 0]]
    for t in reversed(range(x.shape[1] - 1)):
        advantage = x[:, t] + 0.9 * x[:, t + 1] - advantage * 0.5
        outputs.insert(0, advantage)
    return torch.stack(outputs, 1)


def stable_softmax(x):
    total = most = torch.full_like(x[:, 0], -1e30)
    outputs = []
    for t in range(x.shape[1]):
        new = torch.maximum(most, x[:, t])
        total = total * torch.exp(most - new) + torch.exp(x[:, t] - new)
        most = new
        outputs.append(total / new)
    return torch.cat(outputs, 1)


def flags(x):
    done, count = torch.zeros_like(x[:, 0], dtype=torch.bool), torch.zeros_like(x[:, 0]).long()
    for t in range(x.shape[1]):
        done = done | (x[:, t] > 1)
        count = count + (~done).long()
    return done, count


def differences(x):
    previous, total = x[:, 0], torch.zeros_like(x[:, 0])
    for t in range(1, x.shape[1]):
        total = total * 0.5 + (x[:, t] - previous).abs()
        previous = x[:, t]
    return total, previous


def two_loops(x):
    y = low_pass(x)
    return low_pass(y.flip(1)) + y


def normalized(x):
    h, outputs = x.new_zeros(x.shape[0], x.shape[2]), []
    for t in range(x.shape[1]):
        h = 0.5 * h + F.softmax(x[:, t], -1)
        outputs.append(F.layer_norm(h, h.shape[-1:]))
    return torch.stack(outputs, 1)


def every_second_step(x):
    y, outputs = x[:, 0], []
    for t in range(0, x.shape[1], 2):
        y = torch.tanh(y + x[:, t])
        outputs.append(y)
    return torch.stack(outputs, -1)


LOOPS = (
    *(low_pass, linear_attention, state_space, spiking, lorenz, second_order, from_the_end),
    *(stable_softmax, flags, differences, two_loops, normalized, every_second_step),
)
SHAPES = ((3, 20, 5), (1, 17, 1), (2, 18, 70), (4, 19, 32), (0, 17, 3), (2, 17, 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("f", LOOPS, ids=lambda f: f.__name__)
def test_loops_are_as_eager(f, dtype):
    for shape in SHAPES:
        compare(f, torch.randn(shape, dtype=dtype), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("f", LOOPS, ids=lambda f: f.__name__)
def test_loops_are_recurrences(f):
    assert has_recurrence(f, torch.randn(3, 20, 5))


@pytest.mark.parametrize("f", [low_pass, linear_attention, spiking], ids=lambda f: f.__name__)
def test_half_precision_and_layouts(f):
    x = torch.randn(20, 6, 4).transpose(0, 1)
    compare(f, x[:, ::1, 1:], rtol=2e-5, atol=2e-5)
    if f is not spiking:  # whose threshold decides by the last bit
        compare(f, x.bfloat16(), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -0.0])
def test_special_values(value):
    x = torch.full((1, 19, 3), -0.0)
    x[:, 9, 1] = value
    for f in (low_pass, lorenz, stable_softmax):
        got, expected = tofuse.compile(f, capture="trace")(x), f(x)
        torch.testing.assert_close(got, expected, equal_nan=True)
        pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]
        assert all(torch.equal(a.signbit(), b.signbit()) for a, b in pairs if not a.isnan().any())


def test_random_steps_stay_random():
    def walk(rate):
        y, outputs = torch.zeros_like(rate), []
        for _ in range(16):
            p = torch.poisson(rate)
            y = 0.9 * y + p
            outputs.append(p)
        return torch.stack(outputs), y

    samples, _ = tofuse.compile(walk, capture="trace")(torch.full((40,), 5.0))
    assert not all(torch.equal(samples[0], s) for s in samples)


@pytest.mark.parametrize("f", [low_pass, linear_attention], ids=lambda f: f.__name__)
def test_eager_precision_rounds_every_step(f):
    x = torch.randn(2, 20, 6).bfloat16()
    got, expected = tofuse.compile(f, capture="trace", precision="eager")(x), f(x)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_loops_that_would_hold_all_steps_stay_unrolled():
    def symmetric(x):
        p = torch.zeros(512, 512)
        for t in range(x.shape[0]):
            a = x[t, :, None].sin() * x[t]
            p = p * 0.8 + (a + a.t()) / a.norm()
        return p

    x = torch.randn(32, 512)
    assert not has_recurrence(symmetric, x)
    compare(symmetric, x, rtol=1e-4, atol=1e-4)


def test_a_state_of_one_element_runs_in_a_kernel():
    def newton(a):
        y = torch.ones(())
        for _ in range(20):
            y = 0.5 * (y + a / y)
        return y

    assert has_recurrence(newton, torch.tensor(2.0))
    compare(newton, torch.tensor(2.0))


def test_symbolic_sizes_in_a_step():
    def f(x):
        y = torch.ones_like(x[:, 0])
        for t in range(12):
            y = y / x.shape[0] + x[:, t]
        return y

    compiled = tofuse.compile(f, dynamic=True)
    for n in (5, 7):
        x = torch.randn(n, 12, 3)
        torch.testing.assert_close(compiled(x), f(x))


def test_few_steps_stay_unrolled():
    assert not has_recurrence(low_pass, torch.randn(3, 6, 5))


def test_steps_with_hints_stay_unrolled():
    def hinted(x):
        y = torch.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            with tofuse.no_fuse():
                y = y * 0.5 + x[:, t]
        return y

    assert not has_recurrence(hinted, torch.randn(3, 12, 5))


def test_gradients_of_a_loop():
    x = torch.randn(3, 12, 5, requires_grad=True)
    results = []
    for f in (low_pass, tofuse.compile(low_pass)):
        (gradient,) = torch.autograd.grad(f(x).square().sum(), x)
        results.append(gradient)
    torch.testing.assert_close(*results)


UNARY = (torch.sin, torch.tanh, torch.sigmoid, torch.neg, torch.abs, lambda x: x * 0.5)
BINARY = (torch.add, torch.sub, torch.mul, torch.maximum, lambda x, y: torch.where(x > y, x, y * 2))


def random_loop(seed):
    """Return a loop over some states, inputs and constants, and its arguments."""
    r = random.Random(seed)
    steps, states, inputs = r.randint(8, 14), r.randint(1, 3), r.randint(1, 2)
    dims = [r.randint(0, 1) for _ in range(inputs)]
    ops = [(r.choice(UNARY), r.choice(BINARY), r.random(), r.random()) for _ in range(6)]
    picks = [r.randrange(6 + states + inputs) for _ in range(states)]
    is_reverse, stacks = r.random() < 0.5, r.random() < 0.7

    def f(constant, *xs):
        current = [xs[0].select(dims[0], 0) * k for k in range(states)]
        outputs = []
        for t in reversed(range(steps)) if is_reverse else range(steps):
            values = [*current, *(x.select(d, t) for x, d in zip(xs, dims, strict=True))]
            for unary, binary, a, b in ops:
                x, y = (values[int(p * len(values))] for p in (a, b))
                values.append(torch.tanh(binary(unary(x), y * constant)))
            current = [values[p] for p in picks]
            outputs.append(values[-1])
        return (torch.stack(outputs, 1), *current) if stacks else tuple(current)

    shape = [(steps, 3, 7) if d == 0 else (3, steps, 7) for d in dims]
    return f, (torch.rand(7), *map(torch.randn, shape))


@pytest.mark.parametrize("seed", range(40))
def test_random_loops(seed):
    f, args = random_loop(seed)
    compare(f, *args, rtol=2e-5, atol=2e-5)
