"""Side effects in the backward of an autograd.Function: which programs are compiled, and when."""

import copy

import pytest
import torch

import tofuse
from tests.support.effect_programs import bump
from tests.support.warm import compile_again

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated"),  # Dynamo does
]


class Count(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, calls):
        ctx.calls = calls
        return value.sin()

    @staticmethod
    def backward(ctx, grad):
        ctx.calls.add_(1)
        return grad * 2, None


class CountWithOperator(Count):
    @staticmethod
    def backward(ctx, grad):
        bump(ctx.calls)
        return grad, None


class CountElements(Count):
    """The count is a view of the argument, and the gradient reads it."""

    @staticmethod
    def forward(ctx, value, calls):
        ctx.calls = calls.view(-1)
        return value * 2

    @staticmethod
    def backward(ctx, grad):
        ctx.calls.add_(1)
        return grad * ctx.calls.sum(), None


class CountInBoth(Count):
    @staticmethod
    def forward(ctx, value, calls):
        calls.add_(10)
        return Count.forward(ctx, value, calls)


class CountIntermediate(Count):
    @staticmethod
    def forward(ctx, value, calls):
        return Count.forward(ctx, value, calls * 1)


class CountSaved(Count):
    @staticmethod
    def forward(ctx, value, calls):
        ctx.save_for_backward(calls)
        return value.sin()

    @staticmethod
    def backward(ctx, grad):
        ctx.saved_tensors[0].add_(1)
        return grad, None


def notes(program, *args):
    return " ".join(n for g in tofuse.explain(program)(*args).graphs for n in g.notes)


def arguments():
    return torch.linspace(-1, 1, 4, requires_grad=True), torch.zeros(())


def counts(program, backwards):
    """The count after the forward, and after each backward through the same graph."""
    value, calls = arguments()
    out = program(value, calls)
    found = [calls.item()]
    for _ in range(backwards):
        out.sum().backward(retain_graph=True)
        found.append(calls.item())
    return found, value.grad


COMPILED = (Count, CountWithOperator, CountElements)


@pytest.mark.parametrize("function", COMPILED)
@pytest.mark.parametrize("backwards", [0, 1, 3])
def test_an_effect_happens_in_each_backward(function, backwards):
    program = lambda value, calls: function.apply(value * 3, calls).exp()  # noqa: E731
    ours, gradient = counts(tofuse.compile(program), backwards)
    assert ours == [float(n) for n in range(backwards + 1)]
    torch.testing.assert_close(gradient, counts(program, backwards)[1])
    assert "PyTorch runs the whole program" not in notes(program, *arguments())


def test_without_gradients_there_is_no_effect():
    value, calls = arguments()
    compiled = tofuse.compile(lambda v, c: Count.apply(v, c))
    with torch.no_grad():
        compiled(value, calls)
    compiled(value.detach(), calls)
    assert calls.item() == 0


def test_an_effect_counts_for_autograd():
    """Another graph that has saved the tensor raises an error, as in eager."""
    value, calls = arguments()
    other = (value * calls).sum()
    tofuse.compile(lambda v, c: Count.apply(v, c))(value, calls).sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        other.backward()


def test_a_saved_tensor_that_the_backward_writes_is_checked():
    value, calls = arguments()
    out = tofuse.compile(lambda v, c: CountSaved.apply(v, c))(value, calls).sum()
    out.backward(retain_graph=True)
    assert calls.item() == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_a_value_of_the_forward_is_not_recomputed_from_a_written_argument():
    class Scale(Count):
        @staticmethod
        def forward(ctx, value, calls):
            ctx.calls, ctx.scale = calls, calls.exp()
            return value * ctx.scale

        @staticmethod
        def backward(ctx, grad):
            ctx.calls.add_(1)
            return grad * ctx.scale, None

    ours, theirs = (counts(f, 2) for f in (tofuse.compile(applied(Scale)), applied(Scale)))
    torch.testing.assert_close(ours, theirs)


def test_gradients_with_a_graph_have_the_effect_once():
    value, calls = arguments()
    out = tofuse.compile(lambda v, c: Count.apply(v, c))(value, calls).sum()
    (gradient,) = torch.autograd.grad(out, value, create_graph=True)
    assert gradient.tolist() == [2.0] * 4
    assert calls.item() == 1


def applied(function):
    return lambda value, calls: function.apply(value, calls)


