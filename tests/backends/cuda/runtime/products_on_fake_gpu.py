"""Programs whose products kernels compute, run in Triton's interpreter; see test_gpu_driver.py."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.support.fake_gpu import FakeGpu, compile_for
from tests.support.product_programs import PROGRAMS, attention, gated, normed_attention
from tofuse.analysis.alias import is_view
from tofuse.driver import choose_products, pipeline
from tofuse.driver.choose_products import IN_KERNEL, IN_LIBRARY
from tofuse.passes.contract_products import contract_products

__all__ = ["compile_for"]  # a fixture

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def contract_all(monkeypatch: pytest.MonkeyPatch):
    """Let kernels compute every product, as if all had been measured to be faster there."""

    def contract(graph):
        return contract_products(graph, {r for op in graph.ops for r in op.results})

    passes = (*pipeline.LAST_GRAPH_PASSES, contract)
    monkeypatch.setattr(pipeline, "LAST_GRAPH_PASSES", passes)


@pytest.mark.usefixtures("contract_all")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize(("program", "shapes"), PROGRAMS, ids=lambda x: getattr(x, "__name__", ""))
def test_training_steps_are_as_in_eager(
    compile_for, program: Callable[..., torch.Tensor], shapes, dtype
):
    generator = torch.Generator().manual_seed(2)
    made = [torch.randn(s, generator=generator).to(dtype) for s in shapes]
    gpu, found = FakeGpu(), []
    compiled, reports = compile_for(gpu, program)
    for run, wide in ((program, torch.float64), (program, dtype), (compiled, dtype)):
        inputs = [t.to(wide, copy=True).requires_grad_() for t in made]
        result = run(*inputs)
        result.backward(result.detach().cos())
        grads = [t.grad for t in inputs if t.grad is not None]  # rounding has none
        found.append([t.double() for t in (result, *grads)])
    for exact, eager, ours in zip(*found, strict=True):
        error = (eager - exact).abs().max()
        bound = torch.finfo(dtype).eps * exact.abs().max()
        assert (ours - exact).abs().max() <= 2 * error + bound
    assert not [note for r in reports for note in r.notes if "PyTorch" in note]
    computed = [op for r in reports for region in r.partition.regions for op in region.ops]
    assert any(op.kind == "contract" for op in computed)


@pytest.mark.usefixtures("contract_all")
@pytest.mark.parametrize(("program", "shapes"), PROGRAMS, ids=lambda x: getattr(x, "__name__", ""))
def test_inference_is_one_kernel_for_each_product(compile_for, program, shapes):
    inputs = [torch.randn(s, generator=torch.Generator().manual_seed(4)) for s in shapes]
    compiled, reports = compile_for(FakeGpu(), program)
    torch.testing.assert_close(compiled(*inputs), program(*inputs), rtol=1e-4, atol=1e-4)
    regions = reports[0].partition.regions
    products = [[op.kind for op in region.ops].count("contract") for region in regions]
    assert products == {gated: [2, 1], attention: [1, 1], normed_attention: [0, 1, 1]}.get(
        program, [1]
    )


def layers(x, g, w, v):
    for _ in range(3):
        x = x + F.silu(F.rms_norm(x, (48,), g) @ w) @ v
    return x


def layers_with_copies(x, g, w, v):
    return torch.cat([layers(x, g, w, v), x.t() @ x], 0).softmax(-1)


@pytest.mark.parametrize("place", [IN_KERNEL, IN_LIBRARY])
@pytest.mark.parametrize("program", [layers, layers_with_copies])
def test_a_product_is_computed_where_it_was_faster(
    compile_for, monkeypatch, tmp_path, place, program
):
    texts: list[str] = []

    def choose(candidates, key, store, device):
        """Run all candidates, compare them, and choose one."""
        results = [build()() for _, build in candidates]
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
        texts.append(key[-1])
        return next(choice for choice, _ in candidates if choice.kind == place)

    monkeypatch.setattr(choose_products, "choose_on_gpu", choose)
    gpu = FakeGpu()
    compiled, reports = compile_for(gpu, program, tune="measure", cache_dir=tmp_path)
    inputs = [torch.randn(s) for s in ((48, 48), (48,), (48, 70), (70, 48))]
    torch.testing.assert_close(compiled(*inputs), program(*inputs), rtol=1e-4, atol=1e-4)
    kinds = [op.kind for region in reports[0].partition.regions for op in region.ops]
    assert (kinds.count("contract") >= 4) == (place == IN_KERNEL)
    assert (kinds.count("opaque") >= 4) == (place == IN_LIBRARY)
    for region in reports[0].partition.regions:  # no product is alone in a kernel
        computed = [op for op in region.ops if not is_view(op)]
        assert [op.kind for op in computed] != ["contract"]
    assert len(set(texts)) < len(texts), "layers that are alike have one text"
    notes = [note for note in reports[0].notes if "is computed by" in note]
    assert len(notes) == len({*notes}) >= 4


@pytest.mark.parametrize(("product_us", "place"), [(3.0, "PyTorch's library"), (1.0, "a kernel")])
def test_products_are_timed_by_the_clock_of_the_gpu(compile_for, tmp_path, product_us, place):
    def program(x, w):
        return F.silu(x @ w)

    for timed in (True, False):  # the second compilation reads the choice on disk
        gpu = FakeGpu(lambda spec, text, instances: product_us if "tl.dot" in text else 2.0)
        compiled, reports = compile_for(gpu, program, tune="measure", cache_dir=tmp_path)
        x, w = torch.randn(48, 48), torch.randn(48, 70)
        torch.testing.assert_close(compiled(x, w), program(x, w), rtol=1e-4, atol=1e-4)
        (note,) = [note for note in reports[0].notes if "is computed by" in note]
        assert place in note and (gpu.timed > 0) == timed


def activated_with_sum(x, w):
    y = x @ w
    return F.gelu(y) + 1, y.sum()


SIZES = [
    (0, 40, 5),
    (5, 0, 7),
    (5, 40, 0),
    (1, 40, 7),
    (7, 1, 9),
    (2, 3, 2),
    (33, 129, 65),
    (1000, 20, 200),
]


@pytest.mark.usefixtures("contract_all")
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_empty_prime_and_small_sizes(compile_for, sizes, dtype):
    rows, depth, columns = sizes
    x, w = torch.randn(rows, depth).to(dtype), torch.randn(depth, columns).to(dtype)
    compiled, reports = compile_for(FakeGpu(), activated_with_sum)
    for ours, eager in zip(compiled(x, w), activated_with_sum(x, w), strict=True):
        torch.testing.assert_close(ours, eager, rtol=3e-2, atol=3e-2)
    assert not [note for note in reports[0].notes if "PyTorch" in note]


def views(x, w):
    return torch.tanh(x[::2, 1:34] @ w.t()[1:34, ::3])


def embedded(x, w):
    return F.embedding((x[:7] > 0).long().cumsum(-1) % 33, w) @ w.t()[:, :20]


def written_as_a_sum(x, w):
    return (x[:, :33, None] * w[None, :33, :]).sum(1)


def quantized_result(x, w):
    y = (x[:, :33] @ w[:33]) * 0.3
    return F.relu(y).clamp(-448, 448).to(torch.float8_e4m3fn).float()


def infinite(x, w):
    x, w = x.clone(), w.clone()
    x[3, 4], x[5, 6], w[7, 8] = float("inf"), float("nan"), float("-inf")
    return F.relu(x[:, :33] @ w[:33])


@pytest.mark.usefixtures("contract_all")
@pytest.mark.parametrize("program", [views, embedded, written_as_a_sum, quantized_result, infinite])
def test_operands_and_results_of_all_kinds(compile_for, program):
    generator = torch.Generator().manual_seed(6)
    x, w = (torch.randn(s, generator=generator) for s in ((40, 35), (50, 35)))
    compiled, _ = compile_for(FakeGpu(), program)
    rtol = 0.13 if program is quantized_result else 1e-4  # a step of fp8
    torch.testing.assert_close(compiled(x, w), program(x, w), rtol=rtol, atol=1e-4, equal_nan=True)


@pytest.mark.usefixtures("contract_all")
def test_a_mask_after_a_product_is_drawn_again_in_the_backward(compile_for):
    x, w = torch.randn(70, 33, requires_grad=True), torch.randn(33, 130)
    out = compile_for(FakeGpu(), lambda x, w: F.dropout(x @ w, 0.4))[0](x, w)
    out.sum().backward()
    mask = (out != 0).float() / 0.6
    torch.testing.assert_close(out, (x @ w) * mask, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(x.grad, mask @ w.t(), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("contract_all")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_verify_accepts_products_with_norms(compile_for, dtype):
    compiled, _ = compile_for(
        FakeGpu(), lambda x, w: F.gelu(F.layer_norm(x, (33,)) @ w), verify=True
    )
    compiled(torch.randn(37, 33).to(dtype), torch.randn(33, 20).to(dtype))
