"""Capture of programs, run by the reference evaluator instead of kernels."""

from unittest.mock import patch

import torch

from tofuse.capture.lower.convert import convert
from tofuse.config import make_config
from tofuse.driver import compile_program
from tofuse.driver.compiled_graph import CompiledGraph
from tofuse.driver.context import make_context
from tofuse.driver.function_record import FunctionRecord
from tofuse.ir.dims import evaluate as size_of
from tofuse.ir.graph import Value
from tofuse.ops.check_graph import check_graph
from tofuse.ops.reference import bind_symbols, run_graph


class Recorder(FunctionRecord):
    """A `torch.compile` backend that records captured graphs and evaluates them."""

    def __init__(self, **options):
        self.captured = []
        self.phases = []
        super().__init__(
            make_context(make_config({"strict": True, "specialize": False, **options}))
        )

    def backend(self, gm, inputs):
        with patch.object(compile_program, "compile_graph", self.compile_graph):
            return compile_program.compile_program(self, gm, inputs)

    def compile_graph(self, graph, context, fuel, notes=(), args=()):
        captured = convert(graph.gm, graph.phase, memory=graph.memory)
        check_graph(captured.graph)
        self.captured.append(captured)
        self.phases.append(graph.phase)
        return CompiledGraph(lambda args: evaluate(captured, args))

    def ops(self, phase):
        """Return the op kinds of all graphs of one phase; for an opaque op, its target."""
        return [
            str(op.attr("target")) if op.kind == "opaque" else op.kind
            for captured, p in zip(self.captured, self.phases, strict=True)
            for op in captured.graph.ops
            if p == phase
        ]


def evaluate(captured, args, check_strides=False):
    """Return the flat outputs of a captured graph for flat arguments.

    With `check_strides`, PyTorch's operators must return the strides that the graph has.
    """
    sizes = bind_symbols(captured.symbols, args)
    pairs = zip(captured.arguments, args, strict=True)
    inputs = {v: t for v, t in pairs if isinstance(v, Value)}
    inputs |= dict(captured.constants)
    values = run_graph(captured.graph, inputs, sizes)
    if check_strides:
        assert not mispredicted(captured.graph, values, sizes)
    new = [values[v].clone() for _, v in captured.writes]
    for (argument, _), value in zip(captured.writes, new, strict=True):
        inputs[argument].copy_(value)
    return [result_of(r, values, sizes) for r in captured.results]


def mispredicted(graph, values, sizes):
    """Return the results of PyTorch's operators with other strides than the graph has."""
    wrong = []
    for op in graph.ops:
        for v in op.results if op.kind == "opaque" else ():
            t = values[v]
            if v.strides is not None and t.layout is torch.strided and t.numel() > 1:
                predicted = [size_of(s, sizes) for s in v.layout]
                if [s for s, n in zip(predicted, t.shape, strict=True) if n > 1] != strides(t):
                    wrong.append(f"{op.attr('target')}: {predicted} for {t.stride()}")
    return wrong


def result_of(result, values, sizes):
    if isinstance(result, Value):
        return values[result]
    return None if result is None else size_of(result, sizes)


def compiled(f, *, dynamic=False, **options):
    """Return `f` compiled with capture only, and the recorder of its graphs."""
    torch._dynamo.reset()
    recorder = Recorder(**options)
    return torch.compile(f, backend=recorder.backend, dynamic=dynamic, fullgraph=True), recorder


def gradients(f, args):
    """Return the results, and the gradients of copies of the arguments that require grad."""
    copies = [fresh_copy(a) for a in args]
    results = f(*copies)
    flat = [results] if isinstance(results, torch.Tensor) else list(results)
    torch.manual_seed(1)
    differentiable = [r for r in flat if r.requires_grad]
    if differentiable:
        torch.autograd.backward(differentiable, [torch.randn_like(r) for r in differentiable])
    grads = [a.grad for a in copies if isinstance(a, torch.Tensor) and a.requires_grad]
    return [r.detach() for r in flat], grads


def fresh_copy(x):
    if not isinstance(x, torch.Tensor):
        return x
    return x.detach().clone().requires_grad_(x.requires_grad)


def check(f, *args, dynamic=False, rtol=None, atol=None):
    """Assert that `f`, captured and evaluated, and its gradients agree with eager."""
    run, recorder = compiled(f, dynamic=dynamic)
    got, expected = gradients(run, args), gradients(f, args)
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol, equal_nan=True)
    for result, eager in zip(got[0], expected[0], strict=True):
        assert strides(result) == strides(eager)
    return recorder


def strides(tensor):
    """Return the strides of dimensions longer than 1; others have no effect."""
    return [s for s, extent in zip(tensor.stride(), tensor.shape, strict=True) if extent > 1]