def two_results(value, calls):
    return Count.apply(value, calls), value * 2


def scaled(value, calls):
    return Count.apply(value, calls) * calls


in_both, intermediate = applied(CountInBoth), applied(CountIntermediate)
NOT_COUNTED = (two_results, intermediate)  # the loss does not use it; it is not the argument


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (in_both, "writes into a result, or into what its forward writes"),
        (intermediate, "writes into a tensor that its forward computes"),
        (two_results, "writes only if some of its results have gradients"),
        (scaled, "writes into a tensor that another operator may have saved"),
    ],
)
def test_pytorch_runs_what_a_compiled_backward_cannot_do(program, reason):
    assert reason in notes(program, *arguments())
    value, calls = arguments()
    results = tofuse.compile(program)(value, calls)
    before = calls.item()
    last = results[-1] if isinstance(results, tuple) else results
    last.sum().backward()
    expected = int(program not in NOT_COUNTED)
    assert calls.item() - before == expected


def test_an_argument_that_overlaps_the_written_one():
    """Eager runs a call in which another argument shares memory with the written one."""

    class Read(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value, calls, other):
            ctx.calls, ctx.other = calls, other
            return value.sin()

        @staticmethod
        def backward(ctx, grad):
            ctx.calls.add_(1)
            return grad * ctx.other, None, None

    compiled = tofuse.compile(lambda v, c, o: Read.apply(v, c, o))
    for shared in (False, True):
        value, memory = torch.ones(2, requires_grad=True), torch.zeros(2, 2)
        compiled(value, memory[0], memory[0] if shared else memory[1]).sum().backward()
        torch.testing.assert_close(value.grad, torch.full((2,), float(shared)))


def test_a_later_process_has_the_effect():
    compiled = compile_again(lambda v, c: Count.apply(v, c), {}, *arguments())
    assert counts(compiled, 2)[0] == [0, 1, 2]


def test_capture_by_tracing():
    program = lambda v, c: Count.apply(v, c)  # noqa: E731
    assert counts(tofuse.compile(program, capture="trace"), 1)[0] == [0, 1]
    with pytest.raises(tofuse.CaptureError, match="what its forward writes"):
        tofuse.compile(applied(CountInBoth), capture="trace")(*arguments())


class Quantize(torch.autograd.Function):
    """A rounding whose backward counts clipped values, and follows their range."""

    @staticmethod
    def forward(ctx, x, clipped, largest):
        ctx.save_for_backward(x)
        ctx.clipped, ctx.largest = clipped, largest
        return (x * 4).round().clamp(-8, 7) / 4

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        inside = (x * 4).abs() <= 7.5
        ctx.clipped.add_((~inside).sum())
        if x.numel():
            ctx.largest.mul_(0.9).add_(x.abs().amax() * 0.1)
        return grad * inside, None, None


class Quantized(torch.nn.Module):
    """A product that is quantized, with a buffer for each effect."""

    def __init__(self, width, dtype):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width, width, dtype=dtype))
        self.register_buffer("clipped", torch.zeros((), dtype=torch.int64))
        self.register_buffer("largest", torch.ones((), dtype=dtype))

    def forward(self, x):
        return torch.tanh(Quantize.apply(x @ self.weight, self.clipped, self.largest))


def _train(model, run, x):
    """The buffers after each of two steps, the first with two backwards, and the gradients."""
    found = []
    for backwards in (2, 1):
        result = run(x)
        found += [result.detach().clone(), model.clipped.clone()]
        for k in range(backwards):
            result.sum().backward(retain_graph=k + 1 < backwards)
        found += [model.clipped.clone(), model.largest.clone()]
    return [*found, x.grad, model.weight.grad]


@pytest.mark.parametrize("shape", [(7, 5), (1, 3), (0, 4), (3, 2, 17)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_buffers_of_odd_sizes_that_a_backward_writes(shape, dtype):
    x = torch.randn(*shape[::-1], dtype=dtype).movedim(0, -1)  # not contiguous
    x = x.reshape(shape) if x.shape != shape else x
    expected, model = None, Quantized(shape[-1], dtype)
    for compiled in (False, True):
        copied = copy.deepcopy(model)
        run = tofuse.compile(copied) if compiled else copied
        found = _train(copied, run, x.detach().requires_grad_())
        expected = expected or found
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
