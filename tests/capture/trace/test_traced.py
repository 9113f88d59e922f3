"""memory_efficient_fusion and capture="trace": a pure function, traced once for each signature."""

import copy
import functools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

import tofuse
from tofuse.errors import CaptureError, OptionError

WEIGHT = torch.randn(5)


class CallCounter:
    """A function that counts its Python calls: two for each trace."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return self.function(*args, **kwargs)


def traced(function):
    counted = CallCounter(function)
    return tofuse.memory_efficient_fusion(counted), counted


def assert_matches_eager(function, *args, compiled=None):
    """Assert that results and gradients match eager's."""
    compiled = compiled or tofuse.memory_efficient_fusion(function)
    for run in range(3):
        both = []
        for f in (function, compiled):
            torch.manual_seed(run)
            fresh = [
                a.detach().clone().requires_grad_(a.requires_grad)
                if isinstance(a, torch.Tensor)
                else a
                for a in args
            ]
            results = torch.utils._pytree.tree_leaves(f(*fresh))
            wanted = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
            if wanted:
                torch.autograd.backward(wanted, [torch.ones_like(w) for w in wanted])
            grads = [a.grad for a in fresh if isinstance(a, torch.Tensor)]
            both.append([*results, *grads])
        torch.testing.assert_close(both[1], both[0], rtol=1e-4, atol=1e-5)
    return compiled


def norm(x, residual, weight, bias, shift):
    summed = F.dropout(x + bias, 0.0, training=True) + residual
    mean = summed.mean(2, keepdim=True)
    centered = summed - mean
    variance = (centered * centered).mean(2, keepdim=True)
    return weight * (centered / torch.sqrt(variance + 1e-12)) + shift


def leaf(*shape):
    return torch.randn(shape, requires_grad=True)


def test_norm_forward_and_backward():
    assert_matches_eager(norm, leaf(2, 3, 16), leaf(2, 3, 16), leaf(16), leaf(16), leaf(16))


def test_dropout_draws_new_masks_and_saves_them():
    def drop(x, y):
        return F.dropout(x, 0.5) * y

    compiled = tofuse.memory_efficient_fusion(drop)
    x, y = leaf(40, 50), torch.ones(40, 50)
    masks = []
    for _ in range(2):
        out = compiled(x, y)
        (grad,) = torch.autograd.grad(out.sum(), x)
        torch.testing.assert_close(out, x * grad)
        masks.append(grad)
    assert not torch.equal(*masks)


def test_new_shape_is_traced():
    compiled, counted = traced(lambda x: (x * 2).sum(0) * x.shape[0])
    for rows in (3, 5, 3, 5, 3):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), (x * 2).sum(0) * rows)
    before = counted.calls
    for rows in (3, 5):
        compiled(torch.randn(rows, 4))
    assert counted.calls == before


def test_guards_on_arguments():
    compiled, counted = traced(lambda x, k=1: (x + 1) * k)
    x = torch.randn(4, 6)
    variants = [
        (x,), (x.t(),), (x.double(),), (x.clone().requires_grad_(),), (x, 2), (x, 2.0), (x, True),
        (x, -0.0), (x, 0.0), (x, math.nan),
    ]  # fmt: skip
    for args in variants * 2:
        torch.testing.assert_close(
            compiled(*args), (args[0] + 1) * (args[1:] or (1,))[0], equal_nan=True
        )
    before = counted.calls
    for args in variants:
        compiled(*args)
    assert counted.calls == before
    assert math.copysign(1.0, float(compiled(torch.zeros(()), -0.0))) == -1.0


def test_grad_mode_is_a_guard():
    compiled, _ = traced(torch.exp)
    x = leaf(3)
    for _ in range(2):
        assert compiled(x).requires_grad
        with torch.no_grad():
            assert not compiled(x).requires_grad
    assert not compiled(x.detach()).requires_grad


def test_aliasing_is_a_guard():
    compiled, _ = traced(lambda x, y: x * y)
    x, y = leaf(3), leaf(3)
    for _ in range(2):
        for a, b in ((x, y), (x, x)):
            grads = torch.autograd.grad(compiled(a, b).sum(), list({a, b}))
            torch.testing.assert_close(grads, torch.autograd.grad((a * b).sum(), list({a, b})))


