"""Dynamo's guards as a Python function that another process can call, without Dynamo."""

from __future__ import annotations

import ast
import enum
import math
import re
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence, Sized
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType

import torch

from tofuse.capture.dynamo.hook_guards import NO_HOOKS_GUARD
from tofuse.capture.dynamo.references import (
    Reference,
    code_place,
    is_constant,
    reference_to,
)
from tofuse.errors import UnsupportedError
from tofuse.torch_internals.dynamo import GuardFilterEntry
from tofuse.torch_internals.dynamo_guards import guard_argument, guard_expression

BUILTINS = ("type", "list", "dict", "tuple", "set", "frozenset", "len")  # of guards' expressions
RESERVED = re.compile(rf"_part\d+|_object\d+|cells|module_globals|hasattr|{'|'.join(BUILTINS)}")
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
MARK = re.compile("_dynamo_.*(dynamic|unbacked)_indices")  # attributes, as of mark_dynamic
MISSING = object()
INLINE = (bool, int, str, bytes, type(None))  # constants whose text is in the function


@dataclass(frozen=True)
class TensorMeta:
    """What guards require of a tensor, and what the program's fingerprint says of it."""

    type: Reference
    dtype: torch.dtype
    device: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    storage_offset: int
    requires_grad: bool
    is_leaf: bool


@dataclass(frozen=True)
class CodeMatch:
    """A code object that must be that of `place`; `expression` leads to it. See `code_place`."""

    expression: str
    place: str


@dataclass(frozen=True)
class PortableGuards:
    """The source of a function that checks a call, and the objects that it compares.

    The source defines `bind(cells, module_globals, objects)`, which returns four functions with
    the parameters of the compiled one. `check` returns the guarded tensors, or None if the call is
    of another kind; `has_hooks` returns whether a module has got a hook that was not there; `codes`
    returns the code objects to which the `CodeMatch`es among the objects lead, and `mutable` the
    guarded objects that may change: the program may depend on which of them are the same. They
    raise an error for calls whose objects have other parts.
    """

    source: str
    objects: tuple[object, ...]  # references, code matches and constants
    tensors: tuple[TensorMeta, ...]
    mutable: tuple[object, ...]


def tensor_meta(tensor: object) -> TensorMeta:
    """Return what guards require of a tensor. Raises UnsupportedError for one that isn't plain."""
    if not isinstance(tensor, torch.Tensor) or type(tensor) not in PLAIN_TENSORS:
        raise UnsupportedError(f"a guard on a {type(tensor).__name__}")
    if tensor.layout is not torch.strided or tensor.is_inference():
        raise UnsupportedError(f"a guard on a {type(tensor).__name__}")
    if tensor.is_conj() or tensor.is_neg() or any(map(MARK.search, vars(tensor))):
        raise UnsupportedError("a guard on a conjugate view, or on a tensor that is marked")
    return TensorMeta(
        reference_to(type(tensor)),
        tensor.dtype,
        str(tensor.device),
        tuple(tensor.shape),
        tensor.stride(),
        int(tensor.storage_offset()),
        tensor.requires_grad,
        tensor.is_leaf,
    )


