"""Captured programs: eager's results, and the expected ops."""

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.exc import BackendCompilerFailed

import tofuse
from tests.support.capture_only import check, compiled
from tests.support.eager import assert_as_eager
from tofuse.ir.dims import SymDim
from tofuse.ir.graph import Value
from tofuse.ir.size_expression import SizeExpression

FLOATS = (torch.float32, torch.float64, torch.bfloat16)


def leaf(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()


def branches(x, y):
    return torch.where(x > y, x, y * 2), torch.clamp(x, -0.5, None), x.clamp(min=y)


def powers(x, y):
    base = x.abs() + 0.5
    return base**2, base**3, base**0.5, base**-1, base**1.7, 2.0**y, base**y


def divisions(x, y):
    scaled = x * 7
    return (
        scaled / y,
        torch.div(scaled, 2, rounding_mode="floor"),
        torch.div(scaled, 3, rounding_mode="trunc"),
        scaled % 3,
        torch.fmod(scaled, 3),
    )


def statistics(x, y):
    return x.mean(), x.var(-1), x.std(0, correction=0), y.mean(1, keepdim=True), x.sum((0, 1))


def extremes(x, y):
    values, _ = x.max(-1)
    return x.amax(0), values, x.min(), torch.logsumexp(x, 1), torch.linalg.vector_norm(y, dim=0)


def views(x, y):
    a = x.t().reshape(-1)[1:]
    b = torch.stack([x, y], 1).flip(0)[:, :, ::2]
    return a, b, x[:, None].expand(-1, 2, -1), torch.cat([x, y], -1)[..., -3:], x.roll(1, 0)


def joins(x, y):
    return F.pad(x, (1, 2), value=3.0), F.pad(x, (-1, 0, 2, 0)), x.repeat(2, 3), x.unbind(0)[-1]


def norms(x, y):
    width = (x.shape[-1],)
    return F.layer_norm(x, width, y[0], y[1]), F.rms_norm(x, width), F.normalize(y, dim=-1)


def activations(x, y):
    return F.gelu(x), F.silu(y), F.mish(x), F.softplus(y), F.hardswish(x), F.elu(y), F.glu(x, -1)


def losses(x, y):
    target = torch.arange(x.shape[0]) % x.shape[1]
    return (
        F.cross_entropy(x, target),
        F.mse_loss(x, y),
        F.smooth_l1_loss(x, y),
        F.binary_cross_entropy_with_logits(x, torch.sigmoid(y)),
        F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="batchmean"),
    )


def indexing(x, y):
    rows = torch.arange(x.shape[0]).flip(0)
    wide = rows[:, None].expand(-1, x.shape[1]) % x.shape[1]
    return x[rows], y.index_select(0, rows), x.gather(1, wide), F.embedding(rows, y), x[-1], x[:, 0]


def masks(x, y):
    keep = torch.ones(x.shape[0], x.shape[1], dtype=torch.bool).tril()
    return x.masked_fill(~keep, float("-inf")).softmax(-1), torch.tril(y), torch.triu(y, 1)


def products(x, y):
    return x @ y.t(), torch.einsum("ij,ij->i", x, y), F.linear(x, y)


PROGRAMS = (
    branches, powers, divisions, statistics, extremes, views, joins, norms, activations, losses,
    indexing, masks, products,
)  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_programs_and_their_gradients(program, dtype, dynamic):
    tolerance = {"rtol": 0.05, "atol": 0.1} if dtype == torch.bfloat16 else {}
    check(program, leaf(5, 6, dtype=dtype), leaf(5, 6, dtype=dtype), dynamic=dynamic, **tolerance)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
def test_integers_and_bools(dtype):
    def f(x, y):
        return (
            x + y,
            x * y,
            x == y,
            x < y,
            x / 3,
            x.sum(),
            x.sum(0, dtype=torch.float32),
            x.any(0),
            x.all(),
            x.max(0).values,
            x.to(torch.uint8).argmin(1),
            x.to(torch.float32).mean(),
            torch.where(x > 0, x, 1.5),
        )

    x = torch.randint(0, 5, (4, 3)).to(dtype)
    check(f, x, x.flip(0))


