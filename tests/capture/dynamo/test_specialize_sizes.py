"""Static specialization of sizes that recur: results match eager's before and after it."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import tofuse
from tests.support.eager import assert_same, copies, outcome
from tofuse.capture.dynamo import specialize_sizes
from tofuse.capture.dynamo.specialize_sizes import SymbolicProgram
from tofuse.dispatch.dispatcher import Dispatcher

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.fixture
def specialized(monkeypatch):
    """Specialize sizes at their second call; list the argument shapes of specialized programs."""
    shapes: list[tuple[object, ...]] = []
    specialize = SymbolicProgram.specialize

    def recorded(program, args, build):
        variant = specialize(program, args, build)
        shapes.append(tuple(tuple(a.shape) for a in args if isinstance(a, torch.Tensor)))
        return variant

    start = Dispatcher.specialize
    monkeypatch.setattr(
        Dispatcher, "specialize", lambda d, key, make, threshold: start(d, key, make, 0.0)
    )
    monkeypatch.setattr(SymbolicProgram, "specialize", recorded)
    return shapes


def norm_in_place(x):
    x.mul_(2)
    return F.layer_norm(x, x.shape[-1:])


def rotated_pairs(x):
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) + x


def scaled(x, scale=0.5):
    y = x * (scale * math.pi)
    return y.softmax(-1), y.shape[0] * scale


PROGRAMS = {
    "softmax": lambda x: x.softmax(-1),
    "rotated_pairs": rotated_pairs,
    "distances": lambda x: ((x[:, None] - x[None]) ** 2).sum(-1),
    "scaled": scaled,
    "numbers": lambda x: x.reshape(-1, 2).sum(0) / x.shape[0],
    "dropout": lambda x: F.dropout(x.exp(), 0.5),
    "no gradients": lambda x: x.sum(-1).detach() * x.mean(0)[0],
    "with a branch": lambda x: torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False),
}


@pytest.mark.broad(4)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("grad", [False, True])
def test_each_size_matches_eager_before_and_after(name, grad, specialized):
    f = PROGRAMS[name]
    compiled = tofuse.compile(f, dynamic=True, specialize=True, strict=True)
    plain = (
        tofuse.compile(f, dynamic=False) if name == "dropout" else f
    )  # eager draws other random numbers
    for k in range(12):
        rows, columns = [(6, 4), (8, 10), (6, 4)][k % 3]
        x = torch.randn(rows, columns, requires_grad=grad)
        got = outcome(compiled, copies((x,)), {}, seed=k)
        assert_same(got, outcome(plain, copies((x,)), {}, seed=k), rtol=1e-4, atol=1e-4)
    assert sorted(specialized) == [((6, 4),), ((8, 10),)] or name == "scaled"
    assert len(specialized) == 2


def mirrored(x):
    return x.softmax(-1).flip(-1) - x.logsumexp(-1, keepdim=True)


def middles(x):
    n = x.shape[1]
    return x[:, n // 2] * x[:, (n - 1) // 2] - x.roll(2, 1).sum(1)


def written_column(x):
    y = x.clone()
    y[:, -1] = 0
    return y * x


def gated(x):
    a, b = x.chunk(2, -1)
    return F.pad(a * b.sigmoid(), (1, 0))[..., :-1]


SHAPES = ((7, 5, 6), (3, 11, 18), (7, 5, 6), (1, 13, 22), (2, 1, 2), (0, 3, 4), (3, 11, 18))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("f", [mirrored, middles, written_column, gated])
def test_odd_and_empty_sizes_layouts_and_dtypes(f, dtype, specialized):
    compiled = tofuse.compile(f, dynamic=True, specialize=True, strict=True)
    tolerance = 6e-2 if dtype is torch.bfloat16 else 1e-4
    for shape in SHAPES:
        x = torch.randn(shape).to(dtype)
        for strided in (x, x.transpose(0, 1).contiguous().transpose(0, 1)):
            args = (strided.detach().requires_grad_(),)
            expected = outcome(f, copies(args), {})
            got = outcome(compiled, copies(args), {})
            assert_same(got, expected, rtol=tolerance, atol=tolerance)
    assert specialized


def test_writes_and_other_strides(specialized):
    compiled = tofuse.compile(norm_in_place, dynamic=True, specialize=True, strict=True)
    for k in range(6):
        x = torch.randn(6, 9)[:, ::2] if k % 2 else torch.randn(6, 5)
        got, expected = (outcome(g, copies((x,)), {}) for g in (compiled, norm_in_place))
        assert_same(got, expected)
    assert len(specialized) == 2  # one for each layout


def test_model_trains_across_specialization(specialized):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    twin = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    twin.load_state_dict(model.state_dict())
    fast = tofuse.compile(model, dynamic=True, specialize=True, strict=True)
    steps = [torch.optim.SGD(m.parameters(), 0.1) for m in (model, twin)]
    for k in range(9):
        x = torch.randn(4 + k % 2, 8)
        for m, step in zip((fast, twin), steps, strict=True):
            step.zero_grad()
            m(x).square().mean().backward()
            step.step()
    assert specialized
    for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b)


def test_random_numbers_are_those_of_the_dynamic_program(specialized):
    x = torch.randn(5, 6)
    runs = []
    for flag in (False, True):
        torch._dynamo.reset()
        drop = tofuse.compile(
            lambda x: F.dropout(x, 0.3), dynamic=True, specialize=flag, strict=True
        )
        torch.manual_seed(7)
        runs.append([drop(x) for _ in range(4)])
    assert len(specialized) == 1
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_data_dependent_sizes_are_not_specialized(specialized):
    compiled = tofuse.compile(
        lambda x: torch.nonzero(x > 0).sum() + x.sum(), dynamic=True, specialize=True
    )
    x = torch.randn(5, 6)
    for _ in range(4):
        torch.testing.assert_close(compiled(x), torch.nonzero(x > 0).sum() + x.sum())


class PassThrough(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("context", [PassThrough, forward_ad.dual_level, torch.device], ids=str)
def test_no_specialization_under_modes_and_transforms(context, specialized):
    compiled = tofuse.compile(lambda x: x.softmax(-1), dynamic=True, specialize=True)
    x = torch.randn(3, 5)
    expected = x.softmax(-1)
    compiled(x)
    with context("cpu") if context is torch.device else context():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), expected)
    assert not specialized
    torch._dynamo.reset()


def test_transforms_of_a_specialized_program(specialized):
    def f(x):
        return (x * 2).softmax(-1)

    compiled, x = tofuse.compile(f, dynamic=True, specialize=True), torch.randn(3, 5)
    for _ in range(3):
        compiled(x)
    assert len(specialized) == 1
    got, wanted = (torch.func.grad(lambda x, g=g: g(x)[:, 0].sum())(x) for g in (compiled, f))
    torch.testing.assert_close(got, wanted)
    rows = torch.randn(4, 3, 5)
    torch.testing.assert_close(torch.vmap(compiled)(rows), torch.vmap(f)(rows))


def test_failed_specialization_keeps_the_dynamic_program(monkeypatch, specialized):
    def fail(*args):
        raise RuntimeError("no copy of this")

    monkeypatch.setattr(specialize_sizes, "_StaticShapes", fail)
    compiled = tofuse.compile(lambda x: x.softmax(-1), dynamic=True, specialize=True)
    x = torch.randn(3, 5)
    compiled(x)
    with pytest.warns(UserWarning, match="all sizes: no copy of this"):
        compiled(x)
    torch.testing.assert_close(compiled(x), x.softmax(-1))


def test_option_disables_specialization(specialized):
    compiled = tofuse.compile(lambda x: x.softmax(-1), dynamic=True, specialize=False)
    for _ in range(4):
        compiled(torch.randn(3, 5))
    assert not specialized


def test_by_default_only_programs_whose_bits_stay_are_specialized(specialized):
    calls = [torch.randn(6, 5), torch.randn(3, 5)] * 3
    for function in (lambda x: x.softmax(-1), lambda x: x.half().exp() * 2, lambda x: x / len(x)):
        compiled = tofuse.compile(function, dynamic=True)
        for x in calls:
            compiled(x)
    assert not specialized
    compiled = tofuse.compile(lambda x: x.sin() * 2 + x, dynamic=True)
    for x in calls:
        compiled(x)
    assert specialized == [((6, 5),), ((3, 5),)]


def test_report_uses_the_sizes_of_the_call():
    report = tofuse.explain(lambda x: x.softmax(-1), dynamic=True, specialize=True)(
        torch.randn(1000, 24)
    )
    assert report.bytes_after == 2 * 1000 * 24 * 4
    assert any(note.startswith("sizes are symbolic") for note in report.notes)
