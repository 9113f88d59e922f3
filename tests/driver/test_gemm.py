"""Generated matrix products: layouts and sizes against float64, and the executor of each."""

from dataclasses import replace

import pytest
import torch

import tofuse
from tofuse.driver import context
from tofuse.driver.gemm import kernel_rows
from tofuse.fusion import gemm_match as decisions


@pytest.fixture(autouse=True)
def generate_all_products(monkeypatch):
    """Generate products on any processor and of any size; they are slow without AVX-512."""
    target = context.host_target
    monkeypatch.setattr(context, "host_target", lambda n: replace(target(n), fast_gemm=True))
    for name in ("MIN_GEMM_ROWS", "MIN_GEMM_COLUMNS", "MIN_GEMM_FLOPS"):
        monkeypatch.setattr(decisions, name, 1)
    torch._dynamo.reset()


def executors(fn, *inputs, **options):
    """Return the executors of the library calls."""
    regions = tofuse.explain(fn, **options)(*inputs).regions
    return [r.executor for r in regions if r.kernel is None]


def check(fn, *inputs, **options):
    """Check that the result is as close to float64 as eager's, up to rounding."""
    exact = fn(*(x.double() for x in inputs))
    got = tofuse.compile(fn, **options)(*inputs)
    assert got.stride() == fn(*inputs).stride()
    scale = exact.abs().max() if exact.numel() else 0.0
    error = 4 * (fn(*inputs) - exact).abs().amax() if exact.numel() else 0.0
    torch.testing.assert_close(got.double(), exact, rtol=0, atol=float(error + 1e-6 * scale))


def random_matrix(rows, columns, transposed):
    return torch.randn(columns, rows).t() if transposed else torch.randn(rows, columns)


SIZES = [
    (2, 3, 2),
    (3, 5, 7),
    (14, 32, 256),
    (15, 33, 257),
    (13, 7, 1009),
    (64, 96, 16),
    (230, 530, 300),
    (29, 1025, 513),
]


@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("sizes", SIZES)
def test_mm(sizes, transposed):
    m, n, k = sizes
    a, b = random_matrix(m, k, transposed[0]), random_matrix(k, n, transposed[1])
    check(torch.mm, a, b)
    assert executors(torch.mm, a, b) == ["llvm"]


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("sizes", [(512, 96, 64), (40, 2050, 300), (300, 300, 300)])
def test_result_is_the_same_on_any_number_of_threads(sizes, threads):
    m, n, k = sizes
    a, b, threads_before = torch.randn(m, k), torch.randn(n, k), torch.get_num_threads()
    product = tofuse.compile(lambda a, b: a @ b.t())
    try:
        torch.set_num_threads(1)
        single = product(a, b)
        torch.set_num_threads(threads)
        assert torch.equal(product(a, b), single)
    finally:
        torch.set_num_threads(threads_before)


@pytest.mark.parametrize("batch", [1, 3, 10])
@pytest.mark.parametrize("transposed", [False, True])
def test_bmm(batch, transposed):
    a = torch.randn(batch, 33, 50)
    b = torch.randn(batch, 45, 50).transpose(1, 2) if transposed else torch.randn(batch, 50, 45)
    check(torch.bmm, a, b)
    heads = torch.randn(2, 33, 4, 50)  # the heads of a projection: views, not copies
    check(lambda h: h.transpose(1, 2) @ h.permute(0, 2, 3, 1), heads)
    assert executors(torch.bmm, a, b) == ["llvm"]


@pytest.mark.parametrize("bias", [(45,), (1, 45), (33, 45)])
def test_addmm(bias):
    check(torch.addmm, torch.randn(bias), torch.randn(33, 50), torch.randn(50, 45))
    inputs = torch.randn(bias), torch.randn(33, 50), torch.randn(50, 45)
    assert executors(torch.addmm, *inputs) == ["llvm"]


def test_baddbmm():
    check(torch.baddbmm, torch.randn(3, 33, 45), torch.randn(3, 33, 50), torch.randn(3, 50, 45))
    check(torch.baddbmm, torch.randn(1, 45), torch.randn(3, 33, 50), torch.randn(3, 50, 45))


def test_products_that_pytorch_runs():
    a, b = torch.randn(33, 50), torch.randn(50, 45)
    assert executors(torch.mm, a.double(), b.double()) == ["aten"]
    assert executors(torch.mm, a.bfloat16(), b.bfloat16()) == ["aten"]
    every_other = torch.randn(33, 100)[:, ::2]
    every_third = torch.randn(99, 100)[::3, ::2]
    check(torch.mm, every_other, b)
    check(torch.mm, every_third, b)
    assert executors(torch.mm, every_third, b) == ["aten"]
    assert executors(torch.mm, a, b, executors=("aten", "llvm")) == ["aten"]
    assert executors(torch.mm, a, b, verify=True) == ["aten"]
    scaled = lambda c, a, b: torch.addmm(c, a, b, beta=0.5)  # noqa: E731
    check(scaled, torch.randn(45), a, b)


