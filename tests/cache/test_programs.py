"""Cached programs give the same results without compilation."""

import copy
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tofuse.backends.cpu.llvm.load import CODE
from tofuse.cache import programs
from tofuse.config import make_config
from tofuse.disk_store import store_of

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def block(x, w, b):
    y = F.dropout(F.gelu(F.layer_norm(x @ w, w.shape[1:]) + b), 0.25)
    return y, (y.detach() * 2).sum(-1)


def convolutions() -> torch.nn.Module:
    torch.manual_seed(1)
    first = torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3), torch.nn.BatchNorm2d(6), torch.nn.ReLU())
    return torch.nn.Sequential(first, torch.nn.Flatten(1), torch.nn.Linear(6 * 6 * 6, 5))


def results(function: Callable, *args: torch.Tensor) -> list[torch.Tensor]:
    """Return the results for seed 0, and the gradients of all arguments that require one."""
    torch.manual_seed(0)
    outputs = function(*args)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    inputs = [a for a in args if a.requires_grad]
    torch.manual_seed(1)
    differentiable = [f for f in outputs if f.requires_grad]
    tangents = [torch.randn_like(f) for f in differentiable]
    grads = (
        torch.autograd.grad(differentiable, inputs, tangents) if inputs and differentiable else ()
    )
    return [*outputs, *grads]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 7, 3), (1, 1, 1), (0, 4, 4), (13, 64, 64)])
