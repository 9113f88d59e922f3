"""Programs on a GPU against eager: forward, gradients, layouts, random numbers, errors."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

import tofuse
from tests.support.eager import outcome, tensors
from tofuse.backends.cuda.runtime.cuda import CudaLauncher
from tofuse.nvfuser import FusionDefinition
from tofuse.ops.philox import uniform
from tofuse.ops.reference import draw_seed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

Make = Callable[[], tuple[Tensor | int, ...]]


def normal(*shapes: tuple[int, ...], dtype=torch.float32, grad=True) -> Make:
    def make() -> tuple[Tensor | int, ...]:
        made = [torch.randn(s, device="cuda").to(dtype) for s in shapes]
        return tuple(x.requires_grad_(grad) for x in made)

    return make


def without_grad(*shapes: tuple[int, ...], dtype=torch.float32) -> Make:
    return normal(*shapes, dtype=dtype, grad=False)


def integers(*shapes: tuple[int, ...], dtype=torch.int64) -> Make:
    low = 0 if dtype is torch.uint8 else -99
    return lambda: tuple(torch.randint(low, 99, s, device="cuda", dtype=dtype) for s in shapes)


def scalar(dtype: torch.dtype) -> Make:
    return lambda: (torch.randn(77, device="cuda"), torch.tensor(3.5, dtype=dtype))


def embedding_arguments() -> tuple[Tensor | int, ...]:
    table = torch.randn(100, 64, device="cuda", requires_grad=True)
    return table, torch.randint(0, 100, (7, 9), device="cuda")


def cross_entropy_arguments() -> tuple[Tensor | int, ...]:
    logits = torch.randn(128, 3201, device="cuda", requires_grad=True)
    return logits, torch.randint(0, 3201, (128,), device="cuda")


def norm(x, weight, bias):
    return F.layer_norm(x * 1.5, x.shape[-1:], weight, bias)


def elementary(a):
    b = a.abs()
    return a.tanh(), a.erf(), a.exp(), a.expm1(), b.log1p(), a.atan(), b.pow(1.7), a.sigmoid()


def quotients(a, b):
    c = a * 10
    return c // b, c % b, torch.fmod(c, b), torch.div(c, b, rounding_mode="trunc"), c.round()


def searches(a):
    return a.argmax(-1), a.argmin(0), (a * 2).argmax(), a.amax(1), (a > 3).any(0), (a > -3).all()


PROGRAMS: tuple[tuple[str, Callable[..., object], Make], ...] = (
    ("pointwise", lambda a, b: torch.sin(a) * b + 1, normal((33, 77), (33, 77))),
    ("broadcast", lambda a, b: a * b + 1, normal((33, 77), (77,))),
    ("elementary", elementary, without_grad((1000,))),
    ("quotients", quotients, without_grad((1000,), (1000,))),
    ("softmax", lambda a: torch.softmax(a * 2, -1), normal((512, 1000))),
    ("softmax of columns", lambda a: torch.softmax(a * 2, 0), normal((300, 70))),
    (
        "softmax in half precision",
        lambda a: torch.softmax(a, -1),
        without_grad((9, 333), dtype=torch.float16),
    ),
    ("long rows", lambda a: torch.softmax(a * 2, -1), normal((20, 50001))),
    ("few long rows", lambda a: torch.softmax(a * 2, -1), normal((2, 300007))),
    ("norm", norm, normal((512, 1024), (1024,), (1024,))),
    ("odd norm", norm, normal((37, 1027), (1027,), (1027,))),
    ("norm of long rows", norm, normal((20, 40000), (40000,), (40000,))),
    ("norm of bf16", norm, normal((8, 64, 768), (768,), (768,), dtype=torch.bfloat16)),
    ("columns", lambda a: (a * 2).sum(0), normal((5000, 70))),
    ("all", lambda a: (a - a.mean()) / a.std(), normal((512, 1000))),
    ("doubles", lambda a: (a.sin() / 3).sum(-1), normal((100, 333), dtype=torch.float64)),
    ("searches", searches, without_grad((300, 1025))),
    ("integers", lambda a: (a // 7) % 5 + (a << 1) - (a >> 2), integers((333,))),
    ("bytes", lambda a: a.int() * 3 + a // 3, integers((333,), dtype=torch.uint8)),
    ("flags", lambda a, b: (a > 0) & ~(b > 0), without_grad((333,), (333,))),
    ("transpose", lambda a: (a.t() * 2).contiguous(), normal((1000, 777))),
    ("permuted", lambda a: (a.permute(2, 0, 1) * 2).contiguous(), without_grad((100, 77, 130))),
    ("with its transpose", lambda a: a + a.t(), normal((300, 300))),
    ("cat", lambda a, b: torch.cat([a * 2, b.exp()], 1), normal((50, 30), (50, 41))),
    ("pad", lambda a: F.pad(a, (1, 2, 3, 4)) * 2, normal((50, 30))),
    ("slice", lambda a: a[1:, ::3] * 2, normal((50, 30))),
    ("embedding", lambda t, i: F.embedding(i, t) * 2, embedding_arguments),
    ("cross entropy", lambda a, t: F.cross_entropy(a, t), cross_entropy_arguments),
    ("matmul", lambda a, b, c: torch.relu(a @ b + c) * 2, normal((128, 64), (64, 96), (96,))),
    ("float32 scalar on the CPU", lambda a, s: a * s + 1, scalar(torch.float32)),
    ("float64 scalar on the CPU", lambda a, s: s / a, scalar(torch.float64)),
    ("empty", lambda a: (a * 2, (a * 2).sum()), normal((0, 77))),
    ("one", lambda a: (a * 2).sum(), normal((1,))),
    ("unaligned", lambda a: a[1:].sin() * 2, normal((1001,))),
)


def to_double(x: object) -> object:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return x
    return x.detach().double().requires_grad_(x.requires_grad)


def assert_as_precise(got: object, want: object, exact: object) -> None:
    """Assert that errors against float64 are at most twice eager's."""
    for a, b, c in zip(tensors(got), tensors(want), tensors(exact), strict=True):
        scale = float(c.detach().norm())
        errors = [float((x.detach().double() - c.detach()).norm()) / scale for x in (a, b)]
        assert errors[0] <= 2 * errors[1] + 1e-6, errors


