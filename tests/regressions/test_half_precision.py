"""Half precision: operands that eager rounds before it computes."""

import pytest
import torch
import torch.nn.functional as F

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

ZERO_DIM_OPS = {
    "sums": lambda x, s: (
        x + s,
        x - s,
        s - x,
        torch.add(x, s, alpha=0.7),
        torch.add(s, x, alpha=2),
    ),
    "differences": lambda x, s: (torch.sub(x, s, alpha=0.7), torch.rsub(x, s, alpha=0.7)),
    "products": lambda x, s: (x * s, s * x, x / s, s / x, torch.addcmul(x, x, s)),
    "quotients": lambda x, s: (x // s, s // x, x % s, s % x, torch.fmod(x, s), torch.fmod(s, x)),
    "functions": lambda x, s: (x**s, torch.xlogy(x, s), torch.xlogy(s, x), torch.atan2(s, x)),
    "logarithms": lambda x, s: (torch.special.xlog1py(x, s), torch.logaddexp(x, s)),
    "selections": lambda x, s: (torch.where(x > s, x, s), torch.maximum(x, s), x.clamp(max=s)),
    "multiply and add": lambda x, s: (torch.addcmul(s, x, x), torch.addcdiv(x, x, s)),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_zero_dim_operand_is_rounded_to_half_precision_first(dtype):
    x = torch.randn(1024, generator=torch.Generator().manual_seed(0)).to(dtype)
    s = torch.tensor(0.3)

    def fn(x, s):
        return [r for op in ZERO_DIM_OPS.values() for r in op(x, s)]

    def numbers(x):
        return 0.3 // x, x // 0.3, torch.xlogy(x, 0.3), torch.full_like(x, 0.3) + x, x + 0.3

    for f, args in ((fn, (x, s)), (numbers, (x,))):
        got, expected = tofuse.compile(f, precision="eager")(*args), f(*args)
        for k, (a, b) in enumerate(zip(got, expected, strict=True)):
            assert a.dtype == b.dtype
            same = (a == b) | (a.isnan() & b.isnan())
            assert same.all(), k


@pytest.mark.broad(2)
@pytest.mark.parametrize("p", [0.1, 0.25, 0.33, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scale_of_dropout_is_rounded_where_values_in_registers_are(dtype, p):
    x = (torch.randn(64, 64).to(dtype)).requires_grad_()
    in_eager = x * torch.ones_like(x).div_(1 - p)
    y = tofuse.compile(lambda x: F.dropout(x, p), precision="eager")(x)
    assert torch.equal(y, torch.where(y == 0, 0.0, in_eager))
    y = tofuse.compile(lambda x: F.dropout(x, p).float() * 1.0)(x)
    exact = x.double() / (1 - p)
    torch.testing.assert_close(y.double(), torch.where(y == 0, 0.0, exact), rtol=1e-6, atol=0)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, torch.where(y == 0, 0.0, 1 / (1 - p)).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_powers_of_every_value_have_the_bits_of_eager(dtype):
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)

    def fn(x):
        return [x**n for n in (-2, -1, -0.5, 0.5, 2, 3, 4)]

    for a, b in zip(tofuse.compile(fn, precision="eager")(x), fn(x), strict=True):
        same = (a == b) & (a.signbit() == b.signbit())
        assert (same | (a.isnan() & b.isnan())).all()


def test_report_says_why_pytorch_runs_a_loss_that_kernels_support():
    x = torch.randn(64).bfloat16()
    report = tofuse.explain(lambda x, y: F.mse_loss(x, y) * 2, precision="eager")(x, x + 1)
    assert [r.why for r in report.regions if r.executor == "aten"] == [
        "precision='eager': a kernel would round half precision at other steps"
    ]
    fast = tofuse.explain(lambda x, y: F.mse_loss(x, y) * 2)(x, x + 1)
    assert all(r.executor == "llvm" for r in fast.regions)


def test_a_result_of_another_dtype_than_torch_predicts():
    """torch predicts new statistics in float32; the operator returns them in bfloat16."""
    x = torch.tensor([[-8.5], [-1.75]], dtype=torch.bfloat16, requires_grad=True)
    scale, shift, mean, var = (torch.tensor([n], dtype=torch.bfloat16) for n in (-4, -2, 2.5, 3))

    def normalize(x, scale, shift, mean, var):
        operator = torch.ops.aten._native_batch_norm_legit
        return operator(x, scale, shift, mean, var, False, 0.5, 1e-5)[0]

    gradients = []
    for run in (normalize, tofuse.compile(normalize, precision="eager")):
        y = run(x, scale, shift, mean.clone(), var.clone())
        gradients.append(torch.autograd.grad(y.sum(), x)[0])
    assert gradients[0].equal(gradients[1])
