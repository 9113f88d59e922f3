"""Random definitions of up to 30 ops give the results of torch op by op."""

from dataclasses import dataclass, field

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.frontends.support import definition_from_text
from tofuse.nvfuser import DataType, FusionDefinition

DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool)
EXTENTS = (1, 2, 3, 5, 8)
NUMBERS = (0.5, -1.5, 2, 3)
FLOAT_UNARY = ("sin", "tanh", "sigmoid", "neg", "abs", "relu", "exp2", "floor", "silu")
BINARY = ("add", "mul", "sub", "maximum", "minimum", "lt", "ge")


@dataclass
class Builder:
    """A definition and the same program in eager torch, built together."""

    draw: st.DrawFn
    fd: FusionDefinition
    symbolic: bool
    inputs: list[torch.Tensor] = field(default_factory=list)
    values: list = field(default_factory=list)  # proxy and tensor

    def input(self, shape: tuple[int, ...]) -> None:
        dtype = self.draw(st.sampled_from(DTYPES))
        layout = self.draw(st.sampled_from(("dense", "transposed", "gaps")))
        x = torch.randn([2 * e for e in shape] if layout == "gaps" else shape[::-1])
        x = (
            x[tuple(slice(0, 2 * e, 2) for e in shape)]
            if layout == "gaps"
            else x.permute(tuple(range(len(shape)))[::-1])
        )
        x = x.contiguous() if layout == "dense" else x
        x = (x * 2).to(dtype) if dtype != torch.bool else x > 0
        self.inputs.append(x)
        self.values.append((self.fd.from_pytorch(x, static_sizes=not self.symbolic), x))

    def pick(self):
        return self.draw(st.sampled_from(self.values))

    def add_value(self, proxy, tensor) -> None:
        wide = tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
        assert proxy.dtype.torch == tensor.dtype
        if not wide.dtype.is_floating_point or bool((wide.abs() < 1e4).all()):
            self.values.append((proxy, tensor))

    def step(self) -> None:
        proxy, x = self.pick()
        kind = self.draw(st.sampled_from(STEP_NAMES))
        STEP_TABLE[kind](self, proxy, x)


def promote(x):
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def unary(b, h, x):
    name = b.draw(st.sampled_from(FLOAT_UNARY))
    if not x.dtype.is_floating_point:
        return
    function = getattr(torch.nn.functional if name == "silu" else torch, name)
    b.add_value(getattr(b.fd.ops, name)(h), function(promote(x)))


def binary(b, h, x):
    name = b.draw(st.sampled_from(BINARY))
    candidates = [v for v in b.values if v[1].shape == x.shape]
    other, y = b.draw(st.sampled_from(candidates))
    if name == "sub" and torch.bool in (x.dtype, y.dtype):
        return
    b.add_value(getattr(b.fd.ops, name)(h, other), getattr(torch, name)(promote(x), promote(y)))


def with_number(b, h, x):
    number = b.draw(st.sampled_from(NUMBERS))
    b.add_value(b.fd.ops.mul(h, number), promote(x) * number)


def reduced(b, h, x):
    if not x.dim():
        return
    dim, keep = b.draw(st.integers(0, x.dim() - 1)), b.draw(st.booleans())
    name = b.draw(st.sampled_from(("sum", "max", "min")))
    if x.dtype == torch.bool and name != "sum":
        return
    function = getattr(torch, {"sum": "sum", "max": "amax", "min": "amin"}[name])
    b.add_value(
        getattr(b.fd.ops, name)(h, [dim], keepdim=keep), function(promote(x), dim, keepdim=keep)
    )


def minus_sum(b, h, x):
    """Subtract the sum over one dimension, broadcast back by broadcast_in_dim."""
    if not x.dim() or not x.dtype.is_floating_point:
        return
    dim = b.draw(st.integers(0, x.dim() - 1))
    kept = [d for d in range(x.dim()) if d != dim]
    shape = [b.fd.ops.size(h, d) for d in range(x.dim())]
    spread = b.fd.ops.broadcast_in_dim(b.fd.ops.sum(h, [dim]), shape, kept)
    b.add_value(b.fd.ops.sub(h, spread), promote(x) - promote(x).sum(dim, keepdim=True))


