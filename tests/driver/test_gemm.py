"""Matrix products by code of ours: every layout and size against float64, and who runs what."""

from dataclasses import replace

import pytest
import torch

import tofuse
from tofuse.driver import pipeline
from tofuse.driver.gemm import kernel_rows
from tofuse.fusion import gemm_match as decisions


@pytest.fixture(autouse=True)
def ours(monkeypatch):
    """Products are ours on any processor, and however small; slowly where there is no AVX-512."""
    target = pipeline.host_target
    monkeypatch.setattr(pipeline, "host_target", lambda n: replace(target(n), fast_gemm=True))
    for name in ("MIN_ROWS", "MIN_COLUMNS", "MIN_FLOPS"):
        monkeypatch.setattr(decisions, name, 1)
    torch._dynamo.reset()


def executors(fn, *inputs, **options):
    regions = tofuse.explain(fn, **options)(*inputs).regions
    return [r.executor for r in regions if r.kernel is None]


def check(fn, *inputs, **options):
    """Ours is as near to float64 as eager, up to rounding."""
    exact = fn(*(x.double() for x in inputs))
    got = tofuse.compile(fn, **options)(*inputs)
    assert got.stride() == fn(*inputs).stride()
    usual = exact.abs().max() if exact.numel() else 0.0
    error = 4 * (fn(*inputs) - exact).abs().amax() if exact.numel() else 0.0
    torch.testing.assert_close(got.double(), exact, rtol=0, atol=float(error + 1e-6 * usual))


def laid(rows, columns, transposed):
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
    a, b = laid(m, k, transposed[0]), laid(k, n, transposed[1])
    check(torch.mm, a, b)
    assert executors(torch.mm, a, b) == ["llvm"]


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("sizes", [(512, 96, 64), (40, 2050, 300), (300, 300, 300)])
def test_result_is_the_same_on_any_number_of_threads(sizes, threads):
    m, n, k = sizes
    a, b, had = torch.randn(m, k), torch.randn(n, k), torch.get_num_threads()
    product = tofuse.compile(lambda a, b: a @ b.t())
    try:
        torch.set_num_threads(1)
        alone = product(a, b)
        torch.set_num_threads(threads)
        assert torch.equal(product(a, b), alone)
    finally:
        torch.set_num_threads(had)


@pytest.mark.parametrize("batch", [1, 3, 10])
@pytest.mark.parametrize("turned", [False, True])
def test_bmm(batch, turned):
    a = torch.randn(batch, 33, 50)
    b = torch.randn(batch, 45, 50).transpose(1, 2) if turned else torch.randn(batch, 50, 45)
    check(torch.bmm, a, b)
    heads = torch.randn(2, 33, 4, 50)  # heads of a projection, cut by strides alone
    check(lambda h: h.transpose(1, 2) @ h.permute(0, 2, 3, 1), heads)
    assert executors(torch.bmm, a, b) == ["llvm"]


@pytest.mark.parametrize("bias", [(45,), (1, 45), (33, 45)])
def test_addmm(bias):
    check(torch.addmm, torch.randn(bias), torch.randn(33, 50), torch.randn(50, 45))
    given = torch.randn(bias), torch.randn(33, 50), torch.randn(50, 45)
    assert executors(torch.addmm, *given) == ["llvm"]


def test_baddbmm():
    check(torch.baddbmm, torch.randn(3, 33, 45), torch.randn(3, 33, 50), torch.randn(3, 50, 45))
    check(torch.baddbmm, torch.randn(1, 45), torch.randn(3, 33, 50), torch.randn(3, 50, 45))


def test_what_others_run():
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


def test_small_products_are_left_to_pytorch(monkeypatch):
    monkeypatch.undo()
    assert executors(torch.mm, torch.randn(8, 8), torch.randn(8, 8)) == ["aten"]