def portable_guards(
    guards: Sequence[GuardFilterEntry], code: CodeType, aliases: Mapping[str, object]
) -> PortableGuards:
    """Return guards on the frames of `code` as source; raise UnsupportedError if one has no text.

    `aliases` are the global names that Dynamo has added, by name.
    """
    checks, hooks, codes, mutable = (_Writer(code, aliases) for _ in range(4))
    for writer in (hooks, codes, mutable):
        writer.objects, writer.names = checks.objects, checks.names
    objects: MutableMapping[str, object] = {}  # by expression
    for guard in guards:
        if guard.guard_type == NO_HOOKS_GUARD:
            hooks.line(f"if {hooks.value(guard_expression(guard))}: return True")
            continue
        rule = RULES.get(guard.guard_type)
        if rule is None:
            raise UnsupportedError(f"guards of type {guard.guard_type} have no text")
        if guard.guard_type not in STATE_GUARDS:
            rule(checks, guard)
            if _is_mutable(guard.value):
                objects.setdefault(guard_expression(guard), guard.value)
    checks.line(f"return ({''.join(f'{name}, ' for name in checks.tensors)})")
    hooks.line("return False")
    matches = [x for x in checks.objects if isinstance(x, CodeMatch)]
    codes.line(f"return ({''.join(f'{codes.value(x.expression)}, ' for x in matches)})")
    mutable.line(f"return ({''.join(f'{mutable.value(x)}, ' for x in objects)})")
    parameters = _parameters(code)
    names = "".join(f"{name}, " for name in checks.names.values())
    lines = ["def bind(cells, module_globals, objects):"]
    lines += [f"    ({names}) = objects"] if names else []
    writers = {"check": checks, "has_hooks": hooks, "codes": codes, "mutable": mutable}
    for name, writer in writers.items():
        lines += [f"    def {name}({parameters}):", *(f"        {x}" for x in writer.lines)]
    lines.append(f"    return {', '.join(writers)}")
    metas = tuple(map(tensor_meta, checks.tensors.values()))
    values = tuple(objects.values())
    return PortableGuards("\n".join(lines), tuple(checks.objects), metas, values)


def _is_mutable(value: object) -> bool:
    """Return whether a value is a container or an instance. Two of them may be equal."""
    unique = (torch.Tensor, type, ModuleType, MethodType, BuiltinFunctionType, enum.Enum)
    if isinstance(value, (list, dict, set)):
        return True
    return not isinstance(value, unique) and not is_constant(value) and value is not NotImplemented


def _parameter_names(code: CodeType) -> Sequence[str]:
    """Return the names of a code object's parameters."""
    flags = (VARARGS, VARKEYWORDS)
    count = code.co_argcount + code.co_kwonlyargcount + sum(bool(code.co_flags & f) for f in flags)
    return code.co_varnames[:count]


def _parameters(code: CodeType) -> str:
    """Return the text of a code object's parameters, without default values."""
    names = iter(_parameter_names(code))
    positional = [next(names) for _ in range(code.co_argcount)]
    keywords = [next(names) for _ in range(code.co_kwonlyargcount)]
    if code.co_posonlyargcount:
        positional.insert(code.co_posonlyargcount, "/")
    if code.co_flags & VARARGS:
        positional.append(f"*{next(names)}")
    elif keywords:
        positional.append("*")
    words = [f"**{next(names)}"] if code.co_flags & VARKEYWORDS else []
    return ", ".join([*positional, *keywords, *words])


VARARGS, VARKEYWORDS = 0x04, 0x08  # of a code object's flags; see `inspect`


