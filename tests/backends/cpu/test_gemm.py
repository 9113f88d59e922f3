"""Generated matrix products: layouts and sizes against float64, and the executor of each."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tofuse.backends.cpu import gemm
from tofuse.backends.cpu.gemm_match import Gemm, Matrix
from tofuse.backends.cpu.llvm.matmul.pack import micropanel_rows
from tofuse.config import make_config
from tofuse.cost.machine_source import assumed_machine
from tofuse.driver import context
from tofuse.ir.graph import Value
from tofuse.ir.schedule import Target
from tofuse.ir.types import DType, TensorType


@pytest.fixture(autouse=True)
def generate_all_products(monkeypatch):
    """Generate products on any processor and of any size; they are slow without AVX-512."""
    target = context.host_target
    monkeypatch.setattr(
        context, "host_target", lambda n: replace(target(n), avx512=True, fast_gemm=True)
    )
    monkeypatch.setattr(gemm, "fastest_kernel", lambda p, target, machine: gemm.PACKED)
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
    assert set(executors(torch.mm, a, b)) <= {"llvm"}  # few rows are no call, but a kernel


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
    assert micropanel_rows(512) * -(-512 // micropanel_rows(512)) <= 520
    assert micropanel_rows(128) == 13
    assert micropanel_rows(5) == 5


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


@pytest.fixture
def read_once(monkeypatch):
    """Choose the kernel for few rows wherever it can run."""

    def choose(p, target, machine):
        fits = isinstance(p.m, int) and p.a.column_stride == 1 and p.b.row_stride == 1
        return gemm.DIRECT if fits else gemm.TOO_SMALL

    monkeypatch.setattr(gemm, "fastest_kernel", choose)


@pytest.mark.broad(1)
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 7, 8, 9, 14, 17, 40])
def test_few_rows(read_once, rows):
    for columns, depth in [(1, 1), (2, 16), (33, 17), (64, 2048), (50, 2049), (257, 4100)]:
        x, w, bias = torch.randn(rows, depth), torch.randn(columns, depth), torch.randn(columns)
        check(lambda x, w: x @ w.t(), x, w, dynamic=False)
        check(F.linear, x, w, bias, dynamic=False)
    check(lambda x, w: x @ w.transpose(1, 2), torch.randn(3, rows, 40), torch.randn(3, 9, 40))
    assert "aten" not in executors(F.linear, x, w, bias, dynamic=False)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_few_rows_on_any_number_of_threads(read_once, threads):
    x, w, before = torch.randn(9, 1000), torch.randn(1001, 1000), torch.get_num_threads()
    product = tofuse.compile(F.linear, dynamic=False)
    try:
        torch.set_num_threads(1)
        single = product(x, w)
        torch.set_num_threads(threads)
        assert torch.equal(product(x, w), single)
    finally:
        torch.set_num_threads(before)


def test_few_rows_of_special_values(read_once):
    x, w = torch.randn(6, 100), torch.randn(7, 100)
    x[2, 99], w[3, 0], x[5] = float("nan"), float("inf"), 0.0
    got = tofuse.compile(F.linear, dynamic=False)(x, w)
    torch.testing.assert_close(got, F.linear(x, w), equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "kernels"),
    [
        (8, 1024, 1024, (gemm.DIRECT, gemm.DIRECT)),
        (2, 1024, 1024, (gemm.TOO_SMALL, gemm.DIRECT)),
        (8, 64, 64, (gemm.TOO_SMALL, gemm.TOO_SMALL)),
        (1024, 1024, 1024, (gemm.TOO_SMALL, gemm.PACKED)),
        (256, 256, 256, (gemm.TOO_SMALL, gemm.PACKED)),
    ],
)
def test_the_fastest_kernel_with_and_without_avx512_in_the_library(
    monkeypatch, rows, columns, depth, kernels
):
    monkeypatch.undo()
    of = lambda v, m, n: Matrix(v, 0, 0, m, n)  # noqa: E731
    x, w, y = (Value(TensorType((), DType.F32), name) for name in "xwy")
    product = Gemm(1, rows, columns, depth, of(x, depth, 1), of(w, 1, depth), of(y, columns, 1))
    for fast, expected in zip((False, True), kernels, strict=True):
        target = Target(16, 1, avx512=True, fast_gemm=fast)
        machine = assumed_machine(target, make_config({}))
        assert gemm.fastest_kernel(product, target, machine) == expected
