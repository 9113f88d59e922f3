"""Programs compiled for a GPU and run in Triton's interpreter; see test_gpu_driver.py."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.fake_gpu import FakeGpu, GpuRecorder
from tofuse.driver import compile_program

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def compile_for(monkeypatch: pytest.MonkeyPatch):
    """Return a function that compiles a program for a fake GPU, and returns it with its reports."""

    def compile_program_for(gpu: FakeGpu, program: Callable[..., object], **options):
        torch._dynamo.reset()
        recorder = GpuRecorder(gpu, **options)
        # a backward is compiled at its first call
        monkeypatch.setattr(compile_program, "compile_graph", recorder.compile_graph)
        return torch.compile(program, backend=recorder.backend, dynamic=False), recorder.reports

    return compile_program_for


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


PROGRAMS = [
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


GRAPHS = {"mode": "reduce-overhead"}


def two_launches(x, w):
    return F.gelu(x) * 2, w.sin() + 1


def test_a_graph_is_replayed_from_the_third_call_on(compile_for):
    gpu = FakeGpu()
    run, _ = compile_for(gpu, two_launches, **GRAPHS)
    w = torch.randn(13)
    for k in range(6):
        x = torch.randn(7, 11)  # elsewhere in each call: it is copied
        torch.testing.assert_close(run(x, w), two_launches(x, w))
        assert gpu.replays == max(0, k - 1)


def test_results_that_are_held_are_not_overwritten(compile_for):
    gpu, held = FakeGpu(), []
    run, _ = compile_for(gpu, two_launches, **GRAPHS)
    w = torch.randn(13)
    for k in range(12):
        x = torch.randn(7, 11)
        got = run(x, w)
        held.append((got[k % 2][1:], two_launches(x, w)[k % 2][1:]))  # a view holds the memory
        if k == 7:
            replays, held = gpu.replays, held[-1:]
    assert replays == 2  # two graphs, whose results were held
    assert gpu.replays > replays
    for got, want in held:
        torch.testing.assert_close(got, want)


def test_an_optimiser_updates_its_tensors_in_replays(compile_for):
    gpu, weights = FakeGpu(), [torch.randn(s) for s in ((5,), (16, 3), (64,))]
    states = []
    for compiled in (False, True):
        parameters = [w.clone().requires_grad_() for w in weights]
        for p in parameters:
            p.grad = torch.zeros_like(p)
        optimiser = torch.optim.AdamW(parameters, lr=0.1)
        step = optimiser.step
        for k in range(7):
            for p in parameters:
                assert p.grad is not None
                p.grad.copy_(p.detach().sin() * (k + 1))
            if k == 1 and compiled:
                step, _ = compile_for(gpu, optimiser.step, **GRAPHS)
            step()
        states.append(parameters)
    torch.testing.assert_close(*states)
    assert gpu.replays == 4


def test_a_training_step_replays_forward_and_backward(compile_for):
    gpu = FakeGpu()
    run, _ = compile_for(gpu, two_launches, **GRAPHS)
    made = [torch.randn(s) for s in ((7, 11), (13,))]
    inputs = [t.clone().requires_grad_() for t in made]
    for k in range(8):
        found = []
        for step in (two_launches, run):
            for t in inputs:
                t.grad = None
            out = step(*inputs)
            loss = sum(t.sum() for t in out) if k % 2 else (out[0] * k).sum() + out[1].cos().sum()
            loss.backward()
            grads = [t.grad.clone() for t in inputs if t.grad is not None]
            found.append([*(t.detach().clone() for t in out), *grads])
        torch.testing.assert_close(*found)
    assert gpu.replays >= 8  # though `out` holds the results of the step before


def test_a_retained_graph_is_differentiated_twice(compile_for):
    gpu = FakeGpu()
    run, _ = compile_for(gpu, two_launches, **GRAPHS)
    x, w = torch.randn(7, 11, requires_grad=True), torch.randn(13, requires_grad=True)
    for _ in range(5):
        out = run(x, w)[0]
        first = torch.autograd.grad(out.sum(), x, retain_graph=True)
        second = torch.autograd.grad(out.sum(), x)
        want = torch.autograd.grad(two_launches(x, w)[0].sum(), x)
        torch.testing.assert_close(first, want)
        torch.testing.assert_close(second, want)


def test_arguments_that_move_are_copied_from_then_on(compile_for):
    gpu = FakeGpu()
    run, _ = compile_for(gpu, two_launches, **GRAPHS)
    x, w = torch.randn(7, 11), torch.randn(13)
    for _ in range(4):
        run(x, w)
    assert gpu.replays == 2
    kept = []
    for _ in range(6):
        kept.append(torch.randn(7, 11))
        torch.testing.assert_close(run(kept[-1], w), two_launches(kept[-1], w))
    assert gpu.replays == 7  # one call ran the plan


def test_a_plan_that_cannot_be_recorded_runs(compile_for):
    class Unable(FakeGpu):
        def record(self, function):
            raise RuntimeError("operation not permitted when stream is capturing")

    run, _ = compile_for(Unable(), two_launches, **GRAPHS)
    x, w = torch.randn(7, 11), torch.randn(13)
    with pytest.warns(tofuse.TofuseWarning, match="no CUDA graph .* not permitted"):
        for _ in range(4):
            torch.testing.assert_close(run(x, w), two_launches(x, w))