@pytest.mark.parametrize(("fn", "make"), [p[1:] for p in PROGRAMS], ids=[p[0] for p in PROGRAMS])
def test_results_match_eager(fn: Callable[..., object], make: Make):
    torch.manual_seed(1)
    args = make()
    compiled = tofuse.compile(fn, strict=True)
    want, got = (outcome(f, args, {}) for f in (fn, compiled))
    if any(isinstance(x, Tensor) and x.itemsize == 2 for x in args):
        assert_as_precise(got, want, outcome(fn, tree_map(to_double, args), {}))
    else:
        for a, b in zip(tensors(got), tensors(want), strict=True):
            torch.testing.assert_close(a, b, rtol=3e-4, atol=3e-4)
    for a, b in zip(tensors(compiled(*args)), tensors(fn(*args)), strict=True):
        assert (a.dtype, a.device, a.stride()) == (b.dtype, b.device, b.stride())


@pytest.mark.parametrize("rows", [5, 33])
def test_dynamic_sizes(rows: int):
    compiled = tofuse.compile(lambda a: torch.softmax(a.sin(), -1).sum(0), dynamic=True)
    for more in (0, 1, 64):
        a = torch.randn(rows, 77 + more, device="cuda")
        torch.testing.assert_close(compiled(a), torch.softmax(a.sin(), -1).sum(0))