class _Writer:
    """Writes the body of a function: one line for each new part of an expression.

    `objects` are compared, under the names in `names`; `tensors` are returned.
    """

    def __init__(self, code: CodeType, aliases: Mapping[str, object]) -> None:
        self.code, self.aliases = code, aliases
        self.locals = frozenset(_parameter_names(code))
        self.lines: list[str] = []
        self.parts: dict[str, str] = {}  # the variable that holds a part, by the part's text
        self.objects: list[object] = []
        self.names: dict[str, str] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        if any(map(RESERVED.fullmatch, self.locals)):
            raise UnsupportedError("a parameter has the name of a built-in function, or of ours")

    def line(self, text: str) -> None:
        """Add a line, unless the function has it."""
        if text not in self.parts:
            self.parts[text] = ""
            self.lines.append(text)

    def require(self, condition: str) -> None:
        """Add a condition for the call."""
        self.line(f"if not ({condition}): return None")

    def compared(self, value: object) -> str:
        """Return the name of an object to compare with."""
        key = f"{type(value).__name__} {value!r}"
        name = self.names.setdefault(key, f"_object{len(self.objects)}")
        if len(self.names) > len(self.objects):
            self.objects.append(value)
        return name

    def literal(self, value: object) -> str:
        """Return the text of a constant, or the name of the object that it is kept as."""
        if type(value) in INLINE or (type(value) is float and value and math.isfinite(value)):
            return repr(value)
        return self.compared(value)

    def value(self, expression: str) -> str:
        """Return the variable that holds the value of a guard's expression."""
        return self._node(ast.parse(expression, mode="eval").body)

    def _node(self, node: ast.expr) -> str:
        match node:
            case ast.Subscript(ast.Name("L"), ast.Constant(str(name))):
                return self._local(name)
            case ast.Subscript(ast.Name("G"), ast.Constant(str(name))):
                return self._global(name)
            case ast.Name(name) if name in BUILTINS:
                return name
            case ast.Constant(value) if type(value) in (int, str, bytes):
                return repr(value)
            case ast.Attribute(base, name):
                return self._part(f"{self._node(base)}.{name}")
            case ast.Subscript(base, index):
                return self._part(f"{self._node(base)}[{self._node(index)}]")
            case ast.Call(ast.Attribute(ast.Name("dict"), name), arguments, []):
                inner = ", ".join(map(self._node, arguments))
                return self._part(f"dict.{name}({inner})")
            case ast.Call(ast.Name(name), arguments, []) if name in BUILTINS:
                return self._part(f"{name}({', '.join(map(self._node, arguments))})")
        raise UnsupportedError(f"a guard on {ast.unparse(node)}")

    def _local(self, name: str) -> str:
        if name in self.code.co_freevars:
            return self._part(f"cells[{self.code.co_freevars.index(name)}].cell_contents")
        if name not in self.locals:
            raise UnsupportedError(f"a guard on the local variable {name}")
        return name

    def _global(self, name: str) -> str:
        if name in self.aliases:
            return self.compared(reference_to(self.aliases[name]))
        return self._part(f"module_globals[{name!r}]")

    def _part(self, text: str) -> str:
        name = self.parts.get(text)
        if name is None:
            name = self.parts[text] = f"_part{len(self.parts)}"
            self.lines.append(f"{name} = {text}")
        return name


def _match_type(writer: _Writer, guard: GuardFilterEntry) -> None:
    reference = writer.compared(reference_to(type(guard.value)))
    writer.require(f"type({writer.value(guard_expression(guard))}) is {reference}")


def _match_length(writer: _Writer, guard: GuardFilterEntry) -> None:
    _match_type(writer, guard)
    assert isinstance(guard.value, Sized)
    writer.require(f"len({writer.value(guard_expression(guard))}) == {len(guard.value)}")


def _match_keys(writer: _Writer, guard: GuardFilterEntry) -> None:
    assert isinstance(guard.value, Iterable)
    keys = list(guard.value)
    if not all(type(k) in (str, int, bytes) for k in keys):
        raise UnsupportedError("a guard on keys that are no texts or numbers")
    writer.require(f"list({writer.value(guard_expression(guard))}) == {keys!r}")


def _match_contained(writer: _Writer, guard: GuardFilterEntry) -> None:
    key = guard_argument(guard, "key")
    if type(key) not in (str, int, bytes):
        raise UnsupportedError("a guard on a key that is no text or number")
    word = "in" if guard.guard_type == "DICT_CONTAINS" else "not in"
    writer.require(f"{key!r} {word} {writer.value(guard_expression(guard))}")


def _match_attribute(writer: _Writer, guard: GuardFilterEntry) -> None:
    name, expression = guard_argument(guard, "attr", None), guard_expression(guard)
    if name is None:  # torch 2.11 guards on the attribute, not on its object
        name, is_there = expression.rpartition(".")[2], guard.has_value
        expression = expression.removesuffix(f".{name}")
        if not name.isidentifier() or expression == guard_expression(guard):
            raise UnsupportedError(f"a guard on the attribute {guard_expression(guard)}")
    else:
        is_there = getattr(guard.value, str(name), MISSING) is not MISSING
    word = "" if is_there else "not "
    writer.require(f"{word}hasattr({writer.value(expression)}, {name!r})")


