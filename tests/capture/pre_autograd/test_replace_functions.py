"""Functions that torch composes wrongly or in another layout."""

import pytest
import torch
from torch._higher_order_ops.scan import scan

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

WRITES = {
    "none": lambda x: x,
    "element": lambda x: x[0].fill_(0),
    "all": lambda x: x.add_(1),
    "transposed": lambda x: x.transpose(0, 1).mul_(2),
}


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("shape", [(2, 11), (16, 11), (8, 11), (3, 3, 6)], ids=str)
def test_diagonals_of_tensors_with_gaps(shape, write, capture):
    def program(x):
        WRITES[write](x)
        return x.fill_diagonal_(2.5), x.sum()

    ours = torch.randn(shape)
    eagers = ours.clone()
    views = [t[..., :-3] for t in (ours, eagers)]
    got, expected = tofuse.compile(program, capture=capture)(views[0]), program(views[1])
    torch.testing.assert_close((*got, ours), (*expected, eagers))


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize(
    "shape", [(7, 3), (3, 7), (4, 3), (29, 2), (5, 1), (4, 0), (0, 4)], ids=str
)
def test_diagonals_that_wrap(shape, capture):
    program = lambda x: x.sin_().fill_diagonal_(1, wrap=True)  # noqa: E731
    rows, columns = shape
    tensors = [lambda: torch.ones(shape)]
    if rows <= 2 * columns + 1:  # in taller tensors with gaps, eager writes into the gaps
        tensors += [
            lambda: torch.ones(rows, columns + 2)[:, :columns],
            lambda: torch.ones(columns, rows).t(),
        ]
    for make in tensors:
        torch._dynamo.reset()  # Dynamo cannot wrap diagonals of symbolic sizes
        got = tofuse.compile(program, capture=capture)(make())
        torch.testing.assert_close(got, program(make()))


def test_an_error_is_eagers():
    program = lambda x: x.fill_diagonal_(1)  # noqa: E731
    for x in (torch.randn(3), torch.randn(2, 3, 3)):
        with pytest.raises(RuntimeError) as eager:
            program(x)
        with pytest.raises(RuntimeError, match=str(eager.value).split("\n")[0]):
            tofuse.compile(program, capture="trace")(x)


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int32])
@pytest.mark.parametrize("shape", [(5, 3), (3, 40), (1, 1), (0, 3), (70, 70)], ids=str)
def test_traces_and_their_gradients(shape, dtype, capture):
    x = (torch.randn(shape) * 4).to(dtype)
    results = []
    for function in (torch.trace, tofuse.compile(lambda x: x.trace(), capture=capture)):
        leaf = x.clone().requires_grad_(dtype.is_floating_point or dtype.is_complex)
        results.append([function(leaf)])
        if leaf.requires_grad:
            results[-1] += torch.autograd.grad(results[-1][0].abs() * 2, leaf)
    torch.testing.assert_close(results[1], results[0])


def test_the_gradient_of_a_trace_is_a_kernel():
    report = tofuse.explain(torch.trace)(torch.randn(40, 40, requires_grad=True))
    assert not report.library_calls


def filtered(x):
    def step(y, xt):
        y = y * 0.5 + xt
        return y, y.sin()

    return scan(step, torch.zeros_like(x[0]), x, dim=0)


def filtered_from_the_end(x):
    def step(states, inputs):
        (a, b), (u, v) = states, inputs
        a, b = a * 0.5 + u, b * 0.3 + a * v
        return (a, b), (a * b, b.clone())

    start = torch.zeros_like(x[0]), torch.ones_like(x[0])
    (a, b), (c, d) = scan(step, start, (x, x.cos()), dim=0, reverse=True)
    return a, b, c, d


def cell(x):
    weight = torch.linspace(-1, 1, x.shape[-1] ** 2).view(x.shape[-1], -1)

    def step(y, xt):
        y = torch.tanh(y @ weight + xt)
        return y, y.clone()

    return scan(step, torch.zeros_like(x[0]), x, dim=0)


@pytest.mark.parametrize("steps", [1, 4, 20])
@pytest.mark.parametrize("f", [filtered, filtered_from_the_end, cell], ids=lambda f: f.__name__)
def test_scans_are_as_eager(f, steps):
    x = torch.randn(steps, 3, 5)
    torch.testing.assert_close(tofuse.compile(f)(x), f(x))


def test_a_scan_is_one_kernel_unless_it_has_products():
    x = torch.randn(20, 3, 5)
    (kernel,) = tofuse.explain(filtered)(x).kernels
    assert "= previous<" in kernel.loops
    assert not tofuse.explain(cell)(x).kernels