def test_autocast_is_a_guard():
    compiled, _ = traced(lambda x, y: (x @ y).relu())
    x, y = leaf(3, 4), leaf(4, 5)
    for dtype in (None, torch.bfloat16, None, torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            result = compiled(x, y)
            torch.testing.assert_close(result, (x @ y).relu())
        result.sum().backward()


def test_nested_arguments_and_results():
    def many(pair, *, table):
        a, b = pair
        return {"sum": a + b, "rest": [a, table["k"] * 2, None, 7], "flag": a > 0}

    compiled = tofuse.memory_efficient_fusion(many)
    a, b, c = leaf(3), torch.randn(3), torch.randn(3)
    for _ in range(2):
        got, wanted = (f((a, b), table={"k": c}) for f in (compiled, many))
        assert got["rest"][2:] == [None, 7] and not got["flag"].requires_grad
        torch.testing.assert_close(got["rest"][1], c * 2)
        torch.testing.assert_close((got["sum"], got["flag"]), (wanted["sum"], wanted["flag"]))
        assert got["sum"].requires_grad


def test_several_results_some_without_gradient():
    assert_matches_eager(lambda x, y: (x.sin(), (x > 0), y * 2, (x * y).detach()), leaf(4), leaf(4))


def test_views_and_mutation_match_eager():
    assert_matches_eager(lambda x: (x.t(), x * 2), leaf(3, 4))

    def change(x, y):
        x.add_(y)
        return x * 2

    compiled = tofuse.memory_efficient_fusion(change)
    for _ in range(3):
        x, y = torch.randn(4), torch.randn(4)
        a, b = x.clone(), y.clone()
        torch.testing.assert_close(compiled(a, b), change(x, y))
        torch.testing.assert_close(a, x)


def test_shared_storage_is_a_guard():
    def change(x, y):
        x.mul_(2.0)
        return y + 1

    compiled = tofuse.memory_efficient_fusion(change)
    for first, second in ((0, 4), (0, 2), (0, 4), (2, 0), (1, 2)):
        base = torch.arange(8.0)
        twin = base.clone()
        got = compiled(base[first : first + 4], base[second : second + 4])
        torch.testing.assert_close(got, change(twin[first : first + 4], twin[second : second + 4]))
        torch.testing.assert_close(base, twin)
        x, y = torch.ones(4), torch.ones(4)
        torch.testing.assert_close(compiled(x, y), y + 1)


def test_free_tensors_are_inputs():
    scale = leaf(5)
    function = functools.partial(lambda s, x: x * s * WEIGHT + 1.5, scale)
    compiled = tofuse.memory_efficient_fusion(function)
    x = torch.randn(3, 5)
    for _ in range(2):
        result = compiled(x)
        torch.testing.assert_close(result, function(x))
        torch.testing.assert_close(
            torch.autograd.grad(result.sum(), scale),
            torch.autograd.grad(function(x).sum(), scale),
        )
        with torch.no_grad():
            scale.mul_(2.0)
            WEIGHT.add_(1.0)


def test_free_tensor_passed_as_an_argument():
    free = torch.randn(3)
    compiled = tofuse.memory_efficient_fusion(lambda x: x * free)
    other = torch.randn(3)
    for x in (free, other, free):
        torch.testing.assert_close(compiled(x), x * free)


def test_module():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return x + self.drop(F.gelu(self.norm(self.linear(x))))

    block = Block()
    compiled = tofuse.memory_efficient_fusion(block)
    assert isinstance(compiled, Block) and compiled.linear is block.linear
    x = torch.randn(4, 8)
    block.eval()
    torch.testing.assert_close(compiled(x), block(x))
    compiled.train()
    assert not torch.equal(compiled(x), compiled(x))
    compiled.eval()
    compiled(x).sum().backward()
    got = [p.grad.clone() for p in block.parameters() if p.grad is not None]
    block.zero_grad()
    block(x).sum().backward()
    torch.testing.assert_close(got, [p.grad for p in block.parameters()], rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        block.linear.weight.mul_(0.5)
    torch.testing.assert_close(compiled(x), block(x))
    block.linear.weight = nn.Parameter(torch.randn(8, 8))
    torch.testing.assert_close(compiled(x), block(x))


def test_module_with_buffers():
    norm, twin = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    compiled = tofuse.memory_efficient_fusion(norm)
    for _ in range(3):
        x = torch.randn(6, 4)
        torch.testing.assert_close(compiled(x), twin(x))
    torch.testing.assert_close(norm.running_mean, twin.running_mean)
    assert norm.num_batches_tracked == 3


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x * x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
    ],
)
def test_data_dependence_is_an_error(function):
    with pytest.raises(CaptureError, match=r"depend on data.*test_traced\.py:\d+"):
        tofuse.memory_efficient_fusion(function)(torch.randn(4))


