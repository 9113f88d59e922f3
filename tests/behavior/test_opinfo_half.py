"""precision="eager" in half precision: the bits of eager's values and gradients.

The samples of torch's OpInfo database, and of its elementwise functions every value of the dtype.
A few by default, all with `pytest --full`.
"""

from fnmatch import fnmatch

import pytest
import torch
from torch.testing._internal.opinfo.core import UnaryUfuncInfo

import tofuse
from suites.operators.calls import Call, calls_of
from suites.operators.program import compile_with_torch, run_compiled, run_eager
from suites.opinfo import operators

pytestmark = [pytest.mark.usefixtures("fresh_dynamo"), pytest.mark.filterwarnings("ignore")]

DTYPES = (torch.bfloat16, torch.float16)
SAMPLES, SAMPLES_OF_FULL = 4, 8  # of each operator
RANDOM = (
    *("bernoulli", "cauchy", "dropout", "empty", "exponential", "geometric", "multinomial"),
    *("normal", "rand", "rrelu", "uniform"),
)
PRODUCT = "eager rounds the product in elements that fill no vector"
# Samples that may differ, as patterns of the operator's name and the call.
KNOWN = {
    **{f"{name} *alpha=*": PRODUCT for name in ("add", "sub", "rsub")},
    "gradient *": PRODUCT,
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
# Functions of one number that the database does not mark as such.
UNARY = tuple(f"nn.functional.{name}" for name in ("gelu", "hardswish", "leaky_relu"))
BY_DEFAULT = (
    *("exp", "lerp", "logit", "minimum", "sigmoid", "special.entr", "tanh", "xlogy"),
    *(f"nn.functional.{name}" for name in ("gelu", "glu", "huber_loss", "mse_loss")),
    *("softmax", "nn.functional.layer_norm", "sum", "var", "nn.functional.avg_pool2d"),
)
PER_PROGRAM = 32


def chosen_operators(dtype, request):
    """Return the names and operators of a dtype that this run checks."""
    full = request.config.getoption("--full")
    for name, op in operators().items():
        is_random = any(word in name for word in RANDOM)
        if not is_random and (full or name in BY_DEFAULT) and dtype in op.supported_dtypes("cpu"):
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
    tensors = [t.detach() for t in found if isinstance(t, torch.Tensor)]
    return [t for t in tensors if t.dtype in DTYPES and t.layout is torch.strided]


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
        for name, op in chosen_operators(dtype, request)
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
        for name, op in chosen_operators(dtype, request)
        if isinstance(op, UnaryUfuncInfo) or name in UNARY
        for call in runnable([Call(op.op, (every,))])
    ]
    assert named
    assert not check(named, known=KNOWN_VALUES)
