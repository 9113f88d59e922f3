"""Programs exported to a file, and loaded: results, gradients, state, and clear errors."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_structure

import tofuse
from tofuse.errors import InputError, OptionError, ProgramFileError, TofuseError, UnsupportedError
from tofuse.runtime import loaded_program
from tofuse.runtime.program_file import read_program

LEVELS = [p for p in loaded_program.host_processors() if p != "neon"]


@pytest.fixture(params=LEVELS)
def level(request, monkeypatch):
    """A processor whose machine code this one runs."""
    monkeypatch.setattr(loaded_program, "host_processors", lambda: (request.param,))
    return request.param


@pytest.fixture
def path(tmp_path):
    return tmp_path / "program.tofuse"


class Tied(nn.Module):
    """Two parameters that are one tensor, a constant, and a buffer that is not persistent."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(12, 8)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.table.weight
        self.steps = torch.arange(12.0)
        self.register_buffer("scale", torch.full((), 2.0), persistent=False)

    def forward(self, x):
        return self.head(self.table(x).tanh()) * self.scale + self.steps


class Expanded(nn.Module):
    """A buffer whose elements are one."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.full((1,), 3.0).expand(4))

    def forward(self, x):
        return x * self.mask


def structured(x, pair, *, k=2, mode="add"):
    y, z = pair
    total = (x * y).sin().sum(-1) * k
    return {"total": total, "parts": (x, [z[:, :1], 3, "text", None]), mode: total.exp() + z[0, 0]}


@dataclass(frozen=True)
class Case:
    """A program, and calls: the first is exported. Its sizes vary if there are others."""

    make: Callable[[], Callable]
    calls: Callable[[], list[tuple]]
    kwargs: tuple = ()
    backward: bool = True


def rand(*shape):
    return torch.randn(shape, requires_grad=True)


CASES = {
    "nested arguments and results": Case(
        lambda: structured,
        lambda: [(rand(n, 5), (rand(n, 5), rand(n, 4))) for n in (3, 7)],
        (("mode", "sub"), ("k", 3)),
    ),
    "MLP": Case(
        lambda: nn.Sequential(nn.Linear(16, 33), nn.GELU(), nn.LayerNorm(33), nn.Linear(33, 4)),
        lambda: [(rand(n, 16),) for n in (4, 2, 17)],
    ),
    "convolutions": Case(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(72, 5),
        ),
        lambda: [(rand(4, 3, 8, 8).contiguous(memory_format=torch.channels_last),)],
    ),
    "encoder layer": Case(
        lambda: nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True),
        lambda: [(rand(2, 6, 32),)],
    ),
    "tied weights": Case(Tied, lambda: [(torch.tensor([[1, 2, 11]]),)]),
    "product of few rows": Case(lambda: nn.Linear(1024, 1024), lambda: [(rand(6, 1024),)]),
    "float64 of odd sizes": Case(
        lambda: nn.Sequential(nn.Linear(7, 13), nn.SELU(), nn.GroupNorm(1, 13)).double(),
        lambda: [(torch.randn(n, 7, dtype=torch.float64),) for n in (5, 31)],
    ),
    "transposed rows": Case(
        lambda: nn.Sequential(nn.Linear(11, 17), nn.Softplus()), lambda: [(rand(11, 19).t(),)]
    ),
    "no rows": Case(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh()), lambda: [(rand(0, 4),)]),
    "signals": Case(
        lambda: nn.Sequential(
            nn.Conv1d(6, 12, 3, groups=3), nn.InstanceNorm1d(12), nn.Mish(), nn.AdaptiveAvgPool1d(5)
        ),
        lambda: [(rand(2, 6, 37),)],
    ),
    "decoder layer": Case(
        lambda: nn.TransformerDecoderLayer(24, 3, 40, dropout=0.0, batch_first=True),
        lambda: [(rand(2, 5, 24), rand(2, 7, 24))],
    ),
    "unused argument": Case(lambda: lambda x, y: x.sin(), lambda: [(rand(3), torch.ones(3))]),
    "expanded buffer": Case(Expanded, lambda: [(rand(3, 4),)]),
    "LSTM": Case(lambda: nn.LSTM(8, 8).eval(), lambda: [(rand(5, 2, 8),)], backward=False),
    "bfloat16": Case(
        lambda: nn.Linear(8, 8).bfloat16(), lambda: [(torch.randn(3, 8).bfloat16(),)]
    ),
    "transposed argument": Case(
        lambda: lambda x: x.softmax(0) * x.T.sum(), lambda: [(rand(9, 5).T,)]
    ),
    "no elements": Case(lambda: lambda x, y: (x + 1, y * 2), lambda: [(rand(0, 4), rand(3))]),
    "one element": Case(lambda: lambda x: x.exp() - 1, lambda: [(rand(1, 1),)]),
    "special numbers": Case(
        lambda: lambda x: (x.sqrt(), x.abs().log(), x / x),
        lambda: [(torch.tensor([0.0, -0.0, float("inf"), float("nan"), -1.0, 1e-40]),)],
        backward=False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_results_gradients_and_buffers_are_as_eager(name, level, path):
    case, kwargs = CASES[name], dict(CASES[name].kwargs)
    torch.manual_seed(3)
    target, calls = case.make(), case.calls()
    with torch.set_grad_enabled(case.backward):
        tofuse.export(
            target, calls[0], path, kwargs=kwargs, dynamic=len(calls) > 1,
            backward=case.backward, processors=[level],
        )  # fmt: skip
        loaded = tofuse.load(path)
        for args in calls:
            expected = target(*args, **kwargs)
            found = loaded(*args, **dict(reversed(kwargs.items())))
            assert tree_structure(found) == tree_structure(expected)
            compare(found, expected)
            if case.backward:
                compare(gradients(found, loaded, args), gradients(expected, target, args))
    if isinstance(target, nn.Module):
        compare(loaded.state_dict(), target.state_dict())


def gradients(results, called, args):
    leaves = [x for x in tree_leaves(args) if x.requires_grad]
    leaves += dict(called.named_parameters()).values() if isinstance(called, nn.Module) else []
    outputs = [x for x in tree_leaves(results) if isinstance(x, torch.Tensor) and x.requires_grad]
    torch.manual_seed(1)
    grads = [torch.randn(x.shape).to(x.dtype) for x in outputs]
    return torch.autograd.grad(outputs, leaves, grads)


def compare(found, expected):
    for x, e in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        if isinstance(e, torch.Tensor):
            assert x.dtype == e.dtype and x.shape == e.shape
            torch.testing.assert_close(x, e, rtol=1e-2 if e.dtype == torch.bfloat16 else 1e-4,
                                       atol=1e-5, equal_nan=True)  # fmt: skip
        else:
            assert x == e


def test_all_processors_are_in_a_file_by_name(path):
    tofuse.export(torch.tanh, (torch.randn(9),), path, processors=["neon", "avx512", "avx2"])
    program, _ = read_program(path)
    assert [*program.code] == ["neon", "avx512", "avx2"]


def test_dropout_draws_a_mask_for_each_call_from_torchs_generator(path):
    tofuse.export(nn.Dropout(0.25), (torch.ones(64, 64),), path)
    loaded = tofuse.load(path)
    torch.manual_seed(0)
    first, second = loaded(torch.ones(64, 64)), loaded(torch.ones(64, 64))
    torch.manual_seed(0)
    assert torch.equal(first, loaded(torch.ones(64, 64))) and not torch.equal(first, second)
    assert abs((first == 0).float().mean().item() - 0.25) < 0.03


def test_an_optimizer_and_a_state_dict_change_the_loaded_module(path):
    model, x = nn.Linear(4, 3), torch.randn(5, 4)
    tofuse.export(model, (x,), path, backward=True)
    loaded = tofuse.load(path)
    for module in (model, loaded):
        module(x).square().sum().backward()
        torch.optim.SGD(module.parameters(), 0.1).step()
    torch.testing.assert_close(loaded(x), model(x))
    other = nn.Linear(4, 3)
    loaded.load_state_dict(other.state_dict(), assign=True)
    torch.testing.assert_close(loaded(x), other(x))
    loaded.double()
    with pytest.raises(TofuseError, match=r"weight of the exported Linear must stay .*float32"):
        loaded(x)


def test_a_program_of_torch_export(path):
    program = torch.export.export(nn.Linear(4, 3), (torch.randn(5, 4),))
    tofuse.export(program, path=path)
    x = torch.randn(5, 4)
    torch.testing.assert_close(tofuse.load(path)(x), program.module()(x))


BAD_CALLS = {
    "structure": (lambda x: ((x, x), {}), "another structure"),
    "type": (lambda x: ((3,), {"k": 2}), "x must be a tensor, not int"),
    "dtype": (lambda x: ((x.double(),), {"k": 2}), "x must be a torch.float32 tensor"),
    "rank": (lambda x: ((x[0],), {"k": 2}), "of 2 dimensions"),
    "size": (lambda x: ((x[:, :3],), {"k": 2}), "dimension 1 of x must be 4, not 3"),
    "least": (lambda x: ((x[:1],), {"k": 2}), "dimension 0 of x must be at least 2, not 1"),
    "constant": (lambda x: ((x,), {"k": 3}), "k must be 2, as exported, not 3"),
    "meta": (lambda x: ((x.to("meta"),), {"k": 2}), "on the CPU, not a"),
    "grad": (lambda x: ((x.requires_grad_(),), {"k": 2}), "x requires grad"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_arguments_that_do_not_fit(name, path):
    dims = {"x": {0: torch.export.Dim("rows", min=2)}, "k": None}
    tofuse.export(lambda x, k: x * k, (torch.randn(3, 4),), path, kwargs={"k": 2}, dynamic=dims)
    make, message = BAD_CALLS[name]
    args, kwargs = make(torch.randn(5, 4))
    with pytest.raises(InputError, match=message):
        tofuse.load(path)(*args, **kwargs)


def test_files_that_are_no_program(path, tmp_path):
    with pytest.raises(FileNotFoundError):
        tofuse.load(tmp_path / "missing")
    (tmp_path / "text").write_text("no program")
    with pytest.raises(ProgramFileError, match="not a program exported by tofuse"):
        tofuse.load(tmp_path / "text")
    tofuse.export(nn.Linear(4, 3), (torch.randn(5, 4),), path, processors=["neon"])
    with pytest.raises(ProgramFileError, match="machine code for neon"):
        tofuse.load(path)
    content = bytearray(path.read_bytes())
    for place in (len(content) - 1, content.index(b"input_tree")):
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ProgramFileError, match="damaged"):
            tofuse.load(path)


def test_a_call_under_autocast_keeps_the_exported_precision(path):
    x = torch.randn(5, 4)
    model = nn.Linear(4, 3)
    tofuse.export(model, (x,), path)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert tofuse.load(path)(x).dtype == torch.float32


def test_parameters_that_require_grad_need_a_backward(path):
    tofuse.export(nn.Linear(4, 3), (torch.randn(5, 4),), path)
    loaded = tofuse.load(path).requires_grad_()
    with pytest.raises(TofuseError, match="weight requires grad, which Linear was not exported"):
        loaded(torch.randn(5, 4))
    with torch.no_grad():
        loaded(torch.randn(5, 4))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch, in run_decompositions
def test_what_has_no_file(path):
    x = torch.randn(3)
    decomposed = torch.export.export(nn.BatchNorm1d(3), (torch.randn(4, 3),)).run_decompositions()
    with pytest.raises(UnsupportedError, match="BUFFER_MUTATION has no file"):
        tofuse.export(decomposed, path=path)
    rows = torch.export.Dim("rows", min=2, max=8)
    with pytest.raises(UnsupportedError, match="size of x depends on another size"):
        tofuse.export(lambda x: x + 1, (torch.ones(4),), path, dynamic={"x": {0: 2 * rows}})
    with pytest.raises(UnsupportedError, match="writes into its arguments"):
        tofuse.export(lambda x: x.add_(1), (x,), path)
    with pytest.raises(OptionError, match="no processor 'z80'"):
        tofuse.export(torch.sin, (x,), path, processors=["z80"])
    with pytest.raises(OptionError, match="precision and memory_budget only"):
        tofuse.export(torch.sin, (x,), path, tune="measure")
    with pytest.raises(OptionError, match="needs the path"):
        tofuse.export(torch.sin, (x,))
    assert not path.exists()


LOAD = """
import sys, torch, tofuse
torch.manual_seed(0)
print(tofuse.load(sys.argv[1])(torch.randn(5, 4)).sum().item())
heavy = {"torch._dynamo", "torch._functorch.aot_autograd", "llvmlite", "sympy", "triton"}
assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()
"""


def test_loading_imports_no_compiler(path):
    model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))
    tofuse.export(model, (torch.randn(5, 4),), path)
    command = [sys.executable, "-W", "error", "-c", LOAD, str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    torch.manual_seed(0)
    assert float(ran.stdout) == pytest.approx(model(torch.randn(5, 4)).sum().item(), rel=1e-5)


def test_a_compiled_program_of_torch_export():
    program = torch.export.export(nn.Linear(4, 3), (torch.randn(5, 4),))
    x = torch.randn(5, 4)
    torch.testing.assert_close(tofuse.compile(program)(x), program.module()(x))
