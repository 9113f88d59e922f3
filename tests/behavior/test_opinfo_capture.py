"""The operators of torch's OpInfo database: the first sample of each, captured and evaluated."""

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


def outcome(op, table):
    """Return "agree", "differ: ..." or why the program could not be compared."""
    dtype = next((d for d in DTYPES if d in op.supported_dtypes("cpu")), None)
    if dtype is None or any(word in op.name for word in ("jiterator",)):
        return "no sample"
    sample = next(iter(op.sample_inputs("cpu", dtype)), None)
    if sample is None:
        return "no sample"
    flat, spec = tree_flatten(((sample.input, *sample.args), sample.kwargs))
    tensors = [x for x in flat if isinstance(x, torch.Tensor)]
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
        return mark_boxed(lambda args: evaluate(captured, args))

    torch.manual_seed(0)
    expected = program(*(t.clone() for t in tensors))
    try:
        run = aot_function(program, compile_graph, decompositions=table)
        torch.manual_seed(0)
        got = run(*(t.clone() for t in tensors))
    except (*NOT_TRACED, CaptureError) as error:
        return f"not captured: {type(error).__name__}"
    return compare(op.name, graphs, got, expected)


def compare(name, graphs, got, expected):
    draws = any(dict(o.attrs).get("effect") for g in graphs for o in g.ops)
    try:
        for a, b in zip(got, expected, strict=True):
            if isinstance(b, torch.Tensor) and b.layout is torch.strided:
                assert a.shape == b.shape and a.dtype == b.dtype
                assert strides(a) == strides(b)
        if not draws and not any(word in name for word in UNDEFINED):
            torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5, equal_nan=True)
    except AssertionError as error:
        return f"differ: {error}"
    return "agree"


@pytest.mark.filterwarnings("ignore")
def test_every_operator_is_captured(monkeypatch):
    for module in (common_utils, core):  # slow: it walks pytest's stack twice per sample
        monkeypatch.setattr(module, "extract_test_fn", lambda: None)
    table, outcomes = decompositions(), {}
    for op in op_db:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                outcomes[op.name, op.variant_test_name] = outcome(op, table)
            except AssertionError as error:  # fake tensors mixed with real ones, in torch itself
                assert "convert all Tensors to FakeTensors" in str(error), (op.name, error)
    different = {k: v for k, v in outcomes.items() if v.startswith("differ")}
    assert not different
    assert sum(v == "agree" for v in outcomes.values()) >= 650
