"""Value checks of operators raise the errors of eager at run time."""

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
X, PROBABILITIES = torch.tensor([2.0, 0.5]), torch.tensor([0.5, 0.25])

REJECTED = {
    "entropy": (lambda x: F.binary_cross_entropy(x, x * 0), "between 0 and 1"),
    "nan": (lambda x: F.binary_cross_entropy(x * float("nan"), x * 0), "between 0 and 1"),
    "bernoulli": (lambda x: torch.bernoulli(x) + 1, "p_in"),
    "negative": (lambda x: torch.bernoulli(x - 2) + 1, "p_in"),
    "bernoulli of one": (lambda x: torch.empty_like(x).bernoulli_(2.0), "in \\[0, 1\\]"),
    "normal": (lambda x: torch.normal(x, -x), "std >= 0"),
    "uniform": (lambda x: torch.empty_like(x).uniform_(2, 1), "from=2"),
    "softmax": (lambda x: x.long().softmax(0, dtype=torch.long), "not implemented for 'Long'"),
}


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("name", REJECTED)
def test_invalid_values_raise(name, capture):
    program, message = REJECTED[name]
    with pytest.raises(RuntimeError, match=message):
        program(X)
    with pytest.raises(RuntimeError, match=message):
        tofuse.compile(program, capture=capture)(X)


def test_valid_values_pass():
    assert_as_eager(
        lambda x: F.binary_cross_entropy(x, x * 0), PROBABILITIES.clone().requires_grad_()
    )
    assert_as_eager(
        lambda x: F.binary_cross_entropy(x.sigmoid(), (x > 1).float()), X.requires_grad_()
    )
    bits = torch.tensor([0.0, 1.0, 1.0])
    assert torch.equal(tofuse.compile(torch.bernoulli)(bits), bits)


def test_check_is_fused():
    report = tofuse.explain(F.binary_cross_entropy)(*torch.rand(2, 200_000))
    assert len(report.kernels) == 1


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "draw",
    [
        torch.rand_like,
        lambda y: torch.rand(y.shape, dtype=y.dtype),
        lambda y: torch.empty_like(y).uniform_(),
    ],
)
def test_half_precision_uniforms_are_below_one(draw, dtype, capture):
    y = torch.empty(100_000, dtype=dtype)
    drawn = tofuse.compile(lambda y: draw(y) + 0, capture=capture)(y)
    assert drawn.dtype is dtype and drawn.min() >= 0 and 0.99 < drawn.max() < 1
    assert abs(drawn.float().mean() - 0.5) < 0.005


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_random_integers_are_within_bounds(capture):
    x = torch.empty(20_000)
    for draw in (lambda x: x.clone().random_(2, 9) + 0, lambda x: x.long().random_(9) + 0):
        drawn = tofuse.compile(draw, capture=capture)(x)
        assert drawn.max() == 8 and drawn.unique().numel() == 9 - drawn.min()
        assert drawn.dtype is draw(x).dtype


def promise_rows(x):
    z = x.nonzero()
    torch._check(z.size(0) == 4)
    return z + 3


def promise_elements(x):
    z = torch.masked_select(x, x > 0)
    torch._check(z.numel() == 4)
    return z * 2 + torch.arange(4)


def promise_most_rows(x):
    z = x.nonzero()
    torch._check(z.size(0) <= 4)
    torch._check(z.size(0) >= 3)
    return z.sum(1) * 2


def promise_a_number(x):
    n = x.sum().item()
    torch._check(n == 4)
    return x * n


@pytest.mark.filterwarnings("ignore:tofuse runs a whole program")
@pytest.mark.parametrize(
    "fn",
    [promise_rows, promise_elements, promise_most_rows, promise_a_number],
    ids=lambda f: f.__name__,
)
def test_a_check_of_a_size_that_depends_on_data_holds(fn):
    right = torch.tensor([0, 1, 1, 0, 1, 1])
    wrong = (torch.zeros(6, dtype=torch.int64), torch.ones(6, dtype=torch.int64), right + 1)
    settings = {"capture_dynamic_output_shape_ops": True, "capture_scalar_outputs": True}
    with torch._dynamo.config.patch(settings):
        compiled = tofuse.compile(fn)
        assert torch.equal(compiled(right), fn(right))
        for x in wrong:
            with pytest.raises(RuntimeError):
                fn(x)
            with pytest.raises(RuntimeError):
                compiled(x)
        assert torch.equal(compiled(right), fn(right))


def test_a_custom_operator_whose_fake_has_another_shape_raises():
    @torch.library.custom_op("tofuse_test::half", mutates_args=())
    def half(x: torch.Tensor) -> torch.Tensor:
        return x[: len(x) // 2].clone()

    @half.register_fake
    def _(x):
        return torch.empty_like(x)

    compiled = tofuse.compile(lambda x: half(x).sin() + x)
    with pytest.raises(RuntimeError, match=r"returned a tensor of shape \[50\].* for \[100\]"):
        compiled(torch.randn(100))