def test_a_cached_program_is_bitwise_equal(counted, shape, dtype):
    rows, inner, columns = shape
    args = [torch.randn(s, dtype=dtype) for s in [(rows, inner), (inner, columns), (columns,)]]
    args = [a.requires_grad_() for a in args]
    first = results(counted(block), *args)
    assert counted.compiled == ["forward", "backward"]
    again = results(counted(block), *args)
    assert counted.compiled == []
    for a, b in zip(first, again, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        assert (a.stride(), a.requires_grad) == (b.stride(), b.requires_grad)


def test_a_cached_network_trains_with_running_statistics(counted):
    eager = convolutions()
    first, again = copy.deepcopy(eager), copy.deepcopy(eager)
    x = torch.randn(4, 3, 8, 8)
    for module, compiled in [(first, counted(first)), (again, counted(again)), (eager, eager)]:
        compiled = counted(module) if module is not eager else eager
        for _ in range(3):
            compiled(x).square().mean().backward()
        if module is again:
            assert counted.compiled == []
    for a, b, c in zip(first.buffers(), again.buffers(), eager.buffers(), strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c)
    for a, b, c in zip(first.parameters(), again.parameters(), eager.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        assert torch.equal(a.grad, b.grad)
        torch.testing.assert_close(a.grad, c.grad, rtol=1e-3, atol=1e-5)


def test_mutated_arguments_that_alias(counted):
    def run(x, mean, most):
        mean.mul_(0.9).add_(x.detach().mean(0))
        most.copy_(torch.maximum(most, x.detach().amax(0)))
        return (x - mean) / most

    x = torch.randn(6, 4, requires_grad=True)
    for _ in range(2):
        compiled = counted(run)
        compiled(x, torch.zeros(4), torch.ones(4)).sum().backward()
        memory, expected = torch.zeros(6), torch.zeros(6)
        found = compiled(x, memory[:4], memory[2:])
        torch.testing.assert_close(found, run(x, expected[:4], expected[2:]))
        torch.testing.assert_close(memory, expected)
    assert counted.compiled == []


def test_inference_and_training_are_separate_entries(counted):
    x = torch.randn(8, 8, requires_grad=True)
    counted(torch.sin)(x).sum().backward()
    with torch.no_grad():
        torch.testing.assert_close(counted(torch.sin)(x), torch.sin(x))
        assert counted.compiled == ["inference"]
        found = counted(torch.sin)(x)
    assert counted.compiled == [] and not found.requires_grad
    assert counted(torch.sin)(x).requires_grad and counted.compiled == []


def test_tangents_of_other_strides_are_recompiled(counted):
    x = torch.randn(8, 16, requires_grad=True)
    for _ in range(2):
        compiled = counted(lambda x: torch.sin(x) * 2)
        for _ in range(4):
            x.grad = None
            tangent = torch.randn(16, 8).t()
            compiled(x).backward(tangent)
            torch.testing.assert_close(x.grad, 2 * torch.cos(x.detach()) * tangent)
    assert counted.compiled == []


def test_explain_compiles_in_spite_of_the_cache(counted, tmp_path):
    x = torch.randn(64, 64)
    counted(torch.sin)(x)
    report = tofuse.explain(lambda x: torch.sin(x) + 1, cache_dir=tmp_path)(x)
    again = tofuse.explain(lambda x: torch.sin(x) + 1, cache_dir=tmp_path)(x)
    assert len(report.kernels) == len(again.kernels) == 1


def truncate(path):
    path.write_text(path.read_text()[:-40])


def replace_content(path):
    """Write a valid entry whose text is not a program."""
    entry = json.loads(path.read_text())
    key, text = entry["key"], "bm90IGEgcHJvZ3JhbQ=="
    store_of(make_config({"cache_dir": path.parent.parent})).put("program", key, text)


def delete_machine_code(path):
    for file in (path.parent.parent / "code-1").glob("*.json"):
        file.unlink()


@pytest.mark.parametrize("damage", [truncate, replace_content, delete_machine_code])
def test_damaged_entries_are_recompiled(counted, damage):
    run, x = torch.sin, torch.randn(4, 4)
    counted(run)(x)
    (path,) = counted.files()
    damage(path)
    CODE.forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(counted(run)(x), run(x))
    assert counted.compiled == ["inference"]
    torch.testing.assert_close(counted(run)(x), run(x))
    assert counted.compiled == []


def test_the_source_digest_is_part_of_the_key(counted, monkeypatch):
    run, x = torch.sin, torch.randn(4, 4)
    counted(run)(x)
    monkeypatch.setattr(programs, "source_digest", lambda: "another")
    counted(run)(x)
    assert counted.compiled == ["inference"]


SCRIPT = """
import torch, tofuse
from tofuse.driver import compile_program
compiled, compile_graph = [], compile_program.compile_graph
def counting(graph, *rest, **options):
    compiled.append(graph.phase)
    return compile_graph(graph, *rest, **options)
compile_program.compile_graph = counting
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True)
x = torch.randn(2, 9, 32, requires_grad=True)
out = tofuse.compile(layer)(x)
out.square().sum().backward()
print(compiled, out.sum().item().hex(), x.grad.sum().item().hex())
"""


def test_programs_are_shared_between_processes(tmp_path):
    environment = {**os.environ, "TOFUSE_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", SCRIPT]
    printed = [
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        for _ in range(2)
    ]
    assert printed[0].startswith("['forward', 'backward']") and printed[1].startswith("[]")
    assert printed[0].split("]")[1] == printed[1].split("]")[1]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_an_optimizer_step_with_captured_tensors_is_cached(counted):
    sizes = [(7, 5), (5,), (1,), (3, 2, 4)]
    torch.manual_seed(0)
    start = [torch.randn(s) for s in sizes]
    given = [[torch.randn(s) for s in sizes] for _ in range(3)]

    def trained(compiler: Callable | None) -> list[torch.Tensor]:
        parameters = [p.clone().requires_grad_() for p in start]
        optimizer = torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.1)
        step = optimizer.step if compiler is None else compiler(optimizer.step)
        for gradients in given:
            for p, g in zip(parameters, gradients, strict=True):
                p.grad = g.clone()
            step()
        return [p.detach() for p in parameters]

    expected, first = trained(None), trained(counted)
    assert counted.compiled
    again = trained(counted)
    assert counted.compiled == []
    for e, a, b in zip(expected, first, again, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, e)


class Speech(torch.nn.Module):
    """A classifier of a gated convolution, a GRU and attention pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = torch.nn.Conv1d(7, 22, 3, padding=1, groups=1)
        self.recur = torch.nn.GRUCell(11, 13)
        self.weigh = torch.nn.Linear(13, 1)
        self.out = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(13, 3))

    def forward(self, x):
        y = F.glu(self.frames(x), 1).permute(2, 0, 1)
        state, states = x.new_zeros(x.shape[0], 13), []
        for frame in y:
            state = self.recur(frame, state)
            states.append(state)
        found = torch.stack(states, 1)
        return self.out((found * self.weigh(found).softmax(1)).sum(1))


@pytest.mark.broad(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 5])
def test_a_recurrent_network_is_cached(counted, dtype, rows):
    torch.manual_seed(3)
    module = Speech().to(dtype)
    x = torch.randn(rows, 11, 7, dtype=dtype).transpose(1, 2).requires_grad_()
    expected, first = results(module, x), results(counted(module), x)
    assert counted.compiled == ["forward", "backward"]
    again = results(counted(module), x)
    assert counted.compiled == []
    for e, a, b in zip(expected, first, again, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5)
