"""precision="eager" in half precision: the bits of eager's values and gradients.

The elementwise operators of torch's OpInfo database: their samples, and every value of the dtype.
A few by default, all with `pytest --full`.
"""

from fnmatch import fnmatch

import pytest
import torch
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

import tofuse
from suites.operators.calls import Call, calls_of
from suites.operators.program import compile_with_torch, run_compiled, run_eager
from suites.opinfo import operators

pytestmark = [pytest.mark.usefixtures("fresh_dynamo"), pytest.mark.filterwarnings("ignore")]

DTYPES = (torch.bfloat16, torch.float16)
SAMPLES, SAMPLES_OF_FULL = 4, 24  # of each operator
TAIL = "eager rounds once more in elements that fill no vector: "
# Samples that may differ, as patterns of the operator's name and the call.
KNOWN = {
    **{f"{name} *": TAIL + "rsqrt" for name in ("rsqrt", "acos", "acosh", "asin", "asinh")},
    **{f"{name} *alpha=*": TAIL + "the product" for name in ("add", "sub", "rsub")},
    "nn.functional.rrelu *": "random",
}
# Functions of which a few of the 65536 values may differ, in results or gradients.
FEW = 40
OVERFLOW = "eager's exp overflows before the result does: to inf, nan or 0"
BOUNDARY = "float32 differs in the last bit, close to the middle of two half-precision neighbours"
KNOWN_VALUES = {
    **dict.fromkeys(("cosh", "sinh"), (OVERFLOW,)),
    **dict.fromkeys(("asin", "asinh", "sinc", "tan", "special.ndtr"), (BOUNDARY,)),
    **dict.fromkeys(("sigmoid", "nn.functional.silu"), (OVERFLOW, BOUNDARY)),
    "nn.functional.logsigmoid": (OVERFLOW, BOUNDARY),
}
# Elementwise operators that the database does not mark as such.
LOSSES = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "margin_ranking_loss",
    "mse_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
)
UNARY = tuple(f"nn.functional.{name}" for name in ("gelu", "hardswish", "leaky_relu"))
OTHERS = (
    *("addcdiv", "addcmul", "clamp", "lerp", "masked_fill", "where", "nn.functional.glu"),
    *(f"nn.functional.{name}" for name in LOSSES),
    *UNARY,
)
BY_DEFAULT = (
    *("exp", "lerp", "logit", "minimum", "sigmoid", "special.entr", "tanh", "xlogy"),
    *(f"nn.functional.{name}" for name in ("gelu", "glu", "huber_loss", "mse_loss")),
)
PER_PROGRAM = 32


def elementwise_operators(dtype, request):
    """Return the names and operators of a dtype that this run checks."""
    full = request.config.getoption("--full")
    for name, op in operators().items():
        is_elementwise = isinstance(op, UnaryUfuncInfo | BinaryUfuncInfo) or name in OTHERS
        if is_elementwise and (full or name in BY_DEFAULT) and dtype in op.supported_dtypes("cpu"):
            yield name, op


def compile_exactly(program):
    return tofuse.compile(program, precision="eager")


def runnable(calls):
    """Return the calls that eager runs, without the gradients that eager does not have."""
    candidates = [(c, c.without_gradient()) for c in calls]
    runs = ([c for c in pair if run_eager(c).error is None] for pair in candidates)
    return [found[0] for found in runs if found]


def half_tensors(outcome):
    """Return the results and gradients in half precision."""
    found = [*outcome.outputs, *outcome.gradients]
    return [t.detach() for t in found if isinstance(t, torch.Tensor) and t.dtype in DTYPES]


def different(a, b):
    """Return where the bits of two tensors differ; nan equals nan."""
    return ~((a == b) & (a.signbit() == b.signbit()) | (a.isnan() & b.isnan()))


def count_differences(got, expected):
    """Return the number of elements with other bits, and the first two values."""
    count, first = 0, None
    for a, b in zip(half_tensors(got), half_tensors(expected), strict=True):
        differ = different(a, b)
        if differ.any() and first is None:
            first = a[differ][0].item(), b[differ][0].item()
        count += differ.sum().item()
    return count, first


def differ_as_known(reasons, got, expected):
    """Return whether all elements that differ from eager do so in a way that a reason names."""
    for a, b in zip(half_tensors(got), half_tensors(expected), strict=True):
        differ = different(a, b)
        ours, eagers = a[differ], b[differ]
        shown = {
            OVERFLOW: ~eagers.isfinite() | (eagers == 0),
            BOUNDARY: (ordinals(ours) - ordinals(eagers)).abs() == 1,
        }
        if not torch.stack([shown[reason] for reason in reasons]).any(0).all():
            return False
    return True


def ordinals(t):
    """Return the rank of each number in half precision: neighbours differ by 1."""
    bits = t.view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def check(named_calls, known):
    """Return how calls differ from eager and from torch's capture, which rewrites some."""
    failures = []
    for k in range(0, len(named_calls), PER_PROGRAM):
        names, calls = zip(*named_calls[k : k + PER_PROGRAM], strict=True)
        for name, call, got in zip(names, calls, run_compiled(calls, compile_exactly), strict=True):
            expected = run_eager(call)
            count, first = count_differences(got, expected)
            reasons = known.get(name)
            few = reasons and count <= FEW and differ_as_known(reasons, got, expected)
            if count and not few:
                (captured,) = run_compiled([call], compile_with_torch(dynamic=False))
                if count_differences(got, captured)[0]:
                    failures.append(f"{name}: {count} elements of {call}, first {first}")
    return failures


@pytest.mark.parametrize("dtype", DTYPES)
def test_samples_have_the_bits_of_eager(dtype, request):
    samples = SAMPLES_OF_FULL if request.config.getoption("--full") else SAMPLES
    named = [
        (name, call)
        for name, op in elementwise_operators(dtype, request)
        for call in runnable(calls_of(op, dtype, "contiguous")[:samples])
        if not any(fnmatch(f"{name} {call}", known) for known in KNOWN)
    ]
    assert len(named) > len(BY_DEFAULT)
    assert not check(named, known={})


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_value_gives_the_bits_of_eager(dtype, request):
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).requires_grad_()
    named = [
        (name, call)
        for name, op in elementwise_operators(dtype, request)
        if isinstance(op, UnaryUfuncInfo) or name in UNARY
        for call in runnable([Call(op.op, (every,))])
    ]
    assert named
    assert not check(named, known=KNOWN_VALUES)
