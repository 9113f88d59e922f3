"""The Dynamo backend: AOTAutograd with our decompositions and our partition."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.eval_frame import innermost_fn
from torch._dynamo.exc import TorchDynamoException
from torch._guards import detect_fake_mode
from torch.fx import GraphModule

from tofuse.capture.aot.double_backward import Eager
from tofuse.capture.aot.gc_pause import collector_paused
from tofuse.capture.aot.handoff import (
    BoxedFunction,
    CompileGraph,
    Form,
    Inference,
    Parts,
)
from tofuse.capture.decomp.decompose import decompositions
from tofuse.capture.dynamo.eager_derivatives import Further, leave_derivatives
from tofuse.capture.dynamo.legality import only_views, refusal
from tofuse.capture.dynamo.overlap_guard import guard_overlaps
from tofuse.capture.dynamo.scalar_inputs import counted_first
from tofuse.capture.dynamo.specialize import by_size
from tofuse.capture.fx.node_tensors import held_tensors
from tofuse.capture.fx.varying_numbers import count_number_guards, varying_numbers
from tofuse.capture.lower.executor_claims import Claims, nobody
from tofuse.capture.pre_autograd.channels_last import channels_last
from tofuse.capture.pre_autograd.dropout import pass_through_dropout
from tofuse.capture.pre_autograd.indexing import gather_positions
from tofuse.capture.pre_autograd.interpolate import hide_resizing
from tofuse.capture.pre_autograd.mask_writes import write_by_mask
from tofuse.capture.pre_autograd.resampling import resize_whole
from tofuse.capture.pre_autograd.vectorize import side_by_side
from tofuse.torch_internals.dynamo_overhead import unmarked
from tofuse.torch_internals.fake_tensor_cache import anywhere
from tofuse.torch_internals.torch_types import Backend, CompiledFunction


def aot_backend(
    compile_graph: CompileGraph,
    *,
    own_random: bool = True,
    memory_budget: float | None = None,
    claims: Claims = nobody,
    programs: Programs | None = None,
    refused: Callable[[str], None] = lambda reason: None,
    failed: Callable[[Exception], None] | None = None,
    specialize: bool = False,
) -> Backend:
    """A backend for `torch.compile` that hands every ATen graph to `compile_graph`.

    `compile_graph(gm, phase)` with phase "forward", "backward" or "inference" returns a callable
    that takes one list of flat arguments, which it may empty, and returns the flat outputs.
    Backward graphs are compiled when first needed, or at once where sizes are symbolic.

    PyTorch runs the program itself where it may not be compiled, and `refused` is told why; or
    where AOTAutograd fails and `failed`, which is told of the error, does not raise. With
    `specialize`, sizes that are symbols may be numbers to a later graph.
    """

    capture = _Capture(compile_graph, own_random, memory_budget, claims, programs)

    @collector_paused()
    def build(gm: GraphModule, inputs: Sequence[object]) -> CompiledFunction:
        anywhere(detect_fake_mode(inputs))
        pass_through_dropout(gm)
        hide_resizing(gm)
        gather_positions(gm)
        write_by_mask(gm)
        resize_whole(gm)
        wide, notes = side_by_side(gm)
        laid, more = channels_last(wide)
        further = laid.meta[FURTHER] = Further()
        compiled = guard_overlaps(gm, capture.run(laid, (*notes, *more), inputs))
        return leave_derivatives(gm, compiled, further)

    def backend(gm: GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        reason = refusal(gm, example_inputs)
        if reason is not None:
            refused(reason)
            return gm.forward
        try:
            return by_size(gm, example_inputs, build) if specialize else build(gm, example_inputs)
        except TorchDynamoException:
            raise  # to Dynamo
        except Exception as error:
            if failed is None:
                raise
            failed(error)
            return gm.forward

    return unmarked(counted_first(backend))


class Programs(Protocol):
    """Compiled programs by what identifies them, which outlive the process."""

    def fingerprint(self, gm: GraphModule, inputs: Sequence[object]) -> tuple[str, ...] | None: ...

    def find(self, identity: Sequence[str]) -> tuple[Form, list[BoxedFunction]] | None: ...

    def keep(self, identity: Sequence[str], form: Form, runs: Sequence[BoxedFunction]) -> None: ...


@dataclass(frozen=True)
class _Capture:
    """From a program of Dynamo's to a callable; see `aot_backend`."""

    compile_graph: CompileGraph
    own_random: bool
    memory_budget: float | None
    claims: Claims
    programs: Programs | None

    def run(
        self, gm: GraphModule, notes: tuple[str, ...], inputs: Sequence[object]
    ) -> CompiledFunction:
        """The program, compiled or as it was kept; the notes are for the report.

        Writes into arguments are part of it, but where autograd sees its results.
        """
        name = None if self.programs is None else self.programs.fingerprint(gm, inputs)
        if not _trains(gm):
            try:
                return self._found(gm, notes, inputs, name, writes=True)
            except _Trains:
                pass
        return self._found(gm, notes, inputs, name, writes=False)

    def _found(
        self,
        gm: GraphModule,
        notes: tuple[str, ...],
        inputs: Sequence[object],
        name: tuple[str, ...] | None,
        *,
        writes: bool,
    ) -> CompiledFunction:
        if self.programs is None or name is None:
            return self._compile(gm, notes, inputs, writes, lambda form, runs: None)
        name = (f"writes {writes}", *name)
        found = self.programs.find(name)
        if found is None:
            keep, before, own = self.programs.keep, count_number_guards(gm), name

            def keep_general(form: Form, runs: Sequence[BoxedFunction]) -> None:
                if count_number_guards(gm) == before:  # or it is a program for these numbers alone
                    keep(own, form, runs)

            return self._compile(gm, notes, inputs, writes, keep_general)
        form, runs = found
        held = list(held_tensors(gm).values())
        return _with(held, form.program(runs[0], lambda: runs[-1], _eager(gm, held)))

    def _compile(
        self,
        gm: GraphModule,
        notes: tuple[str, ...],
        inputs: Sequence[object],
        writes: bool,
        keep: Callable[[Form, Sequence[BoxedFunction]], None],
    ) -> CompiledFunction:
        """What comes back Dynamo calls with itself switched off: a second switch would only cost.

        `keep` is told of a program that runs without AOTAutograd, when all of it is compiled.
        """
        parts = Parts(self.compile_graph, self.memory_budget, notes, self.claims)
        compiler: Backend = aot_autograd(
            fw_compiler=parts.compiler("forward"),
            bw_compiler=parts.compiler("backward"),
            inference_compiler=parts.compiler("inference"),
            partition_fn=_refuse_training if writes else parts.partition,
            decompositions=decompositions(
                own_random=self.own_random, claims=self.claims, varying=bool(varying_numbers(gm))
            ),
            keep_inference_input_mutations=writes,
        )
        whole = innermost_fn(compiler(gm, inputs))
        held = list(held_tensors(gm).values())
        form = parts.form(inputs, views=False, held=held)
        if form is None:
            return gm.forward if only_views(gm) else whole
        parts.finished = functools.partial(keep, form)
        if isinstance(form, Inference):
            parts.finished([parts.forward()])
        return _with(held, form.program(parts.forward(), parts.backward, _eager(gm, held)))


def _with(held: Sequence[torch.Tensor], program: CompiledFunction) -> CompiledFunction:
    """A program, with the tensors that it holds as its first arguments."""
    return functools.partial(program, *held) if held else program


def _eager(gm: GraphModule, held: Sequence[torch.Tensor]) -> Eager | None:
    """The program as PyTorch runs it, if it holds no tensors, of which it would take no others."""
    further = gm.meta[FURTHER]

    def eager(arguments: Sequence[object], aliases: Sequence[object]) -> Sequence[object]:
        further.asked = True
        results: Sequence[object] = gm.forward(*aliases)
        return results

    return None if held else eager


FURTHER = "tofuse_further"  # in a program's meta


class _Trains(Exception):
    """Autograd sees what a program does."""


def _refuse_training(joint: GraphModule, inputs: Sequence[object], **options: object) -> NoReturn:
    """In the place of a partition function, where no program is expected to need one."""
    raise _Trains


def _trains(gm: GraphModule) -> bool:
    """Whether a result of a program of Dynamo's requires grad."""
    outputs = next(n for n in gm.graph.nodes if n.op == "output").all_input_nodes
    values = [n.meta.get("example_value") for n in outputs]
    return any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)