def permuted(b, h, x):
    dims = b.draw(st.permutations(range(x.dim())))
    b.add_value(b.fd.ops.permute(h, list(dims)), x.permute(*dims) if dims else x)


def flattened(b, h, x):
    if x.dim() < 2:
        return
    b.add_value(b.fd.ops.reshape(h, [x.shape[0], -1]), x.reshape(x.shape[0], -1))


def sliced(b, h, x):
    if not x.dim():
        return
    starts = [b.draw(st.integers(0, e - 1)) for e in x.shape]
    ends = [b.draw(st.integers(s + 1, e)) for s, e in zip(starts, x.shape, strict=True)]
    slices = tuple(slice(s, e) for s, e in zip(starts, ends, strict=True))
    b.add_value(b.fd.ops.slice(h, starts, ends), x[slices])


def padded(b, h, x):
    if x.dim() and x.dtype.is_floating_point:
        b.add_value(b.fd.ops.pad(h, [1, 0]), torch.nn.functional.pad(x, [1, 0]))


def concatenated(b, h, x):
    if x.dim():
        b.add_value(b.fd.ops.cat([h, h], 0), torch.cat([x, x], 0))


def chosen(b, h, x):
    candidates = [v for v in b.values if v[1].shape == x.shape and v[1].dtype == torch.bool]
    if candidates and x.dtype.is_floating_point:
        mask, m = b.draw(st.sampled_from(candidates))
        b.add_value(b.fd.ops.where(mask, h, 1.0), torch.where(m, promote(x), 1.0))


def cast(b, h, x):
    target = b.draw(st.sampled_from((DataType.Float, DataType.BFloat16, DataType.Double)))
    b.add_value(b.fd.ops.cast(h, target), x.to(target.torch))


def cumulative_sum(b, h, x):
    if x.dim() and x.dtype != torch.bool:
        b.add_value(b.fd.ops.cumsum(h, 0), promote(x).cumsum(0))


def copied(b, h, x):
    op = b.draw(st.sampled_from((b.fd.ops.set, b.fd.ops.segment_set)))
    b.add_value(op(h), x)


STEPS = (
    unary, unary, unary, binary, binary, binary, with_number, reduced, minus_sum, permuted,
    flattened, sliced, padded, concatenated, chosen, cast, cumulative_sum, copied,
)  # fmt: skip
STEP_TABLE: dict = {f"{k}_{step.__name__}": step for k, step in enumerate(STEPS)}
STEP_NAMES = tuple(STEP_TABLE)


@st.composite
def definitions(draw):
    fd = FusionDefinition()
    builder = Builder(draw, fd, draw(st.booleans()))
    torch.manual_seed(draw(st.integers(0, 99)))
    shape = tuple(draw(st.lists(st.sampled_from(EXTENTS), max_size=3)))
    with fd:
        for _ in range(draw(st.integers(1, 3))):
            builder.input(shape)
        for _ in range(draw(st.integers(1, 30))):
            builder.step()
        fresh = builder.values[len(builder.inputs) :] or builder.values
        outputs = draw(st.lists(st.sampled_from(fresh), min_size=1, max_size=4))
        for proxy, _ in outputs:
            fd.add_output(proxy)
    return fd, builder.inputs, [tensor for _, tensor in outputs]


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(definitions())
def test_random_definitions(made):
    fd, inputs, expected = made
    outputs = fd.execute(inputs)
    for output, wanted in zip(outputs, expected, strict=True):
        tolerance = {torch.bfloat16: 2e-2, torch.float32: 2e-4, torch.float64: 1e-7}
        allowed = tolerance.get(wanted.dtype, 0.0)
        torch.testing.assert_close(output, wanted, rtol=allowed, atol=allowed, equal_nan=True)
    torch.testing.assert_close(definition_from_text(fd).execute(inputs), outputs, rtol=0, atol=0)
