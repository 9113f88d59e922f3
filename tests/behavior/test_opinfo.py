"""The operators of torch's OpInfo database, compiled: eager's values, gradients and strides.

Every seventh operator, each in another dtype; all of them with `pytest --full`.
"""

import itertools
import warnings

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

import tofuse

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
SAMPLES = 2
EVERY = 7

RANDOM = (
    "bernoulli cauchy dropout empty exponential fractional geometric jiterator log_normal "
    "multinomial normal pca_lowrank rand rrelu scaled_dot_product svd_lowrank uniform"
)

# Differences that have a cause in torch, each with its reason.
KNOWN_DIFFERENCES = {
    ("native_dropout_backward", "int64"): "eager promotes to float, its own meta kernel does not",
    ("native_dropout_backward", "bool"): "eager promotes to float, its own meta kernel does not",
    ("ormqr", "float32"): "strides of LAPACK's result differ from those torch's meta kernel gives",
    ("fft.ihfft", "bool"): "strides differ from those of torch 2.11's meta kernel",
    ("fft.rfft", "int64"): "strides differ from those of torch 2.11's meta kernel",
    ("atanh", "bfloat16"): "gradients next to the pole at 1: eager rounds on the way, we do not",
}


def eligible(op, dtype):
    if dtype not in op.supported_dtypes("cpu") or any(w in op.name for w in RANDOM.split()):
        return False
    return "dropout" not in op.variant_test_name


def choose_cases(full):
    """Return (operator, dtype) pairs: each operator in one dtype, or in all."""
    chosen = []
    for k, op in enumerate(op_db):
        dtypes = [d for d in DTYPES if eligible(op, d)]
        if full:
            chosen += [(op, d) for d in dtypes]
        elif k % EVERY == 0 and dtypes:
            chosen.append((op, dtypes[(k // EVERY) % len(dtypes)]))
    return chosen


def outcome(fn, sample):
    """Return the tensor results of a call, and the gradients of its tensor arguments."""

    def copy(x):
        if not isinstance(x, torch.Tensor):
            return x
        return x.detach().clone().requires_grad_(x.requires_grad)

    input_, args, kwargs = tree_map(copy, (sample.input, sample.args, sample.kwargs))
    torch.manual_seed(0)
    outputs = [t for t in tree_leaves(fn(input_, *args, **kwargs)) if isinstance(t, torch.Tensor)]
    leaves = [t for t in tree_leaves((input_, args, kwargs)) if isinstance(t, torch.Tensor)]
    leaves = [t for t in leaves if t.requires_grad]
    sources = [t for t in outputs if t.requires_grad and t.is_floating_point()]
    if not leaves or not sources:
        return outputs, ()
    ones = [torch.ones_like(t) for t in sources]
    return outputs, torch.autograd.grad(sources, leaves, ones, allow_unused=True)


def describe_difference(got, expected, dtype):
    """Return a description of the first difference; None if there is none."""
    tolerance = 2e-2 if dtype.itemsize == 2 else 1e-4
    if len(got[0]) != len(expected[0]):
        return "the number of results differs"
    for k, (a, b) in enumerate(zip((*got[0], *got[1]), (*expected[0], *expected[1]), strict=True)):
        if a is None or b is None:
            if a is not b:
                return "a gradient is missing"
            continue
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{a.dtype} {a.shape} for {b.dtype} {b.shape}"
        if a.layout is not torch.strided:
            continue
        if not torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True):
            return f"numbers differ by up to {(a - b).abs().max() if a.numel() else 0}"
        if k < len(got[0]) and a.numel() > 1 and strides(a) != strides(b):
            return f"strides {a.stride()} for {b.stride()}"
    return None


def strides(t):
    return [s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1]


def compare_samples(op, dtype):
    """Compare the first samples of one operator in eager and compiled; return the failures."""
    grad = op.supports_autograd and dtype.is_floating_point
    try:
        samples = list(
            itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grad), SAMPLES)
        )
    except RuntimeError:
        return []
    failures = []
    for sample in samples:

        def fn(x, *args, **kwargs):
            return op.op(x, *args, **kwargs)

        torch._dynamo.reset()
        try:
            expected = outcome(fn, sample)
        except (RuntimeError, NotImplementedError, TypeError):
            continue  # an error in eager, too
        try:
            failure = describe_difference(
                outcome(tofuse.compile(fn, strict=True), sample), expected, dtype
            )
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        if failure is not None:
            failures.append(failure)
    return failures


@pytest.mark.filterwarnings("ignore")
def test_operators_are_as_eager(request):
    chosen = choose_cases(request.config.getoption("--full"))
    assert len(chosen) > 80
    failures = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op, dtype in chosen:
            name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
            key = name, str(dtype).removeprefix("torch.")
            op_failures = compare_samples(op, dtype)
            if op_failures and key not in KNOWN_DIFFERENCES:
                failures[key] = op_failures
    assert not failures
