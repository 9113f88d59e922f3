"""Exported programs whose sizes vary, at sizes of 0, 1, 2, odd and prime numbers, against eager."""

import random

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import tofuse
from tofuse.driver.export import Dynamic
from tofuse.errors import InputError, UnsupportedError
from tofuse.runtime.loaded_program import host_processors

SIZES = (0, 1, 2, 5, 9)


class Branches(nn.Module):
    """Python that looks at a size, with constants that differ."""

    def forward(self, x):
        if x.shape[0] == 1:
            return {"one": x * torch.tensor([5.0])}
        return {"more": x * torch.tensor([2.0]), "rows": x.sum(0)}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(x)


def conv():
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4).eval(), nn.ReLU(), nn.MaxPool2d(2))


PROGRAMS = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU()), lambda n: (n, 4)),
    "norm": (lambda: nn.LayerNorm(4), lambda n: (n, 4)),
    "convolution": (conv, lambda n: (n, 2, 8, 8)),
    "attention": (Attention, lambda n: (n, 3, 16)),
    "batch statistics": (lambda: lambda x: (x - x.mean(0)) / x.std(0), lambda n: (n, 4)),
    "squeeze": (lambda: lambda x: x.squeeze(0).sum(0), lambda n: (n, 4)),
    "squeeze all": (lambda: lambda x: x.squeeze() * 2, lambda n: (n, 4)),
    "branches": (Branches, lambda n: (n, 4)),
    "broadcast": (lambda: lambda x: x[:, None] * x[None] + x.amax(), lambda n: (n, 4)),
    "gram": (lambda: lambda x: (x @ x.t()).softmax(0), lambda n: (n, 4)),
    "reshape": (lambda: lambda x: x.reshape(-1).cumsum(0) + x.shape[0], lambda n: (n, 4)),
}  # fmt: skip


def outcome(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return error


def compare(loaded, target, args):
    """Compare a call with eager's; a program may refuse a size with one error that names it."""
    found, expected = outcome(loaded, *args), outcome(target, *args)
    if isinstance(found, InputError):
        assert f"not {min(min(x.shape) for x in args)}" in str(found), found
        return False
    if isinstance(expected, Exception):
        assert isinstance(found, Exception), expected
        return False
    assert not isinstance(found, Exception), found
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    return True


@pytest.mark.broad(4)
@pytest.mark.filterwarnings("ignore:std\\(\\)")  # of one row, by eager too
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dynamic", ["Dim", "True"])
def test_a_program_runs_right_for_every_size_that_it_takes(name, dynamic, tmp_path):
    torch.manual_seed(1)
    make, shape = PROGRAMS[name]
    target = make()
    rows = ({0: Dim("rows")},)
    try:
        tofuse.export(
            target, (torch.randn(shape(6)),), tmp_path / "file",
            dynamic=True if dynamic == "True" else rows, processors=processors(),
        )  # fmt: skip
    except UnsupportedError as error:  # torch's shapes of convolutions branch on the batch
        assert name == "convolution" and "assumes of sizes" in str(error)
        return
    loaded = tofuse.load(tmp_path / "file")
    ran = {}
    with torch.no_grad():
        for n in SIZES:
            ran[n] = compare(loaded, target, (torch.randn(shape(n)),))
    assert all(ran[n] for n in SIZES if n), ran
    with pytest.raises(InputError, match=r"dimension 0 of .* must be at least 1, not 0"):
        loaded(torch.randn(shape(0)))


def processors():
    return host_processors()[:1]


STEPS = (
    lambda x, y: x.squeeze(0), lambda x, y: x.squeeze(-1), lambda x, y: x.squeeze(),
    lambda x, y: x.unsqueeze(0), lambda x, y: x - x.mean(0), lambda x, y: x * y,
    lambda x, y: x + y[:1], lambda x, y: x.sum(-1, keepdim=True), lambda x, y: x.flatten().sin(),
    lambda x, y: x.transpose(0, -1) * 2, lambda x, y: x.expand(*x.shape), lambda x, y: F.gelu(x),
    lambda x, y: torch.cat([x, x]), lambda x, y: x.softmax(-1), lambda x, y: x.amax(0) + y,
    lambda x, y: x[0] if x.shape[0] == 1 else x.sum(0), lambda x, y: x / x.shape[0],
)  # fmt: skip


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.broad(1)
def test_random_programs_mean_the_same_for_every_size(half, some, tmp_path):
    ran = 0
    for seed in some(range(half, 64, 2), 4):
        dice = random.Random(seed)
        steps = [dice.choice(STEPS) for _ in range(dice.randint(1, 4))]

        def program(x, y, steps=steps):
            for step in steps:
                x = step(x, y)
            return x

        torch.manual_seed(seed)
        examples = (torch.randn(6, 3), torch.randn(6, 3))
        if isinstance(outcome(program, *examples), Exception):
            continue
        rows: list[Dynamic] = [True, ({0: Dim("n"), 1: Dim("m", max=8)},) * 2]
        try:
            tofuse.export(
                program, examples, tmp_path / "file", processors=processors(),
                dynamic=dice.choice(rows),
            )  # fmt: skip
        except (UnsupportedError, torch._dynamo.exc.UserError):
            continue
        loaded = tofuse.load(tmp_path / "file")
        for n, m in ((1, 3), (5, 1), (1, 1), (2, 2), (7, 3), (0, 3)):
            ran += compare(loaded, program, (torch.randn(n, m), torch.randn(n, m)))
    assert ran > 10


def test_gradients_and_state_of_a_call_of_size_one(tmp_path):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    x = torch.randn(6, 4, requires_grad=True)
    tofuse.export(model, (x,), tmp_path / "file", dynamic=({0: Dim("n")},), backward=True)
    loaded = tofuse.load(tmp_path / "file")
    for n in (1, 6):
        x = torch.randn(n, 4, requires_grad=True)
        for module in (model, loaded):
            module(x).square().sum().backward()
            torch.optim.SGD(module.parameters(), 0.1).step()
        torch.testing.assert_close(loaded.state_dict(), model.state_dict(), rtol=1e-4, atol=1e-5)
    assert not loaded.state_dict().keys() ^ model.state_dict().keys()


def test_a_program_of_torch_export(tmp_path):
    x = torch.randn(6, 4)
    exported = torch.export.export(nn.Linear(4, 3), (x,), dynamic_shapes=({0: Dim("n")},))
    tofuse.export(exported, path=tmp_path / "file")
    loaded = tofuse.load(tmp_path / "file")
    for n in (1, 2, 7):
        x = torch.randn(n, 4)
        torch.testing.assert_close(loaded(x), exported.module()(x))
    assert {*loaded.state_dict()} == {"weight", "bias"}


def test_sizes_that_may_not_be_one(tmp_path):
    dims = ({0: Dim("n", min=2, max=9)},)
    tofuse.export(lambda x: x.sin(), (torch.randn(6, 4),), tmp_path / "file", dynamic=dims)
    with pytest.raises(InputError, match=r"dimension 0 of .* must be from 2 to 9, not 1"):
        tofuse.load(tmp_path / "file")(torch.randn(1, 4))
    train = nn.BatchNorm1d(4, track_running_stats=False)  # torch refuses one row
    tofuse.export(train, (torch.randn(6, 4),), tmp_path / "file", dynamic=({0: Dim("n")},))
    loaded = tofuse.load(tmp_path / "file")
    loaded(torch.randn(3, 4))
    with pytest.raises(InputError, match="dimension 0 of input must be at least 2, not 1"):
        loaded(torch.randn(1, 4))
