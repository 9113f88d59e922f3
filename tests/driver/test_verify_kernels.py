"""`verify=True`: correct kernels pass; an injected fault is found, named and saved as a repro."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import tofuse
from benchmarks.seeds import SEEDS, Seed
from tests.support.eager import assert_as_eager
from tofuse.backends.cpu.llvm import elementwise
from tofuse.driver.verify_kernels import describe_mismatch

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


SEED_NAMES = (
    "norm_composite",
    "split_stack_weights",
    "gelu_bookends_kept",
    "heads_to_rows",
    "softmax",
)


@pytest.mark.parametrize("seed", [s for s in SEEDS if s.name in SEED_NAMES], ids=lambda s: s.name)
def test_correct_kernels_pass(seed: Seed):
    result = tofuse.compile(seed.program, verify=True)(*seed.make_inputs("small"))
    if seed.backward:
        assert isinstance(result, torch.Tensor)
        result.sum().backward()


def program(x, index):
    y = F.gelu(x) - x[index]
    bits = y > 0
    return F.softmax(y * 3, -1), bits, y.argmax(-1), y[:, 1::2].t()


CASES = [(torch.float32, True), (torch.float64, False), (torch.bfloat16, False)]


@pytest.mark.parametrize(("dtype", "dynamic"), CASES)
def test_dtypes_layouts_and_symbols(dtype, dynamic):
    for rows, width in ((5, 7), (33, 64)):
        x = torch.randn(width, rows).to(dtype).t().requires_grad_()
        index = torch.randint(rows, (rows,))
        options = {"verify": True, "dynamic": dynamic}
        tolerance = 1e-5 if dtype in (torch.float32, torch.float64) else 5e-2
        assert_as_eager(program, x, index, rtol=tolerance, atol=tolerance, calls=1, options=options)


def test_special_values_pass():
    x = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-42, 3e38])
    f = tofuse.compile(lambda x: (x.exp() * 2, x / x, x.log() + 1, x.sign()), verify=True)
    f(x)


def test_negative_strides_and_integers_pass():
    f = tofuse.compile(lambda x, n: (x.flip(0).sin(), n.flip(1) * 2, n > 1), verify=True)
    x, n = torch.randn(4, 5), torch.arange(20).view(4, 5)
    torch.testing.assert_close(f(x, n), (x.flip(0).sin(), n.flip(1) * 2, n > 1))


def faulty(x, y):
    z = x.sin() + y
    w = z.cos() - 2 * x  # here
    return F.softmax(w, -1)


@pytest.fixture
def injected_fault(monkeypatch):
    def wrong(f, args, shape):
        return elementwise._RULES["add"](f, args, shape)

    monkeypatch.setitem(elementwise._RULES, "sub", wrong)


@pytest.mark.parametrize("grad", [False, True])
def test_an_injected_fault_is_found_and_saved(injected_fault, grad, tmp_path):
    x, y = torch.randn(9, 20, requires_grad=grad), torch.randn(20)
    with pytest.raises(tofuse.VerifyError, match=r"first wrong operation is sub\w* = sub.*# here"):
        tofuse.compile(faulty, verify=True, dump=str(tmp_path))(x, y)
    (path,) = tmp_path.glob("*.py")
    text = path.read_text()
    assert "verify=True" in text and "# here" in text
    if grad:
        return
    # the repro fails with the fault, and passes in a process without it
    with pytest.raises(tofuse.VerifyError):
        exec(compile(text, str(path), "exec"), {})
    subprocess.run([sys.executable, str(path)], check=True)


def test_a_fault_in_the_backward_is_found(injected_fault, tmp_path):
    x = torch.randn(9, 20, requires_grad=True)
    result = tofuse.compile(lambda x: x.tanh().sum(), verify=True, dump=str(tmp_path))(x)
    with pytest.raises(tofuse.VerifyError, match=r"first wrong operation is .* = sub"):
        result.backward()


def test_describe_mismatch():
    exact = torch.linspace(1, 2, 50, dtype=torch.float64)
    reference = exact.float()
    assert describe_mismatch(reference, reference, exact, 1e-4) is None
    assert describe_mismatch(reference * (1 + 1e-5), reference, exact, 1e-4) is None
    off = reference.clone()
    off[7] += 0.1
    assert "wrong in 1 of 50 elements: at [7]" in str(
        describe_mismatch(off, reference, exact, 1e-4)
    )
    off[7] = float("nan")
    assert describe_mismatch(off, reference, exact, 1e-4) is not None
    bits = reference > 1.5
    assert describe_mismatch(bits, bits, bits, 1e-4) is None
    assert "differs in 50 of 50" in str(describe_mismatch(~bits, bits, bits, 1e-4))


def test_numbers_that_wrap_are_verified_as_in_eager():
    x, y = torch.randint(0, 9, (3, 512)).to(torch.uint8), torch.zeros(3, 3, 512)
    program = lambda x, y: (x + y.numel(), x * y.numel(), x - 300)  # noqa: E731
    assert all(map(torch.equal, tofuse.compile(program, verify=True)(x, y), program(x, y)))


def test_an_empty_view_is_not_where_its_tensor_is():
    def program(x):
        y = torch.cdist(x, x)
        return torch.cat([F.pad(y[:, :0], (0, 1)), y], 0)

    compiled, x = tofuse.compile(program, verify=True), torch.randn(1, 7)
    torch.testing.assert_close(compiled(x), program(x))


def test_float64_numbers_that_cancel_are_no_fault():
    """The lengths are those of rounding errors, which another order of sums changes."""

    def program(x, y):
        return F.cosine_similarity(F.group_norm(x, 1).T, y, dim=0).norm(dim=-1)

    x, y = torch.randn(7, 3, dtype=torch.float64), torch.randn(7)
    assert tofuse.compile(program, verify=True)(x, y) < 1e-14
    exact = torch.randn(50, dtype=torch.float64)
    noise = exact + 1e-15
    assert describe_mismatch(exact * 1e-16, exact * 0, exact * 0, 1e-9, noise - exact) is None
    assert describe_mismatch(exact + 1, exact, exact, 1e-9, exact.round()) is not None


@pytest.mark.parametrize("precision", ["fast", "eager"])
def test_operators_that_return_another_dtype_than_torch_predicts(precision):
    """The gradient of this loss is float16; torch predicts float64."""

    def gradient(program):
        torch.manual_seed(0)
        x = torch.randn(200).half().requires_grad_()
        program(x * 1, torch.randn(200).double()).backward()
        return x.grad

    compiled = tofuse.compile(F.smooth_l1_loss, verify=True, precision=precision)
    torch.testing.assert_close(gradient(compiled), gradient(F.smooth_l1_loss))
