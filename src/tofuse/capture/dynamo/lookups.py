"""What the names in traced code lead to in this process: functions, classes, modules, values.

Dynamo's guards compare arguments, global variables and attributes of objects. They do not compare
what can differ only between processes: methods of classes, special methods, functions of torch,
variables of the environment. `survey` follows names from the traced function as Python
does, and describes what it finds.
"""

from __future__ import annotations

import builtins
import enum
import functools
import inspect
import os
import sys
import types
from abc import ABCMeta
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType

import torch

from tofuse.capture.dynamo.class_structure import (
    RAISING,
    UNREAD,
    UNSEEN,
    constant_function,
    is_constant_function,
    is_special,
    registered_classes,
    structure_of,
)
from tofuse.capture.dynamo.code_names import (
    calls_without_arguments,
    code_names,
)
from tofuse.capture.dynamo.environment_reads import EnvironmentReads, is_environment
from tofuse.capture.dynamo.graph_breaks import WRAPPER_FILE
from tofuse.capture.dynamo.obstacles import check_class, check_code
from tofuse.capture.dynamo.references import (
    LITERALS,
    TORCH_VALUES,
    code_line,
    code_place,
    is_constant,
    is_own_class,
    is_own_file,
    is_released,
)
from tofuse.errors import UnsupportedError

MAX_DESCRIPTIONS = 50_000  # descriptions of one survey
IMMUTABLE_TYPE_FLAG = 1 << 8  # the flag of a type whose attributes cannot be assigned
DYNAMO = f"{Path(torch.__file__).parent}/_dynamo/"
FollowedCode = tuple[CodeType, bool]  # and whether Dynamo has traced it
Namespace = Mapping[str, object]


@dataclass(frozen=True)
class Scope:
    """Which lookups are described.

    `traced` are the places of the code that Dynamo has traced (see `code_place`). `names` are the
    attributes that code names; it reads others, too, if it `computes_names`. Functions of a name in
    `caught` are followed even if they were not traced: Dynamo does not tell of code that raised an
    exception which the traced code caught.
    """

    traced: frozenset[str]
    names: frozenset[str]
    computes_names: bool
    caught: frozenset[str]


