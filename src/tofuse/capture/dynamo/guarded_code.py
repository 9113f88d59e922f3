"""Guarded code as data: Dynamo's bytecode for a function, and the guards under which it holds."""

from __future__ import annotations

import dis
import itertools
import logging
import marshal
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType

import torch
from torch.utils.hooks import RemovableHandle

from tofuse.capture.dynamo.dependencies import Dependencies, dependencies
from tofuse.capture.dynamo.environment_reads import is_environment, is_named_environment
from tofuse.capture.dynamo.legality import modes_active
from tofuse.capture.dynamo.portable_guards import (
    CodeMatch,
    TensorMeta,
    portable_guards,
    tensor_meta,
)
from tofuse.capture.dynamo.references import (
    Reference,
    code_place,
    reference_to,
)
from tofuse.errors import UnsupportedError
from tofuse.torch_internals.dispatch import TensorGuards, has_saved_tensor_hooks
from tofuse.torch_internals.dynamo import GuardFilterEntry
from tofuse.torch_internals.dynamo_guards import (
    GlobalStateGuard,
    guard_argument,
    guard_expression,
    is_stance_default,
    state_text,
)
from tofuse.torch_internals.modules import has_global_hooks

PROGRAM = re.compile(r"__compiled_fn_.*")  # Dynamo's names for the program,
ALIAS = re.compile(r"__import_.*|__builtins_dict__.*|\w*_\d+_c\d+")  # an object that is there,
ADDED = re.compile(r"__.*(?<!__)")  # and for others, such as what follows a graph break
NUMBERS = itertools.count()  # of functions that run bytecode
MAX_LOGGED_CHANGES = 8  # that are logged
log = logging.getLogger(__name__)
Check = Callable[..., tuple[torch.Tensor, ...] | None]