def _match_no_attribute(writer: _Writer, guard: GuardFilterEntry) -> None:
    name, value = str(guard_argument(guard, "attr")), writer.value(guard_expression(guard))
    writer.require(f"{name!r} not in {value}.__dict__")


def _match_value(writer: _Writer, guard: GuardFilterEntry) -> None:
    """Require a constant of the same type and value, or the same object."""
    expression, value = guard_expression(guard), guard.value
    if isinstance(value, CodeType):
        match = writer.compared(CodeMatch(expression, code_place(value)))
        writer.require(f"{writer.value(expression)} is {match}")
    elif value is None or isinstance(value, (bool, type(...))):
        writer.require(f"{writer.value(expression)} is {writer.literal(value)}")
    elif is_constant(value) and not isinstance(value, enum.Enum):
        text, literal = writer.value(expression), writer.literal(value)
        same = writer.compared(Reference(is_constant.__module__, "same_constant"))
        writer.require(
            f"type({text}) is {writer.compared(reference_to(type(value)))} and {text} == {literal}"
            if type(value) in (int, str, float) and literal == repr(value)
            else f"{same}({text}, {literal})"
        )
    elif isinstance(value, FunctionType) and guard.guard_type == "CLOSURE_MATCH":
        match = writer.compared(CodeMatch(f"{expression}.__code__", code_place(value.__code__)))
        writer.require(f"{writer.value(f'{expression}.__code__')} is {match}")
    else:
        reference = writer.compared(reference_to(value))
        writer.require(f"{writer.value(expression)} is {reference}")


def _match_duplicate(writer: _Writer, guard: GuardFilterEntry) -> None:
    other = guard_argument(guard, "source_b")
    second = writer.value(str(getattr(other, "name", "")))
    writer.require(f"{writer.value(guard_expression(guard))} is {second}")


def _match_tensor(writer: _Writer, guard: GuardFilterEntry) -> None:
    """Return the tensor for a check in C++, unless another expression leads to it as well."""
    name, tensor = writer.value(guard_expression(guard)), guard.value
    tensor_meta(tensor)
    assert isinstance(tensor, torch.Tensor)
    for known, other in writer.tensors.items():
        if other is tensor:
            writer.require(f"{name} is {known}")
            return
    writer.tensors[name] = tensor


# Guards on torch's state, which `GuardedCode` compares as a whole.
STATE_GUARDS = (
    "AUTOGRAD_SAVED_TENSORS_HOOKS",
    "DEFAULT_DEVICE",
    "DETERMINISTIC_ALGORITHMS",
    "GLOBAL_STATE",
    "GRAD_MODE",
    "SHAPE_ENV",  # of static sizes: those of the tensors
    "TORCH_FUNCTION_STATE",
)
VALUE_GUARDS = (
    *("CONSTANT_MATCH", "EQUALS_MATCH", "BOOL_MATCH", "NONE_MATCH", "ID_MATCH", "CLASS_MATCH"),
    *("MODULE_MATCH", "BUILTIN_MATCH", "FUNCTION_MATCH", "CLOSURE_MATCH"),
)
Rule = Callable[[_Writer, GuardFilterEntry], None]
RULES: dict[str, Rule] = {
    **dict.fromkeys((*STATE_GUARDS, *VALUE_GUARDS), _match_value),
    "TYPE_MATCH": _match_type,
    "SEQUENCE_LENGTH": _match_length,
    "DICT_KEYS_MATCH": _match_keys,
    "MAPPING_KEYS_CHECK": _match_keys,
    "DICT_CONTAINS": _match_contained,
    "DICT_NOT_CONTAINS": _match_contained,
    "HASATTR": _match_attribute,
    "NOT_PRESENT_IN_GENERIC_DICT": _match_no_attribute,
    "DUPLICATE_INPUT": _match_duplicate,
    "TENSOR_MATCH": _match_tensor,
}