class Surveyor:
    """Describes values as text, and follows the functions, classes and modules among them.

    `found` has a description of each name, by the class, module or global scope that has it;
    `codes` are those whose names were followed.
    """

    def __init__(self, scope: Scope, results: dict[int, object]) -> None:
        self.scope = scope
        self.traced_lines = frozenset(place.rpartition(" ")[0] for place in scope.traced)
        self.found: dict[str, dict[str, str]] = {}
        self.labels: dict[int, str] = {}  # of classes, modules and scopes, by id
        self.taken: dict[str, int] = {}  # how many have the same label
        self.alive: list[object] = []  # so that no id is used again
        self.classes: dict[str, type] = {}  # by label
        self.active: set[int] = set()  # values that are being described
        self.count = 0
        self.waiting: deque[Callable[[], None]] = deque()
        self.followed: set[int] = set()  # functions, by id
        self.run: set[int] = set()  # functions whose code is described, by id
        self.codes: list[FollowedCode] = []
        self.constants: set[str] = set()  # names of functions with parameters, assumed constant
        self.results = results  # of functions that are assumed constant, by id
        self.is_caught = False  # whether Dynamo may not tell of the functions that are described,
        self.is_unseen = False  # or run them by itself,
        self.is_read = True  # and whether code names them
        self.environment = EnvironmentReads()

    def follow(self) -> None:
        """Describe what the functions, classes and modules that were found lead to, in turn."""
        while self.waiting:
            self.waiting.popleft()()

    def describe(self, value: object, *, deep: bool = False) -> str:
        """Return a text that is the same in another process if the value is.

        Values that no guard of Dynamo covers are described `deep`: with all of their parts.
        """
        self.count += 1
        if self.count > MAX_DESCRIPTIONS:
            raise UnsupportedError("the program looks up too much to compare it")
        if is_environment(value):
            self.environment.keys = None
        kind = type(value)
        if kind in LITERALS or kind in TORCH_VALUES:
            return f"{kind.__name__} {value!r}"
        if id(value) in self.active:
            return "a part of itself"
        self.active.add(id(value))
        try:
            return self._describe(value, deep)
        finally:
            self.active.discard(id(value))

    def _describe(self, value: object, deep: bool) -> str:
        match value:
            case ModuleType():
                return self._module(value)
            case type():
                return self._class(value)
            case FunctionType():
                return self._function(value)
            case MethodType():
                return f"method {self.describe(value.__func__)} {self._class(type(value.__self__))}"
            case staticmethod() | classmethod():
                return f"{type(value).__name__} {self.describe(value.__func__, deep=deep)}"
            case property():
                return f"property {self._sequence((value.fget, value.fset, value.fdel), deep)}"
            case functools.partial():
                parts = (value.func, value.args, value.keywords)
                return f"partial {self._sequence(parts, deep)}"
            case enum.Enum():
                label, inner = self._class(type(value)), self.describe(value.value, deep=True)
                return f"{label} {value.name} {inner}"
            case torch.Tensor():
                return self._class(type(value))
        if isinstance(value, BUILTIN):
            return self._builtin(value)
        return self._object(value, deep)

    def _builtin(self, value: object) -> str:
        owner = getattr(value, "__self__", None)
        names = [getattr(value, word, None) for word in ("__module__", "__qualname__")]
        text = f"{type(value).__name__} {names[0]} {names[1]}"
        if owner is None or isinstance(owner, ModuleType):
            return text
        return f"{text} {self._class(owner if isinstance(owner, type) else type(owner))}"

    def _object(self, value: object, deep: bool) -> str:
        """Describe an instance of a class: the class and, if `deep`, its parts."""
        text, attributes = self._class(type(value)), getattr(value, "__dict__", {})
        inner = [attributes[word] for word in WRAPPED_ATTRIBUTES if word in attributes]
        if inner and is_own_class(type(value)):
            text = f"{text} of {self._sequence(inner, deep)}"
        if isinstance(value, (set, frozenset)) and is_constant(value):
            return f"{text} {[*value]}"  # in an order that may differ
        if not deep:
            return text
        if isinstance(value, (list, tuple)):
            text = f"{text} {self._sequence(value, deep)}"
        elif isinstance(value, (set, frozenset)):
            ordered = sorted(value, key=_order)
            text = f"{text} {self._sequence(ordered, deep)}"
        elif isinstance(value, (dict, types.MappingProxyType)):
            items = [x for item in value.items() for x in item]
            text = f"{text} {self._sequence(items, deep)}"
        if is_own_class(type(value)) or isinstance(value, torch.nn.Module):
            return text
        known = sorted(k for k in attributes if self._is_read(k))
        return f"{text} {[(k, self.describe(attributes[k], deep=deep)) for k in known]}"

    def _sequence(self, values: Iterable[object], deep: bool) -> str:
        return f"({', '.join([self.describe(x, deep=deep) for x in values])})"

    def _is_read(self, name: str) -> bool:
        if name in self.scope.names:
            return True
        # names with three underscores are Dynamo's
        return self.scope.computes_names and name not in UNREAD and not name.startswith("___")

    def _named(self, name: str, value: object, *, deep: bool = False) -> str:
        """Describe the value of a name."""
        if (constant := constant_function(value)) is not None and constant.__code__.co_varnames:
            self.constants.add(name)
        before = self.is_caught, self.is_unseen, self.is_read
        self.is_caught = name in self.scope.caught or name in RAISING
        self.is_unseen = name in UNSEEN
        self.is_read = name in self.scope.names or is_special(name)
        try:
            return self.describe(value, deep=deep)
        finally:
            self.is_caught, self.is_unseen, self.is_read = before

    def _label(self, value: object, name: str) -> tuple[str, bool]:
        """Return the text that stands for an object, and whether it is new."""
        label = self.labels.get(id(value))
        if label is not None:
            return label, False
        number = self.taken[name] = self.taken.get(name, 0) + 1
        label = self.labels[id(value)] = name if number == 1 else f"{name} {number}"
        self.alive.append(value)
        return label, True

    def _module(self, module: ModuleType) -> str:
        label, is_new = self._label(module, f"module {module.__name__}")
        if is_new:
            self.waiting.append(lambda: self._describe_module(label, module))
        return label

    def _describe_module(self, label: str, module: ModuleType) -> None:
        """Describe the attributes of a module that the code names."""
        texts = self.found.setdefault(label, {"": str(getattr(module, "__file__", None))})
        attributes = vars(module)
        # modules have sources: Dynamo guards their attributes of computed names, `__getattr__` too
        for name in sorted(self.scope.names & attributes.keys()):
            if module is not os or not is_environment(attributes[name]):  # see `note_reads`
                texts[name] = self._named(name, attributes[name])

    def _class(self, cls: type) -> str:
        label, is_new = self._label(cls, f"class {cls.__module__}.{cls.__qualname__}")
        if is_new:
            self.classes[label] = cls
            if not cls.__flags__ & IMMUTABLE_TYPE_FLAG:
                self.waiting.append(lambda: self._describe_class(label, cls))
        return label

    def _describe_class(self, label: str, cls: type) -> None:
        """Describe the order of its bases, and its own attributes that the code or Python reads."""
        check_class(cls)
        bases = [self._class(base) for base in cls.__mro__]
        texts = self.found.setdefault(label, {"": f"{bases} {self._class(type(cls))}"})
        attributes, is_own, structure = vars(cls), is_own_class(cls), structure_of(cls)
        for name in sorted(attributes):
            if is_special(name) or name in structure or self._is_read(name):
                texts[name] = self._named(name, attributes[name], deep=not is_own)

    def _function(self, function: FunctionType) -> str:
        code = function.__code__
        cells = [c.cell_contents for c in function.__closure__ or () if not _is_empty(c)]
        if code.co_filename == WRAPPER_FILE:
            return f"call {self._sequence(cells, deep=False)}"
        line = code_line(code)
        traced = line in self.traced_lines and code_place(code) in self.scope.traced
        released = is_released(code.co_filename)
        if code.co_filename.startswith(DYNAMO) and len(cells) == 1:
            return self.describe(cells[0])  # Dynamo wraps methods of modules
        label, is_new = self._label(function, f"function {line}")
        texts = self.found.setdefault(f"functions of {function.__module__}", {})
        if is_new and released:
            texts[label] = self._sequence(cells, deep=False)
        unseen = self.is_caught or (self.is_unseen and is_own_file(code.co_filename))
        follows = traced or (unseen and not released)
        if follows and id(function) not in self.followed:
            self.followed.add(id(function))
            self.waiting.append(lambda: self._follow_function(function, traced))
        is_run = follows or (self.is_read and not released)
        if is_run and id(function) not in self.run:
            self.run.add(id(function))
            texts[f"code of {label}"] = self._code(function, cells)
        return label

    def _code(self, function: FunctionType, cells: Sequence[object]) -> str:
        """Describe what a function does."""
        if is_constant_function(function) and not self.is_caught:
            return self._constant_result(function)
        read = {**vars(function), **{name: getattr(function, name) for name in FUNCTION_NAMES}}
        attributes = [read[k] for k in sorted(read) if k in self.scope.names]
        parts = (function.__defaults__, function.__kwdefaults__, cells, attributes)
        return f"{code_place(function.__code__)} {self._sequence(parts, deep=True)}"

    def _follow_function(self, function: FunctionType, traced: bool) -> None:
        """Describe the global variables that a function reads, and the modules that it imports."""
        code, scope = function.__code__, function.__globals__
        names = code_names(code)
        self.codes.append((code, traced))
        if traced:
            check_code(code)
        texts = self.found.setdefault(self._label(scope, f"names of {_name(scope)}")[0], {})
        aliases: set[str] = set()
        for name in sorted(names.names):
            for holder in (scope, vars(builtins)):
                if name in holder:
                    if is_environment(holder[name]):
                        aliases.add(name)
                    else:
                        texts[name] = self._named(name, holder[name])
                    break
        for module in _imported(names.imports, scope):
            self.describe(module)
        self.environment.note_reads(code, aliases)

    def _constant_result(self, function: FunctionType) -> str:
        """Describe the result of a function that Dynamo calls once, while it traces."""
        try:
            inspect.signature(function).bind()
        except TypeError as error:
            name = function.__qualname__
            raise UnsupportedError(f"the result of {name} is assumed to be constant") from error
        if id(function) not in self.results:
            self.results[id(function)] = function()
        if not is_constant(self.results[id(function)]):
            raise UnsupportedError(f"{function.__qualname__} returns an object")
        return self.describe(self.results[id(function)], deep=True)

    def check_constants(self) -> None:
        """Raise UnsupportedError if traced code may give arguments to a constant function."""
        for name in sorted(self.constants):
            if not all(
                calls_without_arguments(code, name) for code, traced in self.codes if traced
            ):
                raise UnsupportedError(f"the result of {name} is assumed to be constant")

    def describe_abstract_classes(self) -> None:
        """Describe which of the classes were registered with abstract classes.

        Raises UnsupportedError for a class whose own code decides what its instances are.
        """
        known = {id(cls): label for label, cls in self.classes.items()}
        seen, abstract = set[int](), list[type]()
        for cls in self.classes.values():
            check = type(cls).__instancecheck__
            if isinstance(check, FunctionType) and not is_released(check.__code__.co_filename):
                raise UnsupportedError(f"{cls.__name__} has an __instancecheck__ of the user")
            if isinstance(cls, ABCMeta):
                abstract.append(cls)
        for cls in abstract:  # grows while it is walked
            if id(cls) in seen:
                continue
            seen.add(id(cls))
            abstract += type.__subclasses__(cls)
            labels = sorted(known[id(c)] for c in registered_classes(cls) if id(c) in known)
            if labels:
                name = f"{cls.__module__}.{cls.__qualname__}"
                texts = self.found.setdefault("registered", {})
                texts[name] = f"{texts.get(name, '')}{labels}"


def _order(value: object) -> str:
    """Return a text by which to sort the elements of a set."""
    if isinstance(value, FunctionType):
        return code_line(value.__code__)
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    return repr(value) if type(value) in LITERALS else type(value).__qualname__


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  (it raises)
    except ValueError:
        return True
    return False


def _name(scope: Namespace) -> str:
    return str(scope.get("__name__"))


def _imported(names: Iterable[str], scope: Namespace) -> Iterator[ModuleType]:
    """Yield the modules that code may import by these names, absolutely or from its package."""
    package = str(scope.get("__package__") or "").split(".")
    prefixes = ["", *(".".join(package[:k]) + "." for k in range(1, len(package) + 1))]
    for name in names:
        for prefix in prefixes:
            if isinstance(module := sys.modules.get(prefix + name), ModuleType):
                yield module


BUILTIN = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
)
FUNCTION_NAMES = ("__name__", "__qualname__", "__doc__", "__annotations__")
# of `functools.cache`, `cached_property`, `singledispatchmethod`
WRAPPED_ATTRIBUTES = ("__wrapped__", "func", "dispatcher")