def test_integer_arithmetic():
    def f(x):
        return x // 3, x % 3, x**2, -x, x.abs(), x & 6, x << 2, ~x, x.cumsum(0), x // x.clamp(min=1)

    recorder = check(f, torch.arange(-6, 6).view(3, 4))
    assert "aten.floor_divide.default" in recorder.ops("inference") or (
        "aten.div.Tensor_mode" in recorder.ops("inference")
    )


@pytest.mark.filterwarnings("ignore:var")
def test_zero_dimensions_and_empty_tensors():
    check(lambda x, y: (x + y, x.sum(), x.mean(), x.amax(), x.max(), x.argmax()), leaf(), leaf(3))
    check(lambda x: (x.sum(0), x.sum(), x * 2, x.prod(1), x.var(1)), leaf(0, 3))


def test_layouts_are_preserved():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    recorder = check(lambda x: (x * 2, x.clone(), x.permute(2, 0, 3, 1), x.contiguous() + 1), x)
    assert recorder.captured[0].graph.inputs[0].strides == x.stride()


PERMUTATIONS = {
    "rows": lambda x: (x * 2).as_strided((6, 4), (4, 1)) + 1,
    "columns": lambda x: (x * 2).as_strided((4, 6), (1, 4)) + 1,
    "of a transpose": lambda x: (x.transpose(0, 2) * 2).as_strided((24,), (1,)) + 1,
    "of a part": lambda x: x[1:].as_strided((12,), (1,)) + 1,
}
NOT_PERMUTATIONS = {
    "gaps": lambda x: (x * 2).as_strided((3, 2), (4, 2)) + 1,
    "repeated": lambda x: (x * 2).as_strided((3, 3), (1, 1)) + 1,
    "with an offset": lambda x: (x * 2).as_strided((3, 4), (4, 1), 12) + 1,
    "equal but for the offset": lambda x: (
        x[1:].as_strided((12,), (1,), 12) + x[:1].as_strided((12,), (1,), 12)
    ),
}


@pytest.mark.parametrize("name", [*PERMUTATIONS, *NOT_PERMUTATIONS])
def test_as_strided(name):
    """A permutation of all elements is lowered; others are library calls."""
    program, x = (PERMUTATIONS | NOT_PERMUTATIONS)[name], torch.randn(2, 3, 4)
    assert_as_eager(program, x)
    calls = tofuse.explain(program)(x).library_calls
    assert [c.name for c in calls] == ([] if name in PERMUTATIONS else ["aten.as_strided.default"])


EMPTY_VIEWS = {
    "slice": lambda v: v[3:3],
    "columns": lambda v: v[:, 2:2],
    "split": lambda v: v.split([4, 0, 2])[1],
    "chunk": lambda v: v.tensor_split((5, 5))[1],
    "transposed": lambda v: v[2:2].t(),
    "selected": lambda v: v[1:1].select(1, 2),
    "expanded": lambda v: v[5:5].expand(0, 4),
    "squeezed": lambda v: v[1:1].squeeze(),
}


@pytest.mark.parametrize("view", EMPTY_VIEWS.values(), ids=EMPTY_VIEWS)
def test_as_strided_beside_an_empty_tensor(view):
    """An empty view begins somewhere in its base: `as_strided` reads from there (seed 506757)."""

    def program(x):
        base = x * 2
        return base, view(base).as_strided((2, 2), (1, 1))

    x = torch.randn(6, 4)
    expected, actual = program(x), tofuse.compile(program)(x)
    assert torch.equal(actual[1], expected[1])
    assert actual[1].storage_offset() == expected[1].storage_offset()


def test_as_strided_scatter():
    def f(x, y):
        return torch.as_strided_scatter(x * 2, y + 1, (4, 6), (1, 4)) * 3

    x, y = torch.randn(2, 3, 4), torch.randn(4, 6)
    assert_as_eager(f, x, y)
    assert not tofuse.explain(f)(x, y).library_calls


def test_views_and_inputs_may_be_outputs():
    run, recorder = compiled(lambda x: (x, x.view(2, 6), x.clone(), x.detach() + 0.0))
    x = torch.randn(3, 4)
    same, view, copy, _ = run(x)
    assert same is x
    assert view.data_ptr() == x.data_ptr()
    assert copy.data_ptr() != x.data_ptr()
    assert recorder.ops("inference") == ["reshape", "convert", "add"] or (
        "convert" in recorder.ops("inference")
    )