@pytest.mark.parametrize("shape", [(64, 256), (33, 77), (5000,), (3, 5, 130)])
def test_dropout_masks_are_those_of_the_generators_seed(shape: tuple[int, ...]):
    compiled = tofuse.compile(lambda a: F.dropout(a, 0.3) * 2)
    a = torch.ones(shape, device="cuda")
    compiled(a)
    torch.cuda.manual_seed(7)
    first, second = (compiled(a).cpu() for _ in range(2))
    torch.cuda.manual_seed(7)
    for drawn in (first, second):
        first_word, second_word = draw_seed(a.device).tolist()
        assert torch.equal(
            drawn != 0, torch.from_numpy(uniform((first_word, second_word), shape, 0)) < 0.7
        )
    assert not torch.equal(first, second)


def test_the_seed_of_the_cpu_leaves_the_gpus_numbers():
    compiled = tofuse.compile(lambda a: torch.rand_like(a))
    a = torch.ones(1000, device="cuda")
    drawn = []
    for cpu_seed in (1, 2):
        torch.cuda.manual_seed(7)
        torch.default_generator.manual_seed(cpu_seed)
        drawn.append(compiled(a))
    assert torch.equal(*drawn)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_dropout_scales_in_float32(dtype: torch.dtype):
    a = torch.randn(100, 130, device="cuda", dtype=dtype, requires_grad=True)
    out = tofuse.compile(lambda a: F.dropout(a, 0.1))(a)
    want = torch.where(out != 0, (a.float() / 0.9).to(dtype), 0)
    torch.testing.assert_close(out, want, rtol=1e-6, atol=0)
    gradient = torch.randn_like(a)
    (got,) = torch.autograd.grad(out, a, gradient)
    want = torch.where(out != 0, (gradient.float() / 0.9).to(dtype), 0)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=0)


def test_a_captured_graph_draws_a_new_mask_in_each_replay():
    a = torch.ones(100, 130, device="cuda", requires_grad=True)
    compiled = tofuse.compile(lambda a: F.dropout(a, 0.3))

    def step() -> tuple[Tensor, Tensor]:
        out = compiled(a)
        return out, torch.autograd.grad(out.sum(), a)[0]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out, gradient = step()
    seen = []
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out == 0, gradient == 0)
        assert 0.25 < float((out == 0).float().mean()) < 0.35
        seen.append(out.clone())
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])
    torch.cuda.manual_seed(3)
    graph.replay()
    first = out.clone()
    torch.cuda.manual_seed(3)
    graph.replay()
    assert torch.equal(out, first)


def test_code_for_an_alignment_is_loaded_during_a_capture():
    compiled = tofuse.compile(lambda a: (a * 2).sum(-1), dynamic=True)
    memory = torch.randn(1001, device="cuda")
    compiled(memory[:1000].view(10, 100))
    unaligned = memory[1:].view(10, 100)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = compiled(unaligned)
    graph.replay()
    torch.testing.assert_close(out, (unaligned * 2).sum(-1))


