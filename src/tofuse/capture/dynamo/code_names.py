"""The names that code looks up, read from its bytecode."""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType

ATTRIBUTE_READERS = frozenset(
    ("getattr", "hasattr", "setattr", "delattr")
)  # the second argument is a name
NAMESPACE_READERS = frozenset(  # they reach attributes or modules that the code does not name
    ("vars", "dir", "globals", "locals", "eval", "exec", "__dict__", "__import__", "import_module")
)
IMPORT = dis.opmap["IMPORT_NAME"]
HANDLER_OPCODES = [  # the last two are of Python 3.10
    code
    for name in ("PUSH_EXC_INFO", "SETUP_FINALLY", "SETUP_WITH")
    if (code := dis.opmap.get(name, 256)) < 256  # others are not in bytecode
]
Instructions = Sequence[dis.Instruction]


@dataclass(frozen=True)
class CodeNames:
    """The names in a code object and in the code nested in it.

    `names` are those of global variables and of attributes. `texts` are its constant texts that may
    name an attribute. `imports` are the names of modules that it may import. It `catches` if it has
    a handler for exceptions, such as a `with`.
    """

    names: frozenset[str]
    texts: frozenset[str]
    imports: tuple[str, ...]
    catches: bool


def code_names(code: CodeType) -> CodeNames:
    """Return the names that a code object looks up, and those of the code nested in it."""
    names, texts, imports = set[str](), set[str](), list[str]()
    catches = False
    for part in nested_codes(code):
        names.update(part.co_names)
        texts.update(word for text in _texts(part.co_consts) for word in text.split("."))
        opcodes = part.co_code[::2]
        if IMPORT in opcodes:
            imports += part.co_names
        catches = catches or any(opcode in opcodes for opcode in HANDLER_OPCODES)
    words = frozenset(word for word in texts if word.isidentifier())
    return CodeNames(frozenset(names), words, tuple(imports), catches)


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and the code of the functions and classes that are defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested_codes(constant)


def _texts(constants: Iterable[object]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, (tuple, frozenset)):
            yield from _texts(constant)


def computes_names(code: CodeType) -> bool:
    """Return whether code may read an attribute whose name is no constant in it."""
    return any(map(_computes_names, nested_codes(code)))


def _computes_names(code: CodeType) -> bool:
    if not NAMESPACE_READERS.isdisjoint(code.co_names):
        return True
    if ATTRIBUTE_READERS.isdisjoint(code.co_names):
        return False
    instructions = list(dis.get_instructions(code))
    loads = [
        k for k, x in enumerate(instructions) if x.argval in ATTRIBUTE_READERS and _loads_name(x)
    ]
    return any(_constant_argument(instructions, k, 1) is None for k in loads)


def constant_keys(code: CodeType, names: frozenset[str]) -> frozenset[str] | None:
    """Return the constant keys under which code reads the mappings or functions of these names.

    Such as "A" in `environ["A"]`, `environ.get("A", 1)`, `"A" in environ` and `getenv("A")`.
    None if a key is no constant, or if the mapping goes elsewhere.
    """
    found: set[str] = set()
    for part in nested_codes(code):
        variables = (*part.co_varnames, *part.co_freevars, *part.co_cellvars)
        if names.isdisjoint((*part.co_names, *variables)):
            continue
        instructions = list(dis.get_instructions(part))
        for k, instruction in enumerate(instructions):
            if not names.isdisjoint(_names_of(instruction)):
                # a local variable, or an import, may have any use
                is_found = instruction.opname in (*GLOBAL_LOADS, "LOAD_ATTR", "LOAD_METHOD")
                key = _constant_key(instructions, k) if is_found else None
                if key is None:
                    return None
                found.add(key)
    return frozenset(found)


def _names_of(instruction: dis.Instruction) -> tuple[str, ...]:
    """Return the names that an instruction reads or writes: some have two local variables."""
    if instruction.opname in ("LOAD_CONST", "KW_NAMES"):
        return ()
    words = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    return tuple(word for word in words if isinstance(word, str))