def test_ops_of_softmax():
    _, recorder = run_once(lambda x: F.softmax(x, -1), torch.randn(4, 8))
    kinds = [k for k in recorder.ops("inference") if k not in ("reshape", "broadcast")]
    assert kinds == ["amax", "sub", "exp", "sum", "div"]


def test_constants_become_scalars():
    _, recorder = run_once(lambda x: torch.where(x > 0, x, torch.zeros_like(x)) + 1, torch.ones(3))
    where = next(op for op in recorder.captured[0].graph.ops if op.kind == "where")
    assert where.operands[2].value == 0.0


def test_half_precision_accumulates_in_float32():
    _, recorder = run_once(lambda x: x.sum(-1), torch.ones(4, 8, dtype=torch.bfloat16))
    assert [str(op.result.dtype.value) for op in recorder.captured[0].graph.ops] == ["f32", "bf16"]


def test_symbols_have_sources():
    _, recorder = run_once(
        lambda x: x.view(2, x.shape[0] // 2, -1).sum(1) / x.shape[0], torch.ones(6, 4), dynamic=True
    )
    captured = recorder.captured[0]
    assert any(isinstance(s, SizeExpression) for s in captured.symbols.values())
    assert any(isinstance(a, SymDim) for a in captured.arguments)
    assert all(isinstance(r, Value) for r in captured.results)


def test_other_dtypes_are_opaque():
    def f(x):
        return torch.view_as_real(torch.view_as_complex(x).sqrt()) + 1

    recorder = check(f, torch.randn(3, 2))
    assert "aten.sqrt.default" in recorder.ops("inference")
    assert recorder.ops("inference")[-1] == "add"


def test_ops_have_the_users_source_line():
    def f(x):
        y = x * 2
        return torch.sin(y)  # the line of sin

    _, recorder = run_once(f, torch.ones(3))
    loc = recorder.captured[0].graph.ops[-1].loc
    assert loc.file == __file__
    assert "torch.sin(y)" in loc.code


def test_mutations_reach_the_caller():
    def f(x, buffer):
        buffer.add_(x)
        buffer[0] = 7.0
        return buffer * 2

    results = []
    for run in (f, compiled(f)[0]):
        buffer = torch.ones(3, 2)
        results.append((run(torch.full((3, 2), 2.0), buffer), buffer))
    torch.testing.assert_close(results[0], results[1])


def test_foreach():
    def f(a, b):
        scaled = torch._foreach_mul([a, b], 0.5)
        return tuple(torch._foreach_addcdiv(scaled, [a, b], [b.exp(), a.exp()], 0.1))

    recorder = check(f, leaf(3), leaf(3))
    assert not any("foreach" in k for k in recorder.ops("forward"))


def test_foreach_with_numbers():
    def f(a, b):
        low = torch._foreach_maximum([a, b], 0.5)
        return tuple(torch._foreach_minimum(low, [1.0, 0.75]))

    recorder = check(f, torch.randn(3), torch.randn(4))
    assert set(recorder.ops("inference")) <= {"maximum", "minimum", "clamp"}


def test_strides_with_gaps_are_a_library_call():
    def f(x):
        return x.new_empty_strided((3, 2), (7, 3)), torch.empty_strided((2, 3), (1, 2))

    run, _ = compiled(f)
    assert [t.stride() for t in run(torch.ones(1))] == [(7, 3), (1, 2)]


def test_batch_norm_trains():
    results = []
    for wrap in (lambda m: m, lambda m: compiled(m)[0]):
        torch.manual_seed(0)
        module = torch.nn.BatchNorm2d(3)
        out = wrap(module)(leaf(2, 3, 4, 4))
        out.square().sum().backward()
        results.append((out, module.weight.grad, module.running_var, module.running_mean))
    torch.testing.assert_close(results[0], results[1])


def test_capture_errors_name_the_source_line():
    def f(x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    with pytest.raises(BackendCompilerFailed, match=r"inside the graph is not supported.*cond\("):
        run_once(f, torch.ones(3))


def run_once(f, *args, dynamic=False):
    run, recorder = compiled(f, dynamic=dynamic)
    return run(*args), recorder