def test_pytorch_runs_small_products(monkeypatch):
    monkeypatch.undo()
    assert executors(torch.mm, torch.randn(8, 8), torch.randn(8, 8)) == ["aten"]


@pytest.mark.parametrize("sizes", [(0, 5, 6), (5, 0, 6), (5, 6, 0)])
def test_empty_operands(sizes):
    m, n, k = sizes
    check(lambda a, b: a @ b + 1, torch.randn(m, k), torch.randn(k, n))


def test_symbolic_sizes():
    product = tofuse.compile(lambda a, b, c: torch.addmm(c, a, b), dynamic=True)
    for m, n, k in [(33, 45, 50), (34, 2, 3), (1, 2, 3), (700, 33, 260)]:
        a, b, c = torch.randn(m, k), torch.randn(k, n), torch.randn(n)
        exact = c.double() + a.double() @ b.double()
        torch.testing.assert_close(product(a, b, c).double(), exact, rtol=1e-4, atol=1e-4)


def test_special_values_affect_only_their_rows_and_columns():
    a, b = torch.randn(40, 300), torch.randn(300, 50)
    a[3, 299], b[7, 49], a[39, 0] = float("nan"), float("inf"), float("-inf")
    got, want = tofuse.compile(torch.mm)(a, b), a @ b
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-3, atol=1e-4)


def test_gradients_of_linear_layers():
    layers = torch.nn.Sequential(
        torch.nn.Linear(50, 70), torch.nn.GELU(), torch.nn.Linear(70, 33, bias=False)
    )
    wide, x = torch.nn.Sequential(*layers).double(), torch.randn(64, 50)
    exact = torch.autograd.grad(wide(x.double()).square().sum(), list(wide.parameters()))
    layers = layers.float()
    got = torch.autograd.grad(tofuse.compile(layers)(x).square().sum(), list(layers.parameters()))
    for actual, true in zip(got, exact, strict=True):
        torch.testing.assert_close(
            actual.double(), true, rtol=1e-4, atol=1e-4 * float(true.abs().max())
        )


def test_slices_as_operands():
    packed, weight = torch.randn(64, 150), torch.randn(45, 50)
    fn = lambda p, w: torch.cat([x @ w.t() for x in p.split(50, 1)], 1)  # noqa: E731
    check(fn, packed, weight)


def test_kernel_rows_leave_few_unused():
    assert kernel_rows(512) * -(-512 // kernel_rows(512)) <= 520
    assert kernel_rows(128) == 13
    assert kernel_rows(5) == 5


IMAGES = [(3, 20, 9, 11), (1, 8, 6, 6), (2, 40, 50), (2, 12, 3, 4, 5)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("shape", IMAGES)
def test_pointwise_convolutions(shape, channels_last, bias):
    kind = {3: torch.nn.Conv1d, 4: torch.nn.Conv2d, 5: torch.nn.Conv3d}[len(shape)]
    layer = kind(shape[1], 24, 1, bias=bias)
    x = torch.randn(shape)
    if channels_last and len(shape) == 4:
        x = x.to(memory_format=torch.channels_last)
    x.requires_grad_()
    tangent = torch.randn_like(layer(x))
    wide = kind(shape[1], 24, 1, bias=bias).double()
    wide.load_state_dict(layer.state_dict())
    exact = torch.autograd.grad(
        (wide(z := x.detach().double().requires_grad_()) * tangent).sum(), [z, *wide.parameters()]
    )
    torch._dynamo.reset()
    compiled = tofuse.compile(layer)
    out = compiled(x)
    assert out.stride() == layer(x).stride()
    torch.testing.assert_close(out.double(), wide(x.double()), rtol=1e-4, atol=1e-4)
    got = torch.autograd.grad((out * tangent).sum(), [x, *layer.parameters()])
    for actual, true in zip(got, exact, strict=True):
        torch.testing.assert_close(actual.double(), true, rtol=1e-4, atol=1e-3)
    assert "aten" not in executors(layer, x)


@pytest.mark.parametrize(
    "options",
    [{"stride": 2}, {"padding": 1}, {"groups": 4}, {"kernel_size": 3}],
    ids=lambda o: next(iter(o)),
)
def test_pytorch_runs_other_convolutions(options):
    layer = torch.nn.Conv2d(8, 16, **{"kernel_size": 1, **options})
    x = torch.randn(2, 8, 10, 10, requires_grad=True)
    assert set(executors(layer, x)) == {"aten"}
    exact = torch.autograd.grad(layer(x).square().sum(), [x, *layer.parameters()])
    got = torch.autograd.grad(tofuse.compile(layer)(x).square().sum(), [x, *layer.parameters()])
    for actual, true in zip(got, exact, strict=True):
        torch.testing.assert_close(actual, true, rtol=1e-4, atol=1e-3)


def test_batch_with_shared_weights_is_one_product():
    x, w = torch.randn(6, 33, 50), torch.randn(50, 45)
    check(lambda x, w: x @ w, x, w)
    check(lambda x, w: torch.bmm(x, w.expand(6, 50, 45)), x, w)