def calls_without_arguments(code: CodeType, name: str) -> bool:
    """Return whether code does nothing with the value of a name but call it without arguments."""
    for part in nested_codes(code):
        if name not in part.co_names:
            continue
        instructions = [x for x in dis.get_instructions(part) if x.opname not in IDLE]
        for k, instruction in enumerate(instructions):
            if name in _names_of(instruction):
                following = instructions[k + 1 : k + 2]
                is_call = bool(following) and following[0].opname in CALLS and not following[0].arg
                if not is_call or not _loads_name(instruction):
                    return False
    return True


def _constant_key(instructions: Instructions, position: int) -> str | None:
    """Return the constant with which the value loaded at a position is called or indexed."""
    following = instructions[position + 1 : position + 2]
    if following and following[0].opname == "CONTAINS_OP":
        return _contained_constant(instructions, position)
    if following and following[0].opname in ("LOAD_METHOD", "LOAD_ATTR"):
        is_get = following[0].argval == "get"
        return _constant_argument(instructions, position + 1, 0) if is_get else None
    return _constant_argument(instructions, position, 0)


def _contained_constant(instructions: Instructions, position: int) -> str | None:
    """Return the constant on the left of `in`, for the mapping that is loaded at a position."""
    begin = position
    if instructions[position].opname == "LOAD_ATTR":  # as `os.environ`
        begin -= 1
    loads = instructions[begin : position + 1]
    before = instructions[begin - 1 : begin] if begin else []
    if not before or before[0].opname != "LOAD_CONST" or any(x.is_jump_target for x in loads):
        return None
    return before[0].argval if isinstance(before[0].argval, str) else None


def _constant_argument(instructions: Instructions, position: int, index: int) -> str | None:
    """Return an argument of the call of the value that is loaded at a position, or its subscript.

    None if it is no constant text, or if there is a branch before the call. `index` is that of the
    positional argument. The stack is followed: an argument is constant if only the load of a
    constant writes its slot.
    """
    depth, slots = 0, dict[int, object]()
    for instruction in instructions[position + 1 :]:
        if instruction.opname in IDLE:
            continue
        if instruction.opcode in JUMPS or instruction.is_jump_target:
            return None
        if instruction.opname not in STACK_TOP_OPERATIONS and not instruction.opname.startswith(
            "BINARY_"
        ):
            return None
        operands, before = CONSUMER_OPERANDS.get(instruction.opname, instruction.arg), depth
        depth += dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
        if depth <= 0:
            value = slots.get(index)
            consumes = instruction.opname in (*CALLS, *CONSUMER_OPERANDS) and before == operands
            return value if consumes and isinstance(value, str) else None
        slots[depth - 1] = instruction.argval if instruction.opname == "LOAD_CONST" else None
    return None


def _loads_name(instruction: dis.Instruction) -> bool:
    return instruction.opname in (*NAME_LOADS, "LOAD_ATTR", "LOAD_METHOD")


JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
GLOBAL_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
NAME_LOADS = (*GLOBAL_LOADS, "LOAD_DEREF", "LOAD_FAST")
IDLE = ("PUSH_NULL", "CACHE", "EXTENDED_ARG")
CALLS = ("PRECALL", "CALL", "CALL_FUNCTION", "CALL_METHOD")
CONSUMER_OPERANDS = {"BINARY_SUBSCR": 1, "BINARY_OP": 1}  # how many are above the first
_STACK_TOP_NAMES = (
    "LOAD_CONST LOAD_SMALL_INT LOAD_ATTR LOAD_METHOD LOAD_FAST_CHECK LOAD_FAST_BORROW FORMAT_VALUE "
    "FORMAT_SIMPLE BUILD_STRING BUILD_TUPLE BUILD_LIST COMPARE_OP UNARY_NEGATIVE CONTAINS_OP IS_OP"
)
# They read and write the top of the stack alone, as `BINARY_...`.
STACK_TOP_OPERATIONS = frozenset(
    (*NAME_LOADS, *CALLS, *CONSUMER_OPERANDS, *_STACK_TOP_NAMES.split())
)