def test_errors_of_the_program_are_preserved():
    with pytest.raises(RuntimeError, match="must match"):
        tofuse.memory_efficient_fusion(torch.add)(torch.ones(3), torch.ones(4))


def test_eager_under_vmap():
    compiled = tofuse.memory_efficient_fusion(lambda x: x.sin().sum())
    x = torch.randn(3, 4)
    torch.testing.assert_close(torch.func.vmap(compiled)(x), x.sin().sum(1))


def test_cheap_intermediates_are_recomputed():
    saved = []

    def record(t):
        saved.append(t)
        return t

    compiled = tofuse.compile(lambda x: torch.sigmoid(torch.exp(x) * 2) + x, capture="trace")
    x = leaf(64)
    compiled(x)
    with torch.autograd.graph.saved_tensors_hooks(record, lambda t: t):
        compiled(x)
    assert [t.shape for t in saved] == [x.shape] and saved[0].data_ptr() == x.data_ptr()


def test_explain_and_options():
    report = tofuse.explain(norm, capture="trace")(
        leaf(2, 3, 16), leaf(2, 3, 16), leaf(16), leaf(16), leaf(16)
    )
    assert len(report.forward.kernels) == 1 and report.backward.kernels
    assert any("test_traced.py" in loc.file for r in report.regions for loc in r.locs)
    with pytest.raises(OptionError, match="capture must be 'dynamo' or 'trace'"):
        tofuse.compile(norm, capture="jit")


def test_method():
    class Model:
        factor = 3.0

        @tofuse.memory_efficient_fusion
        def scale(self, x):
            return x * self.factor

    x = torch.randn(4)
    torch.testing.assert_close(Model().scale(x), x * 3)


def test_views_of_arguments_have_gradients_at_every_call():
    assert_matches_eager(torch.t, leaf(3, 4))
    assert_matches_eager(lambda x: (x.detach(), x[1:]), leaf(3, 4))


def test_assertions_in_the_backward_are_not_tangents():
    assert_matches_eager(lambda x: torch.linalg.eigvals(x).abs().sum(), leaf(4, 4))


def test_transforms_inside_the_program():
    def weighted_sum(x, weight=WEIGHT):
        return (x.sin() * weight).sum()

    gradient = torch.func.grad(weighted_sum)
    assert_matches_eager(gradient, torch.randn(5))
    assert_matches_eager(torch.func.vmap(weighted_sum), torch.randn(3, 5))
    assert_matches_eager(lambda w, x: gradient(w, x) * 2, torch.randn(5), torch.randn(5))
    with pytest.raises(CaptureError, match="closes over; make it an argument"):
        tofuse.memory_efficient_fusion(lambda x: x * gradient(WEIGHT))(torch.randn(5))


def test_sizes_inside_the_program():
    assert_matches_eager(lambda x: x.new(torch.Size((3, 5))).fill_(2) * x * WEIGHT, leaf(5))


def test_tracing_error_names_the_line():
    split = tofuse.memory_efficient_fusion(lambda x, at: torch.tensor_split(x, at))
    with pytest.raises(CaptureError, match=r"test_traced\.py:\d+.*compile it without"):
        split(torch.randn(4), torch.tensor([1, 3]))


class Plain(torch.Tensor):
    """A subclass without __torch_dispatch__."""


def test_untraceable_arguments_run_in_eager():
    compiled = tofuse.memory_efficient_fusion(lambda x: x * 2)
    assert type(compiled(torch.ones(3).as_subclass(Plain))) is Plain
    assert compiled(torch.eye(3).to_sparse()).layout is torch.sparse_coo
    array = np.ones(3)
    for k in (1, 2):
        array[0] = k
        assert compiled(array)[0] == 2 * k


def test_checkpoint_around_the_first_call():
    compiled = tofuse.memory_efficient_fusion(lambda x: F.gelu(x).sin())
    x = leaf(4, 5)
    for _ in range(2):
        y = torch.utils.checkpoint.checkpoint(compiled, x, use_reentrant=False)
        (grad,) = torch.autograd.grad(y.sum(), x)
        wanted = torch.autograd.grad(F.gelu(x).sin().sum(), x)
        torch.testing.assert_close(grad, wanted[0])


def test_copies_are_the_function_itself():
    compiled = tofuse.memory_efficient_fusion(norm)
    assert copy.deepcopy(compiled) is copy.copy(compiled) is compiled