@dataclass(frozen=True)
class GuardedCode:
    """What Dynamo makes of one function, as data.

    `bytecode` and `guards` (compiled) are marshalled code. `globals` are the names that the
    bytecode reads beside the function's own: references, or None for the compiled program. `state`
    is torch's, `identities` say which guarded objects are the same: the position of the first one.
    """

    bytecode: bytes
    guards: bytes
    objects: tuple[object, ...]
    tensors: tuple[TensorMeta, ...]
    globals: Mapping[str, Reference | None]
    dependencies: Dependencies
    identities: tuple[int, ...]
    state: str

    @property
    def accepted_calls(self) -> tuple[object, ...]:
        """The calls that the guards accept."""
        return self.guards, repr(self.objects), self.tensors, self.state

    def bind(
        self, function: FunctionType, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> BoundCode | None:
        """Return the code for a function of this process; None unless its guards hold for a call.

        The program is still missing: see `BoundCode.run_with`.
        """
        state = GlobalStateGuard()
        if state_text(state) != self.state or is_watched():
            return None
        try:
            extra = {k: None if v is None else v.resolve() for k, v in self.globals.items()}
            check, has_hooks, mutable = self._bind_guards(function, args, kwargs)
            tensors = check(*args, **kwargs)
            if tensors is None or has_hooks(*args, **kwargs):
                return None
            if tuple(map(tensor_meta, tensors)) != self.tensors:
                return None
            objects = mutable(*args, **kwargs)
            if has_global_hooks() or _identities(objects) != self.identities:
                return None
            roots = (function, *_functions(objects), *_classes(self.objects, self.tensors))
            if changes := self.dependencies.changes(roots):
                log.debug("a capture on disk is stale: %s", ", ".join(changes[:MAX_LOGGED_CHANGES]))
                return None
        except Exception:  # objects that the guards read are others, or are not there
            return None
        guard = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        if not guard.check(*tensors):  # two are the same
            return None
        code = marshal.loads(self.bytecode)
        signature = _signature(function)
        return BoundCode(function, code, extra, check, has_hooks, guard, state.check, signature)

    def _bind_guards(
        self, function: FunctionType, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> tuple[Check, Callable[..., bool], Callable[..., Sequence[object]]]:
        """Return the functions `check`, `has_hooks` and `mutable` of the guards.

        See `PortableGuards`.

        Raises LookupError if code does something else than the code that was traced.
        """
        scope: dict[str, Callable[..., Sequence[FunctionType]]] = {}
        exec(marshal.loads(self.guards), scope)
        context = function.__closure__ or (), function.__globals__
        objects = [x.resolve() if isinstance(x, Reference) else x for x in self.objects]
        _, _, codes, _ = _with_defaults(scope["bind"](*context, objects), function)
        places = [k for k, x in enumerate(objects) if isinstance(x, CodeMatch)]
        for k, code in zip(places, codes(*args, **kwargs), strict=True):
            match = objects[k]
            if not isinstance(match, CodeMatch) or code_place(code) != match.place:
                raise LookupError("other code than was traced")
            objects[k] = code
        check, has_hooks, _, mutable = _with_defaults(scope["bind"](*context, objects), function)
        return check, has_hooks, mutable


@dataclass(eq=False)
class BoundCode:
    """Guarded code of a function of this process."""

    function: FunctionType
    code: CodeType
    globals: Mapping[str, object]
    guards: Check
    has_hooks: Callable[..., bool]
    tensor_guards: TensorGuards
    same_state: Callable[[], bool]
    signature: tuple[object, ...]
    checked_hook_id: int = -1

    def check(self, *args: object, **kwargs: object) -> bool:
        """Return whether the guards hold for a call."""
        if not self.same_state() or is_watched():
            return False
        if any(a is not b for a, b in zip(_signature(self.function), self.signature, strict=True)):
            return False
        try:
            tensors = self.guards(*args, **kwargs)
            if tensors is None or not self.tensor_guards.check(*tensors):
                return False
            if self.checked_hook_id != RemovableHandle.next_id:
                if self.has_hooks(*args, **kwargs):
                    return False
                self.checked_hook_id = RemovableHandle.next_id
        except Exception:  # objects that the guards read are others, or are not there
            return False
        return True

    def run_with(self, program: Callable[..., object]) -> Callable[..., object]:
        """Return the function that runs the bytecode with a compiled program.

        Its names are those of the function's module, to which the names of the program and of
        modules are added, as Dynamo does. They are removed with the returned function.
        """
        own, number = self.function.__globals__, next(NUMBERS)
        names = {name: f"__tofuse_{number}_{name}" for name in self.globals}
        for name, value in self.globals.items():
            own[names[name]] = program if value is None else value
        run = FunctionType(
            _renamed(self.code, names),
            own,
            self.function.__name__,
            self.function.__defaults__,
            self.function.__closure__,
        )
        run.__kwdefaults__ = self.function.__kwdefaults__
        weakref.finalize(run, _remove, own, tuple(names.values())).atexit = False
        return run


def guarded_code(
    function: FunctionType,
    bytecode: CodeType,
    guards: Sequence[GuardFilterEntry],
    traced: Sequence[CodeType],
    calls: Sequence[FunctionType] = (),
) -> GuardedCode:
    """Return the bytecode that Dynamo has just made of a function, with its guards, as data.

    `calls` are the Python functions that its program calls.

    Raises UnsupportedError if it holds in this process only: after a graph break, or if objects are
    compared that no name leads to.
    """
    if bytecode.co_freevars != function.__code__.co_freevars:
        raise UnsupportedError("the bytecode has other free variables")
    if is_watched() or has_global_hooks():
        raise UnsupportedError("a mode, or a hook for all modules, sees the call")
    module = function.__globals__
    aliases = {k: v for k, v in module.items() if ALIAS.fullmatch(k)}
    extra = {name: _alias(name, module) for name in sorted({*_added_names(bytecode, module)})}
    if list(extra.values()).count(None) != 1:
        raise UnsupportedError("the function runs several programs, or none")
    portable = portable_guards(guards, function.__code__, aliases)
    functions = _functions(portable.mutable)
    roots = (function, *functions, *_classes(portable.objects, portable.tensors))
    read = [*calls, *_unnamed_environment(guards)]
    try:
        marshalled = marshal.dumps(bytecode)
    except ValueError as error:
        raise UnsupportedError("the bytecode holds an object") from error
    return GuardedCode(
        marshalled,
        marshal.dumps(compile(portable.source, "<guards of tofuse>", "exec")),
        portable.objects,
        portable.tensors,
        extra,
        dependencies(roots, traced, read),
        _identities(portable.mutable),
        state_text(GlobalStateGuard()),
    )


def _unnamed_environment(guards: Sequence[GuardFilterEntry]) -> list[object]:
    """Return `os.environ` or its relative, if guards reach it otherwise than by its name."""
    for guard in guards:
        if is_environment(guard.value):
            other = getattr(guard_argument(guard, "source_b", None), "name", None)
            expressions = [guard_expression(guard), *([] if other is None else [str(other)])]
            if not all(map(is_named_environment, expressions)):
                return [guard.value]
    return []


def _identities(objects: Sequence[object]) -> tuple[int, ...]:
    """Return for each object the position of the first that is the same."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(x), k) for k, x in enumerate(objects))


def _functions(objects: Sequence[object]) -> list[FunctionType]:
    return list({id(x): x for x in objects if isinstance(x, FunctionType)}.values())


def _classes(objects: Sequence[object], tensors: Sequence[TensorMeta]) -> Iterator[type]:
    """Yield the classes that guards compare."""
    for reference in (*objects, *(meta.type for meta in tensors)):
        if isinstance(reference, Reference) and isinstance(cls := reference.resolve(), type):
            yield cls


def _signature(function: FunctionType) -> tuple[object, ...]:
    """Return a function's code and default arguments, which may be assigned."""
    return function.__code__, function.__defaults__, function.__kwdefaults__


def _remove(module: MutableMapping[str, object], names: Sequence[str]) -> None:
    for name in names:
        module.pop(name, None)


def _with_defaults(made: Sequence[FunctionType], function: FunctionType) -> Sequence[FunctionType]:
    """Give functions the default arguments of another, whose parameters they have."""
    for f in made:
        f.__defaults__, f.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return made


def is_watched() -> bool:
    """Return whether a mode, transform or hook for saved tensors would see the call.

    Also under a stance of torch.compile, and for several processes: Dynamo may cut their programs.
    """
    if modes_active() or has_saved_tensor_hooks() or not is_stance_default():
        return True
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _alias(name: str, module: Mapping[str, object]) -> Reference | None:
    """Return the reference to what Dynamo has added under a name; None for the program."""
    if PROGRAM.fullmatch(name):
        return None
    if not ALIAS.fullmatch(name):
        raise UnsupportedError(f"the bytecode reads {name}, such as after a graph break")
    return reference_to(module[name])


def _added_names(code: CodeType, module: Mapping[str, object]) -> Iterator[str]:
    """Yield the global names of bytecode that Dynamo has added to a module."""
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            raise UnsupportedError(f"the function writes the global variable {name}")
        if instruction.opname == "LOAD_GLOBAL" and any(
            kind.fullmatch(name) for kind in (PROGRAM, ALIAS, ADDED)
        ):
            yield name
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _added_names(constant, module)


def _renamed(code: CodeType, names: Mapping[str, str]) -> CodeType:
    """Return a code object with other global names."""
    constants = tuple(_renamed(x, names) if isinstance(x, CodeType) else x for x in code.co_consts)
    return code.replace(co_names=tuple(names.get(n, n) for n in code.co_names), co_consts=constants)