def test_threads_launch_on_their_own_streams():
    compiled = tofuse.compile(lambda a: torch.softmax(a * 2, -1))
    inputs = [torch.randn(64, 100 + k, device="cuda") for k in range(4)]
    results: list[Tensor | None] = [None] * 4

    def work(k: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                results[k] = compiled(inputs[k])
            torch.cuda.current_stream().synchronize()

    torch.cuda.synchronize()
    for k in range(4):
        compiled(inputs[k])
    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for got, a in zip(results, inputs, strict=True):
        torch.testing.assert_close(got, torch.softmax(a * 2, -1))


BLOCKING_PROGRAM = """
import torch, tofuse
compiled = tofuse.compile(lambda table, at: table[at] * 2)
table = torch.randn(10, 4, device="cuda")
try:
    compiled(table, torch.tensor([1, 12], device="cuda"))
except IndexError as e:
    print("found:", e)
"""


def test_blocking_launches_report_an_index_at_once():
    done = subprocess.run(
        [sys.executable, "-c", BLOCKING_PROGRAM],
        env={**os.environ, "CUDA_LAUNCH_BLOCKING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "found: index out of range" in done.stdout, done.stderr


def test_layers_that_share_a_dropout_kernel_draw_masks_of_their_own():
    def program(x):
        a = F.dropout(x, 0.5)
        b = F.dropout((a @ x).mul(0) + 1, 0.5)  # a product between them: two launches
        return a, b, F.dropout((b @ x).mul(0) + 1, 0.5)

    x = torch.ones(256, 256, device="cuda")
    report = tofuse.explain(program)(x)
    launches = sum(r.executor == "triton" for r in report.regions)
    assert len({k.source for k in report.kernels}) < launches
    masks = [t != 0 for t in tofuse.compile(program)(x)]
    for k in range(3):
        assert 0.45 < masks[k].float().mean() < 0.55
        assert 0.45 < (masks[k] == masks[k - 1]).float().mean() < 0.55


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD])
def test_an_optimiser_step_in_place(make: Callable[..., torch.optim.Optimizer], mode: str):
    weights = [torch.randn(77, 33, device="cuda") for _ in range(5)]
    steps = []
    for compiled in (False, True):
        parameters = [w.clone().requires_grad_() for w in weights]
        optimiser = make(parameters, lr=0.1, weight_decay=0.01)
        step = tofuse.compile(optimiser.step, mode=mode) if compiled else optimiser.step
        for k in range(8):
            for p in parameters:
                p.grad = p.detach().sin() * (k + 1)
            step()
        steps.append(parameters)
    torch.testing.assert_close(*steps)


def test_the_backward_uses_the_same_dropout_mask():
    a = torch.ones(100, 130, device="cuda", requires_grad=True)
    out = tofuse.compile(lambda a: F.dropout(a, 0.3))(a)
    out.sum().backward()
    assert a.grad is not None
    assert torch.equal(a.grad == 0, out == 0)


def test_an_index_out_of_range_raises_in_the_next_call():
    compiled = tofuse.compile(lambda table, at: table[at] * 2)
    table = torch.randn(10, 4, device="cuda")
    compiled(table, torch.tensor([1, 12], device="cuda"))
    torch.cuda.synchronize()
    good = torch.tensor([1, -2], device="cuda")
    with pytest.raises(IndexError, match="out of range"):
        compiled(table, good)
    torch.testing.assert_close(compiled(table, good), table[good] * 2)


def test_verified_kernels_pass_and_a_wrong_one_is_found(monkeypatch, tmp_path):
    def program(x):
        return F.dropout(F.gelu(x), 0.3) + x.sum(-1, keepdim=True), x.argmax(-1)

    x = torch.randn(33, 1025, device="cuda")
    tofuse.compile(program, verify=True)(x)
    monkeypatch.setattr(CudaLauncher, "__call__", lambda self, *words: None)  # writes nothing
    with pytest.raises(tofuse.VerifyError, match="wrong result"):
        tofuse.compile(lambda x: x.exp() + 1, verify=True, dump=tmp_path)(x)


def test_the_current_stream_is_used():
    compiled = tofuse.compile(lambda a: a * 2 + 1)
    a = torch.zeros(1 << 20, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(5):
            a = compiled(a)
    stream.synchronize()
    assert torch.equal(a, torch.full_like(a, 31.0))


def test_a_cuda_graph_replays():
    compiled = tofuse.compile(lambda a: torch.softmax(a, -1).sum(0))
    a = torch.randn(64, 100, device="cuda")
    compiled(a)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = compiled(a)
    a.mul_(2)
    graph.replay()
    torch.testing.assert_close(out, torch.softmax(a, -1).sum(0))


def test_a_fusion_definition():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True])
        y = fd.ops.exp(x)
        fd.add_output(fd.ops.div(y, fd.ops.broadcast(fd.ops.sum(y, [1]), [False, True])))
    x0 = torch.randn(33, 70, device="cuda")
    (got,) = fd.execute([x0])
    torch.testing.assert_close(got, torch.softmax(x0, 1))
