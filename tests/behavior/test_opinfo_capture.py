"""The operators of torch's OpInfo database, captured and evaluated.

Of every third operator, one sample after the other gets operands that lie in memory in another way;
with `pytest --full`, samples of each operator in every way. Results have eager's numbers and
strides, those of PyTorch's operators inside, too, and share memory as in eager.
"""

import warnings

import pytest
import torch
from torch._functorch.aot_autograd import aot_function
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from tests.support.capture_only import evaluate, strides
from tofuse.capture.decomp.decompose import decompositions
from tofuse.capture.joint.merge_seeds import merge_seeds
from tofuse.capture.lower.convert import convert
from tofuse.errors import CaptureError
from tofuse.ops.check_graph import check_graph
from tofuse.torch_internals.autograd_compiler import mark_boxed

DTYPES = (torch.float32, torch.int64, torch.complex64, torch.bool)
NOT_TRACED = (DataDependentOutputException, DynamicOutputShapeException)
UNDEFINED = ("rand", "empty", "normal", "jiterator")  # random or uninitialized results

# Differences of this capture, which runs neither passes before autograd nor compiled code.
KNOWN_DIFFERENCES = {
    "dropout": "a pass before autograd returns the argument if nothing is dropped",
    "interpolate": "a pass before autograd calls the operator",
    "upsample": "a pass before autograd calls the operator",
    "unravel_index": "the evaluator copies slices; compiled code returns views of one tensor",
    "unsafe_": "the evaluator copies slices; compiled code returns views of the argument",
    "sampled_addmm": "AOTAutograd does not trace sparse tensors",
    "sparse.mm": "AOTAutograd does not trace sparse tensors",
}


def transposed(t, k):
    return t.transpose(0, -1).contiguous().transpose(0, -1) if t.dim() else t


def rotated(t, k):
    order = [*range(1, t.dim()), *range(min(t.dim(), 1))]
    return t.permute(order).contiguous().permute([order.index(d) for d in range(t.dim())])


def with_gaps(t, k):
    wide = torch.zeros([n + 1 for n in t.shape], dtype=t.dtype)
    part = wide[tuple(slice(n) for n in t.shape)]
    return part.copy_(t)


def channels_last(t, k):
    return t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else rotated(t, k)


EVERY = 3
SAMPLES = 6
LAYOUTS = (
    lambda t, k: t.clone(),
    rotated,
    with_gaps,
    lambda t, k: (transposed if k == 0 else rotated)(t, k),  # the operands differ
    channels_last,
)


def samples_of(op):
    """Return at most SAMPLES samples, at equal distances; the first is the first."""
    dtype = next((d for d in DTYPES if d in op.supported_dtypes("cpu")), None)
    if dtype is None or any(word in op.name for word in ("jiterator",)):
        return []
    samples = list(op.sample_inputs("cpu", dtype))
    count = min(len(samples), SAMPLES)
    return [samples[k * len(samples) // count] for k in range(count)]


def outcome(op, sample, table, layout):
    """Return "agree", "differ: ..." or why the program could not be compared."""
    flat, spec = tree_flatten(((sample.input, *sample.args), sample.kwargs))
    tensors = [x for x in flat if isinstance(x, torch.Tensor)]
    if all(t.layout is torch.strided for t in tensors):
        tensors = [layout(t, k) for k, t in enumerate(tensors)]
    graphs = []

    def program(*program_tensors):
        remaining = iter(program_tensors)
        leaves = [next(remaining) if isinstance(x, torch.Tensor) else x for x in flat]
        args, kwargs = tree_unflatten(leaves, spec)
        return tuple(tree_leaves(op.op(*args, **kwargs)))

    def compile_graph(gm, example_inputs):
        captured = convert(merge_seeds(gm), "sweep")
        check_graph(captured.graph)
        graphs.append(captured.graph)
        return mark_boxed(lambda args: evaluate(captured, args, check_strides=True))

    torch.manual_seed(0)
    try:
        expected = program(*tensors)
    except RuntimeError:  # it needs another layout
        return "no sample"
    try:
        run = aot_function(program, compile_graph, decompositions=table)
        torch.manual_seed(0)
        got = run(*tensors)
    except (*NOT_TRACED, CaptureError) as error:
        return f"not captured: {type(error).__name__}"
    if (mine := sharing(got, tensors)) != (theirs := sharing(expected, tensors)):
        return f"differ: results share memory {mine} for {theirs}"
    return compare(op.name, graphs, got, expected)


def sharing(results, arguments):
    """Return, for each result, the first of the arguments and results that has its storage."""
    tensors = [*arguments, *(t for t in results if isinstance(t, torch.Tensor))]
    keys = [
        t.untyped_storage()._cdata if t.layout is torch.strided else k
        for k, t in enumerate(tensors)
    ]
    return [keys.index(key) for key in keys[len(arguments) :]]


def compare(name, graphs, got, expected):
    draws = any(dict(o.attrs).get("effect") for g in graphs for o in g.ops)
    try:
        for a, b in zip(got, expected, strict=True):
            if isinstance(b, torch.Tensor) and b.layout is torch.strided:
                assert a.shape == b.shape and a.dtype == b.dtype
                assert b.numel() == 0 or strides(a) == strides(b)
        if not draws and not any(word in name for word in UNDEFINED):
            torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5, equal_nan=True)
    except AssertionError as error:
        return f"differ: {error}"
    return "agree"


@pytest.mark.filterwarnings("ignore")
def test_every_operator_is_captured(monkeypatch, request):
    for module in (common_utils, core):  # slow: it walks pytest's stack twice per sample
        monkeypatch.setattr(module, "extract_test_fn", lambda: None)
    table, outcomes = decompositions(), {}
    full = request.config.getoption("--full")
    chosen = op_db if full else op_db[::EVERY]
    cases = []
    for k, op in enumerate(chosen):
        samples = samples_of(op)
        if full:
            cases += [(op, s, layout) for s in samples for layout in LAYOUTS]
        elif samples:
            cases.append((op, samples[k % len(samples)], LAYOUTS[k % len(LAYOUTS)]))
    for k, (op, sample, layout) in enumerate(cases):
        key = op.name, op.variant_test_name, LAYOUTS.index(layout), k
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                outcomes[key] = outcome(op, sample, table, layout)
            except AssertionError as error:  # fake tensors mixed with real ones, in torch
                assert "convert all Tensors to FakeTensors" in str(error), (op.name, error)
    known = tuple(KNOWN_DIFFERENCES)
    different = {
        k: v
        for k, v in outcomes.items()
        if v.startswith("differ") and not any(word in k[0] for word in known)
    }
    assert not different
    assert sum(v == "agree" for v in outcomes.values()) >= 0.912 * len(outcomes)