@pytest.mark.parametrize("sizes", [(0, 5, 6), (5, 0, 6), (5, 6, 0)])
def test_nothing_of_something(sizes):
    m, n, k = sizes
    check(lambda a, b: a @ b + 1, torch.randn(m, k), torch.randn(k, n))


def test_sizes_that_change():
    product = tofuse.compile(lambda a, b, c: torch.addmm(c, a, b), dynamic=True)
    for m, n, k in [(33, 45, 50), (34, 2, 3), (1, 2, 3), (700, 33, 260)]:
        a, b, c = torch.randn(m, k), torch.randn(k, n), torch.randn(n)
        exact = c.double() + a.double() @ b.double()
        torch.testing.assert_close(product(a, b, c).double(), exact, rtol=1e-4, atol=1e-4)


def test_special_values_stay_in_their_rows_and_columns():
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
    for ours, true in zip(got, exact, strict=True):
        torch.testing.assert_close(
            ours.double(), true, rtol=1e-4, atol=1e-4 * float(true.abs().max())
        )


def test_parts_of_tensors():
    packed, weight = torch.randn(64, 150), torch.randn(45, 50)
    fn = lambda p, w: torch.cat([x @ w.t() for x in p.split(50, 1)], 1)  # noqa: E731
    check(fn, packed, weight)


def test_rows_in_registers_leave_few_idle():
    assert kernel_rows(512) * -(-512 // kernel_rows(512)) <= 520
    assert kernel_rows(128) == 13
    assert kernel_rows(5) == 5


IMAGES = [(3, 20, 9, 11), (1, 8, 6, 6), (2, 40, 50), (2, 12, 3, 4, 5)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", IMAGES)
def test_pointwise_convolutions(shape, last, bias):
    kind = {3: torch.nn.Conv1d, 4: torch.nn.Conv2d, 5: torch.nn.Conv3d}[len(shape)]
    layer = kind(shape[1], 24, 1, bias=bias)
    x = torch.randn(shape)
    if last and len(shape) == 4:
        x = x.to(memory_format=torch.channels_last)
    x.requires_grad_()
    given = torch.randn_like(layer(x))
    wide = kind(shape[1], 24, 1, bias=bias).double()
    wide.load_state_dict(layer.state_dict())
    exact = torch.autograd.grad(
        (wide(z := x.detach().double().requires_grad_()) * given).sum(), [z, *wide.parameters()]
    )
    torch._dynamo.reset()
    compiled = tofuse.compile(layer)
    out = compiled(x)
    assert out.stride() == layer(x).stride()
    torch.testing.assert_close(out.double(), wide(x.double()), rtol=1e-4, atol=1e-4)
    got = torch.autograd.grad((out * given).sum(), [x, *layer.parameters()])
    for ours, true in zip(got, exact, strict=True):
        torch.testing.assert_close(ours.double(), true, rtol=1e-4, atol=1e-3)
    assert "aten" not in executors(layer, x)


@pytest.mark.parametrize(
    "options",
    [{"stride": 2}, {"padding": 1}, {"groups": 4}, {"kernel_size": 3}],
    ids=lambda o: next(iter(o)),
)
def test_other_convolutions_are_pytorchs(options):
    layer = torch.nn.Conv2d(8, 16, **{"kernel_size": 1, **options})
    x = torch.randn(2, 8, 10, 10, requires_grad=True)
    assert set(executors(layer, x)) == {"aten"}
    exact = torch.autograd.grad(layer(x).square().sum(), [x, *layer.parameters()])
    got = torch.autograd.grad(tofuse.compile(layer)(x).square().sum(), [x, *layer.parameters()])
    for ours, true in zip(got, exact, strict=True):
        torch.testing.assert_close(ours, true, rtol=1e-4, atol=1e-3)


def test_weights_shared_by_a_batch_are_one_product():
    x, w = torch.randn(6, 33, 50), torch.randn(50, 45)
    check(lambda x, w: x @ w, x, w)
    check(lambda x, w: torch.bmm(x, w.expand(6, 50, 45)), x, w)
