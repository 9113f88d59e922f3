"""Different programs have different fingerprints."""

import pytest
import torch
import torch.nn.functional as F

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def scaled(by):
    return lambda x: x.sin() * by


SIMILAR = [
    (scaled(2), scaled(3)),
    (scaled(2), scaled(2.0)),
    (scaled(0.0), scaled(-0.0)),
    (scaled(1), scaled(True)),
    (lambda x: x.sum(0), lambda x: x.sum(1)),
    (lambda x: x.sum((0, 1)), lambda x: x.sum((1,))),
    (lambda x: x[1:].sin(), lambda x: x[:-1].sin()),
    (lambda x: x[..., None].sin(), lambda x: x[None].sin()),
    (lambda x: x.to(torch.float64), lambda x: x.to(torch.bfloat16)),
    (lambda x: F.gelu(x), lambda x: F.gelu(x, approximate="tanh")),
    (lambda x: torch.sub(x, x.exp()), lambda x: torch.sub(x.exp(), x)),
    (lambda x: (x.sin(), x.cos()), lambda x: (x.cos(), x.sin())),
    (lambda x: x.add(1, alpha=2), lambda x: x.add(1, alpha=3)),
    (lambda x: torch.full_like(x, 1.5) + x, lambda x: torch.full_like(x, 2.5) + x),
    (lambda x: torch.tensor([1.0, 2, 3, 4]) * x, lambda x: torch.tensor([4.0, 3, 2, 1]) * x),
]


@pytest.mark.parametrize("pair", SIMILAR)
def test_similar_programs_are_distinguished(counted, pair):
    x = torch.randn(4, 4)
    for program in pair:
        found, expected = counted(program)(x), program(x)
        assert counted.compiled == ["inference"]
        torch.testing.assert_close(found, expected)
    for program in pair:
        found, expected = counted(program)(x), program(x)
        assert counted.compiled == []
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "other",
    [
        torch.randn(4, 5),
        torch.randn(4, 4).t(),
        torch.randn(8, 4)[::2],
        torch.randn(4, 4, dtype=torch.float64),
        torch.randn(4, 4, requires_grad=True),
        torch.randn(1, 4).expand(4, 4),
        torch.randn(17)[1:].view(4, 4),
    ],
)
def test_argument_types_are_part_of_the_fingerprint(counted, other):
    run = scaled(2)
    counted(run)(torch.randn(4, 4))
    torch.testing.assert_close(counted(run)(other), run(other))
    assert counted.compiled


def test_global_state_of_pytorch_is_part_of_the_fingerprint(counted):
    x = torch.randn(4, 4)

    def run(x):
        return x + torch.arange(4) / 3

    counted(run)(x)
    torch.set_default_dtype(torch.float64)
    try:
        assert counted(run)(x).dtype is torch.float64
        assert counted.compiled
    finally:
        torch.set_default_dtype(torch.float32)


def test_autocast_dtype_is_part_of_the_fingerprint(counted):
    def run(x):
        with torch.autocast("cpu"):
            return x @ x

    x = torch.randn(8, 8)
    assert counted(run)(x).dtype is torch.bfloat16
    torch.set_autocast_dtype("cpu", torch.float16)
    try:
        assert counted(run)(x).dtype is torch.float16
    finally:
        torch.set_autocast_dtype("cpu", torch.bfloat16)
    assert counted(run)(x).dtype is torch.bfloat16


def ten_times(x):
    return torch.clamp(x, 0) * 10


@pytest.mark.parametrize("allowed", [False, True])
def test_a_replaced_pytorch_function_is_noticed(counted, monkeypatch, allowed):
    def run(x):
        return torch.relu(x) + 1

    x = torch.tensor([-1.0, 2.0])
    counted(run)(x)
    ten_times.__name__, ten_times.__module__ = "relu", "torch"
    if allowed:
        torch._dynamo.allow_in_graph(ten_times)
    monkeypatch.setattr(torch, "relu", ten_times)
    torch.testing.assert_close(counted(run)(x), torch.tensor([1.0, 21.0]))


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_a_replaced_aten_operator_is_noticed(counted):
    def run(x):
        return torch.kron(x, x) + 1

    x = torch.tensor([-1.0, 2.0])
    counted(run)(x)
    library = torch.library.Library("aten", "IMPL")
    library.impl("kron", lambda x, y: x * y * 100, "CompositeImplicitAutograd")
    try:
        assert torch.equal(counted(run)(x), run(x))
        assert counted.compiled
    finally:
        library._destroy()
    torch.testing.assert_close(counted(run)(x), run(x))
    assert counted.compiled == []


def test_options_are_part_of_the_key(counted):
    x = torch.randn(64, 64, dtype=torch.bfloat16)
    counted(scaled(2))(x)
    counted(scaled(2), precision="eager")(x)
    assert counted.compiled == ["inference"]


@torch.library.custom_op("tofuse_tests::kept_double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@double.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def hinted(x):
    with tofuse.no_fuse():
        return x.sin() + 1


@pytest.mark.parametrize("program", [lambda x: double(x) + 1, hinted])
def test_programs_without_a_fingerprint_are_not_cached(counted, program):
    x = torch.randn(4, 4)
    for _ in range(2):
        torch.testing.assert_close(counted(program)(x), program(x))
        assert counted.compiled
    assert counted.files() == []


def test_aliasing_arguments_are_part_of_the_fingerprint(counted):
    def run(x, y):
        y.mul_(2)
        return x + y

    counted(run)(torch.randn(4), torch.randn(4))
    x = torch.ones(4)
    torch.testing.assert_close(counted(run)(x, x.view(4)), torch.full((4,), 4.0))
    torch.testing.assert_close(x, torch.full((4,), 2.0))
