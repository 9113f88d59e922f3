"""A patch that predicts graph breaks, so that Dynamo does not trace a function twice.

Replaces `InstructionTranslatorBase.speculate`. When Dynamo cannot trace a call, it restarts the
function in order to stop before that call: it traces everything before the call a second time. For
calls of disabled functions and constructors of layers with parameters, the break is known in
advance, and the patch marks the call as failed at once. Without it, only tracing time is lost.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch._dynamo import config
from torch._dynamo.exc import Unsupported, unimplemented
from torch._dynamo.output_graph import GraphCompileReason
from torch._dynamo.symbolic_convert import InstructionTranslatorBase, SpeculationEntry
from torch._dynamo.variables import LazyVariableTracker, VariableTracker
from torch._dynamo.variables.misc import NullVariable

from tofuse.torch_internals.fake_tensor_cache import ignore_storage_offsets
from tofuse.torch_internals.resume_annotations import resume_fusion_hints

B = TypeVar("B", bound=Callable[..., object])
PositionalArguments = Sequence[VariableTracker]
KeywordArguments = Mapping[str, VariableTracker]
MARK = "_predicts_graph_breaks"
LAYERS = "torch.nn.modules."
CONSTANT_TYPES = (bool, int, float, str, tuple, list, type(None), torch.dtype)
UNKNOWN = object()
# The kinds of graph break, in Dynamo's words
PARAMETER = "Attempted to use `torch.nn.Parameter()` constructor with Dynamo"
DISABLED = "Skip calling `torch.compiler.disable()`d function"


class PredictedBreak(NamedTuple):
    """A graph break as Dynamo reports it."""

    kind: str
    explanation: str
    hint: str


def predict_graph_breaks(backend: B) -> B:
    """Mark `backend`, so that Dynamo predicts the graph breaks of its programs.

    Predicted are calls, in the function itself, of functions under `torch.compiler.disable` and of
    constructors of `torch.nn` layers with parameters. Not predicted: breaks under `fullgraph`,
    where they are errors, and in functions that Dynamo would skip as a whole.
    """
    if InstructionTranslatorBase.speculate is not _speculate:
        InstructionTranslatorBase.speculate = _speculate  # type: ignore[method-assign]
    resume_fusion_hints()
    setattr(backend, MARK, True)
    return backend


_torch_speculate = InstructionTranslatorBase.speculate


def _speculate(self: InstructionTranslatorBase) -> SpeculationEntry:
    """Return Dynamo's record of the current instruction, marked as failed if a break is certain."""
    entry = _torch_speculate(self)
    if self.parent is None and not entry._failed and entry.inst.opname in ("CALL", "CALL_KW"):
        marked = _is_marked(self.output.compiler_fn)
        if marked:
            ignore_storage_offsets(self.output.fake_mode)
        predicted = _predict(self) if marked else None
        # in a possible loop Dynamo skips the whole function
        if predicted and self.should_compile_partial_graph() and not self.maybe_has_backedge():
            _mark_failed(self, entry, predicted)
    return entry


def _is_marked(backend: object) -> bool:
    return bool(getattr(inspect.getattr_static(backend, "compiler_fn", backend), MARK, False))


def _mark_failed(
    frame: InstructionTranslatorBase, entry: SpeculationEntry, predicted: PredictedBreak
) -> None:
    """Record the graph break as Dynamo does after a failed call, but without a restart."""
    try:
        unimplemented(
            gb_type=predicted.kind,
            context="",
            explanation=predicted.explanation,
            hints=[predicted.hint],
        )
    except Unsupported as error:
        frame.log_graph_break(frame.code_options, reason=str(error), exc=error)
        error.remove_from_stats()
        error.add_to_stats("graph_break")
        entry.reason = GraphCompileReason(error.msg, error.real_stack)
    entry.error_on_graph_break = frame.error_on_graph_break
    entry._failed = True


def _predict(frame: InstructionTranslatorBase) -> PredictedBreak | None:
    """Return the graph break of the call that `frame` executes next, if it is certain."""
    inst = frame.current_instruction
    count = (inst.arg or 0) + (inst.opname == "CALL_KW")  # as from Python 3.11 on
    callables = [v for v in frame.stack[-count - 2 :][:2] if not isinstance(v, NullVariable)]
    target = _python_value(callables[0]) if len(callables) == 1 else UNKNOWN
    if inspect.isfunction(target) and getattr(target, "_torchdynamo_disable", False):
        return PredictedBreak(
            DISABLED, f"{target.__qualname__} is disabled", "Remove the call of disable"
        )
    if not inspect.isclass(target) or not issubclass(target, torch.nn.Module):
        return None
    if config.graph_break_on_nn_param_ctor and _has_parameters(target, *_arguments(frame, count)):
        return PredictedBreak(PARAMETER, f"{target.__name__} has parameters", "Build it outside")
    return None


def _arguments(
    frame: InstructionTranslatorBase, count: int
) -> tuple[PositionalArguments, KeywordArguments]:
    """Return the arguments of the call: the `count` topmost values of the stack."""
    values = frame.stack[-count:] if count else []
    keywords = values.pop() if frame.current_instruction.opname == "CALL_KW" else frame.kw_names
    names = keywords.as_python_constant() if keywords is not None else ()
    split = len(values) - len(names)
    return values[:split], dict(zip(names, values[split:], strict=True))


def _python_value(v: VariableTracker) -> object:
    if isinstance(v, LazyVariableTracker):
        if not v.is_realized():
            return v.peek_value()
        v = v.realize()
    return v.as_python_constant() if v.is_python_constant() else getattr(v, "value", UNKNOWN)


def _has_parameters(
    layer_type: type[torch.nn.Module], args: PositionalArguments, kwargs: KeywordArguments
) -> bool:
    """Return whether a layer built with these arguments has parameters, by building it on meta."""
    if not layer_type.__module__.startswith(LAYERS):
        return False
    values = [_python_value(v) for v in args]
    options = {name: _python_value(v) for name, v in kwargs.items() if name != "device"}
    if not all(isinstance(v, CONSTANT_TYPES) for v in (*values, *options.values())):
        return False
    try:
        layer = layer_type(*values, **options, device="meta")
    except Exception:  # Dynamo reports what is wrong with it
        return False
    return any(type(p) is torch.nn.Parameter for p in layer.parameters())
