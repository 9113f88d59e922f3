"""The Dynamo backend: AOTAutograd with our decompositions and our partition."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.eval_frame import innermost_fn
from torch._dynamo.exc import TorchDynamoException
from torch.fx import GraphModule

from tofuse.capture.claims import Claims, nobody
from tofuse.capture.collector import collector_paused
from tofuse.capture.convert import NOTES
from tofuse.capture.counted import counted_first
from tofuse.capture.decompose import decompositions
from tofuse.capture.gradients import accept_any_layout
from tofuse.capture.masks import write_by_mask
from tofuse.capture.partition import partition
from tofuse.capture.positions import gather_positions
from tofuse.capture.programs import (
    guard_overlaps,
    leave_forward_derivatives,
    pass_through_dropout,
    refusal,
)
from tofuse.capture.relayout import channels_last
from tofuse.capture.resampling import resize_whole
from tofuse.capture.resize import hide_resizing
from tofuse.capture.rng import merge_seeds

Compiled = Callable[[list[object]], object]
CompileGraph = Callable[[GraphModule, str], Compiled]
Backend = Callable[[GraphModule, Sequence[object]], Callable[..., object]]

Program = Callable[[bool, str], Backend]  # may it write into arguments; a note for the report


class Boxed(Protocol):
    """A callable that takes its arguments in one list, which it may empty."""

    _boxed_call: bool

    def __call__(self, args: list[object], /) -> object: ...


def aot_backend(
    compile_graph: CompileGraph,
    *,
    own_random: bool = True,
    memory_budget: float | None = None,
    claims: Claims = nobody,
    refused: Callable[[str], None] = lambda reason: None,
    failed: Callable[[Exception], None] | None = None,
) -> Backend:
    """A backend for `torch.compile` that hands every ATen graph to `compile_graph`.

    `compile_graph(gm, phase)` with phase "forward", "backward" or "inference" returns a callable
    that takes one list of flat arguments, which it may empty, and returns the flat outputs.
    Backward graphs are compiled when first needed, or at once where sizes are symbolic.

    PyTorch runs the program itself where it may not be compiled, and `refused` is told why; or
    where AOTAutograd fails and `failed`, which is told of the error, does not raise.
    """

    def program(writes: bool, note: str) -> Backend:
        found: Backend = aot_autograd(
            fw_compiler=_compiler(compile_graph, "forward", note),
            bw_compiler=_compiler(compile_graph, "backward"),
            inference_compiler=_compiler(compile_graph, "inference", note),
            partition_fn=_refuse_training
            if writes
            else functools.partial(partition_joint, budget=memory_budget),
            decompositions=decompositions(own_random=own_random, claims=claims),
            keep_inference_input_mutations=writes,
        )
        return found

    @collector_paused()
    def backend(gm: GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        reason = refusal(gm, example_inputs)
        if reason is not None:
            refused(reason)
            return gm.forward
        pass_through_dropout(gm)
        hide_resizing(gm)
        gather_positions(gm)
        write_by_mask(gm)
        resize_whole(gm)
        try:
            compiled = guard_overlaps(gm, _compile(program, *channels_last(gm), example_inputs))
            return leave_forward_derivatives(gm, compiled)
        except TorchDynamoException:
            raise  # to Dynamo
        except Exception as error:
            if failed is None:
                raise
            failed(error)
            return gm.forward

    return counted_first(backend)


def _compiler(
    compile_graph: CompileGraph, phase: str, note: str = ""
) -> Callable[[GraphModule, Sequence[object]], Boxed]:
    """What AOTAutograd calls for the graph of a phase; the note is for the report."""

    @collector_paused()
    def compile_phase(gm: GraphModule, example_inputs: Sequence[object]) -> Boxed:
        if phase == "inference":
            gm = merge_seeds(gm)
        if note:
            gm.meta[NOTES] = (note,)
        if phase == "forward":
            accept_any_layout()
        return boxed(compile_graph(gm, phase))

    return compile_phase


class _Trains(Exception):
    """Autograd sees what a program does."""


def _compile(
    program: Program, gm: GraphModule, note: str, inputs: Sequence[object]
) -> Callable[..., object]:
    """Writes into arguments are part of the program, but where autograd sees its results.

    Dynamo calls what comes back with itself switched off; a second switch would only cost.
    """
    if not _trains(gm):
        try:
            return innermost_fn(program(True, note)(gm, inputs))
        except _Trains:
            pass
    return innermost_fn(program(False, note)(gm, inputs))


def _refuse_training(joint: GraphModule, inputs: Sequence[object], **options: object) -> NoReturn:
    """In the place of a partition function, where no program is expected to need one."""
    raise _Trains


def _trains(gm: GraphModule) -> bool:
    """Whether a result of a program of Dynamo's requires grad."""
    outputs = next(n for n in gm.graph.nodes if n.op == "output").all_input_nodes
    values = [n.meta.get("example_value") for n in outputs]
    return any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)


def boxed(run: Compiled) -> Boxed:
    """Tell AOTAutograd that this callable takes one list."""

    def call(args: list[object], /) -> object:
        return run(args)

    call._boxed_call = True  # type: ignore[attr-defined]  # functorch's convention
    return call  # type: ignore[return-value]  # now it has the attribute


def partition_joint(
    joint: torch.fx.GraphModule,
    joint_inputs: Sequence[object],
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: list[int] | None = None,
    budget: float | None = None,
) -> tuple[GraphModule, GraphModule]:
    """The forward and the backward of a joint graph, on one random seed."""
    return partition(
        merge_seeds(joint),
        joint_inputs,
        num_fwd_outputs=num_fwd_outputs,
        static_lifetime_input_indices=static_lifetime_input_indices,
        budget=budget,
    )
