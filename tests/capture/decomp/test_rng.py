"""Random numbers are reproducible, have the right distribution and recur in the backward."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.capture_only import compiled

N = 40_000


def sample(f, *args, seed=0):
    run, recorder = compiled(f)
    torch.manual_seed(seed)
    return run(*args), recorder


def test_dropout_mask_is_the_same_in_the_backward():
    x = torch.ones(8, 300, requires_grad=True)
    out, recorder = sample(lambda x: F.dropout(x, 0.25), x)
    out.sum().backward()
    torch.testing.assert_close(x.grad, out, rtol=0, atol=0)
    assert set(out.unique().tolist()) == {0.0, torch.tensor(1.0 / 0.75).item()}
    assert abs((out == 0).float().mean() - 0.25) < 0.03
    saved = [r for r in recorder.captured[0].results[1:] if r is not None]
    assert [r.type.nbytes for r in saved] == [16]  # the seed


def test_seeds_are_reproducible_and_call_sites_differ():
    def f(x):
        return F.dropout(x, 0.5), F.dropout(x, 0.5)

    x = torch.ones(1000)
    (a, b), recorder = sample(f, x)
    (c, d), _ = sample(f, x)
    (e, _), _ = sample(f, x, seed=1)
    assert torch.equal(a, c) and torch.equal(b, d)
    assert not torch.equal(a, b) and not torch.equal(a, e)
    assert recorder.ops("inference").count("tofuse.seed.default") == 1


@pytest.mark.parametrize(("p", "train"), [(0.0, True), (1.0, True), (0.3, False)])
def test_certain_dropout_is_exact(p, train):
    x = torch.tensor([1.0, -2.0, float("inf"), float("nan"), -0.0])
    out, _ = sample(lambda x: F.dropout(x, p, train), x)
    expected = F.dropout(x, p, train)
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


def test_dropout2d_drops_whole_channels():
    x = torch.ones(16, 32, 5, 5)
    out, _ = sample(nn.Dropout2d(0.5), x)
    channels = out.flatten(2)
    assert torch.equal(channels.amin(-1), channels.amax(-1))
    assert 0.4 < (channels[..., 0] == 0).float().mean() < 0.6


DISTRIBUTIONS = {  # a function of an empty tensor, mean, standard deviation
    "rand": (lambda x: torch.rand(N), 0.5, 12**-0.5),
    "rand_like": (torch.rand_like, 0.5, 12**-0.5),
    "randn": (lambda x: torch.randn(N), 0.0, 1.0),
    "randn_like": (torch.randn_like, 0.0, 1.0),
    "bernoulli": (lambda x: torch.bernoulli(torch.full_like(x, 0.2)), 0.2, 0.4),
    "bernoulli_p": (lambda x: torch.empty_like(x).bernoulli_(0.2), 0.2, 0.4),
    "uniform": (lambda x: torch.empty_like(x).uniform_(1, 3), 2.0, 2 * 12**-0.5),
    "normal_": (lambda x: torch.empty_like(x).normal_(1, 2), 1.0, 2.0),
    "normal": (lambda x: torch.normal(torch.ones_like(x), 2.0), 1.0, 2.0),
    "normal of a mean alone": (lambda x: torch.normal(torch.full_like(x, 3.0)), 3.0, 1.0),
    "exponential": (lambda x: torch.empty_like(x).exponential_(2.0), 0.5, 0.5),
    "randint": (lambda x: torch.randint(3, 13, (N,)).float(), 7.5, 8.25**0.5),
    "randint_wide": (lambda x: torch.randint(0, 10**6, (N,)) / 10**6, 0.5, 12**-0.5),
    "geometric": (lambda x: torch.empty_like(x).geometric_(0.5), 2.0, 2**0.5),
    "log_normal": (lambda x: torch.empty_like(x).log_normal_(0, 0.5).log(), 0.0, 0.5),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions(name):
    f, mean, deviation = DISTRIBUTIONS[name]
    out, recorder = sample(f, torch.empty(N))
    assert torch.isfinite(out).all()
    assert abs(out.mean() - mean) < 5 * deviation / N**0.5
    assert abs(out.std() / deviation - 1) < 0.05
    drawn = "bernoulli" if name == "bernoulli_p" else "uniform"  # one p takes 16 bits an element
    assert drawn in recorder.ops("inference")


def test_dtypes_are_as_requested():
    out, _ = sample(lambda: (torch.rand(3, dtype=torch.float64), torch.randn(3).bfloat16()))
    assert [t.dtype for t in out] == [torch.float64, torch.bfloat16]


def test_without_decompositions_aten_draws():
    run, recorder = compiled(lambda x: F.dropout(x, 0.5), executors=("aten",))
    run(torch.ones(100))
    assert "uniform" not in recorder.ops("inference")
