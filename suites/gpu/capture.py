"""Capture a program as if its tensors were on a GPU.

A build of PyTorch without CUDA cannot differentiate tensors of a GPU, not even fake ones. Dynamo
and autograd therefore see tensors of the CPU. The ATen graph that they make, which is not yet
decomposed, is traced again with tensors on the GPU, and decomposed there.
"""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_function
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule, Interpreter

from tofuse.capture.aot.aot_graphs import AOTGraphs, AtenGraph, NeedsAutograd, NeedsInference
from tofuse.capture.aot.boxed import BoxedFunction
from tofuse.capture.decomp.decompose import decompositions
from tofuse.capture.fx.eager_memory import EagerMemory
from tofuse.capture.lower.executor_claims import claim_nothing
from tofuse.driver.pipeline import PRE_AUTOGRAD_PASSES, run_traced_passes
from tofuse.runtime.autograd_program import make_program

GPU = torch.device("cuda", 0)
CUDA, META = 1, 14  # c10::DeviceType
GUARDS = "_ZN3c104impl26device_guard_impl_registryE"  # c10::impl::device_guard_impl_registry
DECOMPOSED_LATER = frozenset({"val", "tensor_meta"})  # of a placeholder, on another device

Program = Callable[..., object]
Example = tuple[Program | nn.Module, tuple[object, ...], dict[str, object]]


def capture_graphs(make: Callable[[], Example]) -> list[AtenGraph]:
    """Return the ATen graphs of a program, on a GPU: forward and backward, or inference.

    `make` returns the program and its arguments; it runs where all tensors are fake.
    """
    graphs: list[AtenGraph] = []

    def backend(gm: GraphModule, inputs: Sequence[object]) -> Program:
        graphs.extend(_trace(gm, inputs))
        return gm.forward

    torch.compiler.reset()
    with FakeTensorMode():
        program, args, kwargs = make()
        torch.compile(program, backend=backend, dynamic=False)(*args, **kwargs)
    return graphs


def _trace(gm: GraphModule, inputs: Sequence[object]) -> list[AtenGraph]:
    for pre_autograd_pass in PRE_AUTOGRAD_PASSES:
        gm, _ = pre_autograd_pass(gm)
    gm = _choose_as_on_a_gpu(gm)
    for inference_only in (True, False):
        graphs = AOTGraphs(_passes, _not_called, make_program, None, inference_only)
        backend = aot_autograd(
            fw_compiler=graphs.compiler("forward"),
            bw_compiler=graphs.compiler("backward"),
            inference_compiler=graphs.compiler("inference"),
            partition_fn=graphs.partition,
            decompositions={},
            keep_inference_input_mutations=inference_only,
        )
        try:
            backend(gm, inputs)
        except (NeedsAutograd, NeedsInference):
            continue
        found = [graphs.forward().graph]
        return found if graphs.partitioned is None else [*found, graphs.backward().graph]
    raise AssertionError("AOTAutograd made no graph")


def _choose_as_on_a_gpu(gm: GraphModule) -> GraphModule:
    """Replace functions for which PyTorch chooses other operators on a GPU than on a CPU."""
    for node in gm.graph.find_nodes(op="call_function", target=F.dropout):
        node.target = _dropout
    gm.recompile()
    return gm


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Drop elements with the operator that PyTorch takes on a GPU."""
    if not training or not 0 < p < 1 or inplace:
        return F.dropout(x, p, training, inplace)
    return torch.native_dropout(x, p, True)[0]


def _passes(gm: GraphModule, num_fwd_outputs: int | None) -> tuple[GraphModule, EagerMemory]:
    return run_traced_passes(_on_gpu(gm), num_fwd_outputs, claim_nothing)


def _on_gpu(gm: GraphModule) -> GraphModule:
    """Trace an ATen graph again with all tensors on a GPU, and decompose it."""
    _set_gpu_guard()
    old = gm.graph.find_nodes(op="placeholder")
    values = [node.meta["val"] for node in old]
    mode = next(v.fake_mode for v in values if isinstance(v, FakeTensor))
    found: list[GraphModule] = []

    def keep(
        gm: GraphModule, example_inputs: Sequence[Tensor | int | torch.SymInt | None]
    ) -> Program:
        found.append(gm)
        return make_boxed_func(gm.forward)

    table = decompositions(decompose_random=True, claims=claim_nothing, has_symbolic_floats=False)
    with tracing(TracingContext(mode)), torch.no_grad():
        run = _GpuInterpreter(gm).run
        moved = [_move(v, mode) for v in values]
        aot_function(lambda *args: run(*args), keep, decompositions=table)(*moved)
    (traced,) = found
    for node, before in zip(traced.graph.find_nodes(op="placeholder"), old, strict=True):
        node.target = before.target
        node.name = before.name
        node.meta |= {k: v for k, v in before.meta.items() if k not in DECOMPOSED_LATER}
    results = (len(pytree.tree_leaves(g.graph.output_node().args)) for g in (traced, gm))
    assert len(set(results)) == 1  # no argument is written in place
    traced.graph.output_node().meta |= gm.graph.output_node().meta
    traced.recompile()
    return traced


def _set_gpu_guard() -> None:
    """Let PyTorch run meta functions for tensors of a GPU in a build without CUDA.

    Its registry of device guards has no entry for CUDA there. Under a FakeTensorMode, PyTorch
    replaces a guard that has no devices, such as that of the device "meta", with one that does
    nothing; that is the state of a build with CUDA on a machine without a GPU.
    """
    if torch.backends.cuda.is_built():
        return
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * (META + 1)).in_dll(library, GUARDS)
    guards[CUDA] = guards[CUDA] or guards[META]


def _move(value: object, mode: FakeTensorMode) -> object:
    if not isinstance(value, Tensor):
        return value
    with mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=GPU)


class _GpuInterpreter(Interpreter):
    """Runs a graph with the GPU in place of the CPU."""

    def call_function(self, target, args, kwargs):  # type: ignore[no-untyped-def]
        moved = {k: GPU if isinstance(v, torch.device) else v for k, v in kwargs.items()}
        args = tuple(GPU if isinstance(a, torch.device) else a for a in args)
        return super().call_function(target, args, moved)


def _not_called(graph: AtenGraph, args: Sequence[object]) -> BoxedFunction:
    raise AssertionError("no graph is run")
