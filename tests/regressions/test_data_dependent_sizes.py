"""Sizes and numbers that depend on data: kernels between the calls that find them, and checks."""

import pytest
import torch

import tofuse
from tests.support.eager import assert_as_eager, assert_same, copies, outcome

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
ROWS = torch.arange(12.0).reshape(4, 3)


@pytest.fixture(autouse=True)
def captured():
    """Let Dynamo capture calls whose results' sizes and numbers depend on data."""
    settings = {"capture_dynamic_output_shape_ops": True, "capture_scalar_outputs": True}
    with torch._dynamo.config.patch(settings):
        yield


STRICT = {"fullgraph": True, "strict": True}


def ones_below(x, n):
    return torch.cat([x, x.new_ones(n.item(), x.shape[1])])


def two_numbers(x, n):
    a, b = n.item(), (n + 1).item()
    return torch.cat([x.new_zeros(a, b), x.new_ones(a, b)]).sum() * x


def chosen_rows(x, n):
    kept = x[x[:, 0] > n]
    total = kept.exp().sum(0)
    return torch.cat([kept * 2, total[None]]), kept.mean() + n


def scaled(x, n):
    return (x * n.item()).sin() * x.sum().item() + (n / 2).item()


def switched(x, n):
    return x * (x > n).any().item() + (x.sum() > n).item()


def counted(x, n):
    values, counts = torch.unique((x > n).long(), return_counts=True)
    return values * counts, x.view(-1)[x.view(-1) > 1].view(-1, 1) * x[0]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "fn",
    [ones_below, two_numbers, chosen_rows, scaled, switched, counted],
    ids=lambda f: f.__name__,
)
def test_sizes_and_numbers_of_data_are_as_eager(fn, dynamic):
    compiled = tofuse.compile(fn, dynamic=dynamic, **STRICT)
    for n in (2, 1, 5):
        for grad in (False, True):
            args = (ROWS.clone().requires_grad_(grad), torch.tensor(n))
            assert_same(outcome(compiled, copies(args), {}), outcome(fn, copies(args), {}))


def test_kernels_run_between_the_calls_that_find_a_size():
    report = tofuse.explain(chosen_rows)(ROWS, torch.tensor(2))
    assert report.kernels
    assert "PyTorch runs aten.index.Tensor" in str(report)


def test_a_check_fails_with_the_message_of_the_user():
    def fn(x):
        rows = x.nonzero()
        torch._check(rows.size(0) <= 4, lambda: "too many rows")
        return rows * 2

    compiled = tofuse.compile(fn, **STRICT)
    assert torch.equal(compiled(torch.ones(4)), fn(torch.ones(4)))
    with pytest.raises(RuntimeError, match="too many rows"):
        compiled(torch.ones(5))


def test_a_check_without_message_names_its_line():
    def fn(x, n):
        k = (n + 1).item()
        torch._check(k >= 0)
        torch._check(k % 2 == 1)
        return torch.ones(k) * 2

    compiled = tofuse.compile(fn, **STRICT)
    assert torch.equal(compiled(ROWS, torch.tensor(0)), torch.full((1,), 2.0))
    with pytest.raises(RuntimeError, match=r"test_data_dependent_sizes.py:\d+: torch._check"):
        compiled(ROWS, torch.tensor(3))


def test_a_size_promised_to_be_another_holds():
    def fn(x, n):
        k = n.item()
        torch._check(k == x.shape[0])
        return x + torch.arange(k)[:, None], x.sum(0)

    compiled = tofuse.compile(fn, dynamic=True, **STRICT)
    assert_same((compiled(ROWS, torch.tensor(4)), 0, 0), (fn(ROWS, torch.tensor(4)), 0, 0))
    for n in (3, 5):
        with pytest.raises(RuntimeError):
            compiled(ROWS, torch.tensor(n))


def test_writes_after_a_size_of_data():
    def fn(x, w):
        w.mul_(2)
        kept = x[x > 3]
        w.add_(kept.sum())
        return kept * w[0, 0], w.view(-1)[1:] + 1

    assert_as_eager(fn, ROWS, torch.ones(2, 2), options=STRICT)


@pytest.mark.parametrize("dynamic", [None, True])
def test_operators_of_numbers_alone(dynamic):
    aten = torch.ops.aten

    def fn(x, a, b):
        return x.sin(), aten.add(a, b), aten.mul(b, a), aten.div(a, 100, rounding_mode="floor")

    compiled = tofuse.compile(fn, dynamic=dynamic, **STRICT)
    for a, b in ((4, 3.3), (1024, 0.5)):
        assert_same((compiled(ROWS, a, b), 0, 0), (fn(ROWS, a, b), 0, 0))


def test_a_derivative_that_needs_a_size_of_data_is_left_to_pytorch():
    def fn(x, n):
        return torch.split(x, [n.item(), 4 - n.item()])[0].cumsum(0)

    report = tofuse.explain(fn)(ROWS.clone().requires_grad_(), torch.tensor(2))
    assert "PyTorch runs the whole program" in str(report)
    assert_as_eager(fn, ROWS.clone().requires_grad_(), torch.tensor(2), options=STRICT)
