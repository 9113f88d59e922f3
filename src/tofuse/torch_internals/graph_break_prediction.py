"""Graph breaks that are known before Dynamo comes upon them.

Where it cannot follow a call, Dynamo begins the function anew, to stop before that call: all that
is before it is followed twice. Of some calls it is known beforehand.
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

from tofuse.torch_internals.fake_tensor_cache import anywhere
from tofuse.torch_internals.resume_annotations import resume_hints

B = TypeVar("B", bound=Callable[..., object])
Values = Sequence[VariableTracker]
Named = Mapping[str, VariableTracker]
MARK = "_foresees_breaks"
LAYERS = "torch.nn.modules."
PLAIN = (bool, int, float, str, tuple, list, type(None), torch.dtype)
UNKNOWN = object()
# Dynamo's names for what it would find
PARAMETER = "Attempted to use `torch.nn.Parameter()` constructor with Dynamo"
DISABLED = "Skip calling `torch.compiler.disable()`d function"


class Break(NamedTuple):
    """A graph break as Dynamo tells of it."""

    kind: str
    because: str
    hint: str


def foreseeing(backend: B) -> B:
    """`backend`, for whose programs Dynamo foresees breaks: calls in the function itself of what
    `torch.compiler.disable` covers, and those that build a layer of `torch.nn` with parameters.

    Not with `fullgraph`, where they are errors, and not where Dynamo gives the function up.
    """
    if InstructionTranslatorBase.speculate is not _speculate:
        InstructionTranslatorBase.speculate = _speculate  # type: ignore[method-assign]
    resume_hints()
    setattr(backend, MARK, True)
    return backend


_plain = InstructionTranslatorBase.speculate


def _speculate(self: InstructionTranslatorBase) -> SpeculationEntry:
    """Dynamo's note of an instruction that it tries, which says whether it failed before."""
    entry = _plain(self)
    if self.parent is None and not entry._failed and entry.inst.opname in ("CALL", "CALL_KW"):
        ours = _is_ours(self.output.compiler_fn)
        if ours:
            anywhere(self.output.fake_mode)
        why = _foreseen(self) if ours else None
        # in what may be a loop it leaves the function to Python
        if why and self.should_compile_partial_graph() and not self.maybe_has_backedge():
            _fail(self, entry, why)
    return entry


def _is_ours(backend: object) -> bool:
    return bool(getattr(inspect.getattr_static(backend, "compiler_fn", backend), MARK, False))


def _fail(frame: InstructionTranslatorBase, entry: SpeculationEntry, why: Break) -> None:
    """What Dynamo does once a call has failed, but for beginning anew."""
    try:
        unimplemented(gb_type=why.kind, context="", explanation=why.because, hints=[why.hint])
    except Unsupported as error:
        frame.log_graph_break(frame.code_options, reason=str(error), exc=error)
        error.remove_from_stats()
        error.add_to_stats("graph_break")
        entry.reason = GraphCompileReason(error.msg, error.real_stack)
    entry.error_on_graph_break = frame.error_on_graph_break
    entry._failed = True


def _foreseen(frame: InstructionTranslatorBase) -> Break | None:
    """How the call that is next breaks the graph; None where that is not known."""
    inst = frame.current_instruction
    above = (inst.arg or 0) + (inst.opname == "CALL_KW")  # as from Python 3.11 on
    found = [v for v in frame.stack[-above - 2 :][:2] if not isinstance(v, NullVariable)]
    called = _value(found[0]) if len(found) == 1 else UNKNOWN
    if inspect.isfunction(called) and getattr(called, "_torchdynamo_disable", False):
        return Break(DISABLED, f"{called.__qualname__} is disabled", "Remove the call of disable")
    if not inspect.isclass(called) or not issubclass(called, torch.nn.Module):
        return None
    if config.graph_break_on_nn_param_ctor and _has_parameters(called, *_arguments(frame, above)):
        return Break(PARAMETER, f"{called.__name__} has parameters", "Build it outside")
    return None


def _arguments(frame: InstructionTranslatorBase, above: int) -> tuple[Values, Named]:
    """What lies on the stack above what is called."""
    given = frame.stack[-above:] if above else []
    named = given.pop() if frame.current_instruction.opname == "CALL_KW" else frame.kw_names
    names = named.as_python_constant() if named is not None else ()
    split = len(given) - len(names)
    return given[:split], dict(zip(names, given[split:], strict=True))


def _value(v: VariableTracker) -> object:
    if isinstance(v, LazyVariableTracker):
        if not v.is_realized():
            return v.peek_value()
        v = v.realize()
    return v.as_python_constant() if v.is_python_constant() else getattr(v, "value", UNKNOWN)


def _has_parameters(kind: type[torch.nn.Module], args: Values, kwargs: Named) -> bool:
    """Whether a layer that is built so has parameters: one without memory is built, and asked."""
    if not kind.__module__.startswith(LAYERS):
        return False
    given = [_value(v) for v in args]
    options = {name: _value(v) for name, v in kwargs.items() if name != "device"}
    if not all(isinstance(v, PLAIN) for v in (*given, *options.values())):
        return False
    try:
        layer = kind(*given, **options, device="meta")
    except Exception:  # Dynamo says what is wrong with it
        return False
    return any(type(p) is torch.nn.Parameter for p in layer.parameters())
