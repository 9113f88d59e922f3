"""Programs compiled for a GPU and run in Triton's interpreter; see test_gpu_driver.py."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.fake_gpu import FakeGpu, compile_for

__all__ = ["compile_for"]  # a fixture

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def norm(x, w, b):
    return F.gelu(F.layer_norm(x, (70,), w, b)).sum(0)


def softmax_of_a_product(x, w):
    return F.softmax(x @ w, -1) * x[:, :11]


def batch_norm(x, w, b):
    return F.relu(F.batch_norm(x, None, None, w, b, training=True))


def embedding(table, scale):
    ids = torch.tensor([[1, 4, 1], [0, 6, 2]])
    return F.layer_norm(F.embedding(ids, table) * scale, (8,))


def loss(logits):
    return F.cross_entropy(logits, torch.arange(12) % 7, label_smoothing=0.1)


def cut_and_join(x, y):
    return torch.cat([x[:, 1:].t().exp(), y.cumsum(0), F.pad(y, (0, 0, 1, 2))]).amax(0)


def column_sums(x):
    return x.sum(0), x.sin().sum(1), (x * x).mean()


def unaligned_rows(x, w):
    kept = x[:, 3:] * w
    total = F.cross_entropy(kept, torch.arange(12) * 80)
    return total, kept.softmax(-1), F.layer_norm(x, (1030,)), x[:, 1:].amax(1)


PROGRAMS = [
    (unaligned_rows, [(12, 1030), (1027,)]),
    (norm, [(33, 70), (70,), (70,)]),
    (softmax_of_a_product, [(9, 14), (14, 11)]),
    (batch_norm, [(3, 5, 7, 2), (5,), (5,)]),
    (embedding, [(7, 8), (8,)]),
    (loss, [(12, 7)]),
    (cut_and_join, [(6, 5), (4, 6)]),
    (column_sums, [(3000, 40)]),
]


@pytest.mark.parametrize(("program", "shapes"), PROGRAMS, ids=lambda x: getattr(x, "__name__", ""))
def test_training_steps_are_as_in_eager(compile_for, program: Callable[..., object], shapes):
    generator = torch.Generator().manual_seed(2)
    made = [torch.randn(s, generator=generator) for s in shapes]
    gpu, found = FakeGpu(), []
    for run in (program, compile_for(gpu, program)[0]):
        inputs = [t.clone().requires_grad_() for t in made]
        results = run(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        torch.autograd.backward(results, [r.detach().cos() for r in results])
        found.append([*results, *(t.grad for t in inputs)])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    assert gpu.launches


def test_a_mask_of_dropout_is_drawn_again_in_the_backward(compile_for):
    gpu = FakeGpu()
    x = torch.ones(40, 60, requires_grad=True)
    out = compile_for(gpu, lambda x: F.dropout(x, 0.3))[0](x)
    out.sum().backward()
    assert x.grad is not None and torch.equal(x.grad == 0, out == 0)
    assert 0.6 < (out != 0).float().mean() < 0.8


def test_a_bad_index_raises_in_the_next_call(compile_for):
    gpu = FakeGpu()
    run, _ = compile_for(gpu, lambda table, at: table[at] * 2)
    table, good = torch.randn(10, 4), torch.tensor([1, -2])
    run(table, torch.tensor([1, 12]))
    with pytest.raises(IndexError, match="out of range"):
        run(table, good)
    torch.testing.assert_close(run(table, good), table[good] * 2)


def test_verify_passes_right_kernels_and_finds_one_that_writes_nothing(
    compile_for, tmp_path, monkeypatch
):
    def program(x):
        return F.dropout(x.exp() + x.sum(), 0.4), x.argmax(-1)

    x = torch.randn(33, 70)
    run, _ = compile_for(FakeGpu(), program, verify=True, dump=tmp_path)
    run(x)
    monkeypatch.setattr(FakeGpu, "launch", lambda self, *arguments: "")
    with pytest.raises(tofuse.VerifyError, match="gives a wrong result"):
        run(x)


SHAPES = [(5,), (16, 3), (64,), (7, 11), (128,), (2, 3, 5), (256, 2), (2048,)]
OPTIMISERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
    "adam_amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_optimiser_step_is_few_launches_and_no_copy(compile_for, name: str):
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(s, generator=generator) for s in SHAPES * 3]
    gpu, states = FakeGpu(), []
    for compiled in (False, True):
        parameters = [w.clone().requires_grad_() for w in weights]
        optimiser = OPTIMISERS[name](parameters)
        step = optimiser.step
        reports = []
        for k in range(3):
            for p in parameters:
                p.grad = p.detach().sin() * (k + 1)
            if k == 1 and compiled:
                step, reports = compile_for(gpu, optimiser.step)
            before = len(gpu.launches)
            step()
        states.append(parameters)
    torch.testing.assert_close(*states)
    assert 0 < len(gpu.launches) - before <= 4
    assert not any("copy_" in report.plan for report in reports)
