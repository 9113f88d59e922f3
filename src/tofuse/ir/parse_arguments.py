"""Parse the text of call arguments and of size expressions."""

from __future__ import annotations

import re

from tofuse.ir.call_arguments import (
    AFTER,
    CallArgument,
    CallArguments,
    Device,
    OperandRef,
    TensorRef,
    TorchConstant,
)
from tofuse.ir.dims import SymDim
from tofuse.ir.line_reader import END, LineReader
from tofuse.ir.size_expression import SIZE_FUNCTIONS, SizeExpression, SizeTerm, apply_function
from tofuse.ir.types import DType


def parse_arguments(text: str) -> CallArguments:
    """Parse the `repr` of a call's arguments. Raises ParseError."""
    return read_arguments(LineReader(1, text), END)


def read_arguments(line: LineReader, close: str) -> CallArguments:
    """Consume arguments, and the sign that closes them."""
    found = line.items(close, lambda: ((line.match(_NAME) or "")[:-1], _argument(line)))
    positional = tuple(a for name, a in found if not name)
    keyword = tuple((name, a) for name, a in found if name and name != AFTER)
    after = next((a for name, a in found if name == AFTER), ())
    references = after if isinstance(after, tuple) else (after,)
    if not all(isinstance(a, (OperandRef, TensorRef)) for a in references):
        raise line.error(f"a list of tensors expected after {AFTER}=")
    return CallArguments(positional, keyword, references)  # type: ignore[arg-type]  # checked


def read_size(line: LineReader) -> SizeTerm:
    """Consume a size expression: operands with one sign between each two."""
    total = _term(line)
    while (sign := line.match(_SIGN)) is not None:
        total = apply_function(sign, total, _term(line))
    return total


def _argument(line: LineReader) -> CallArgument:
    if line.skip("["):
        return tuple(line.items("]", lambda: _argument(line)))
    start, value = line.at, _operand(line)
    if line.match(_SIGN) is None:
        return value
    line.at = start
    return read_size(line)


def _operand(line: LineReader) -> CallArgument:
    if line.skip("("):
        size = read_size(line)
        line.expect(")")
        return size
    if line.skip("$"):
        return OperandRef(line.number())
    start, word = line.at, line.peek() or ""
    if word.startswith("t_") and word.isidentifier():
        return TensorRef(line.word())
    if word in _FUNCTIONS and line.skip(word) and line.skip("("):
        return apply_function(word, *line.items(")", lambda: read_size(line)))
    if word == "complex" and line.skip(word) and line.skip("("):
        parts = line.items(")", line.real)
        if len(parts) == 2:
            return complex(*parts)
    elif word == "torch.device" and line.skip(word) and line.skip("("):
        name = line.constant()
        if isinstance(name, str) and line.skip(")"):
            return Device(name)
    elif word.startswith("torch.") and word[len("torch.") :].isidentifier():
        return TorchConstant(line.word().removeprefix("torch."))
    else:
        line.at = start
        value = line.constant()
        if not isinstance(value, DType):
            return value
    raise line.error("an argument of a call expected", start)


def _term(line: LineReader) -> SizeTerm:
    start, value = line.at, _operand(line)
    if isinstance(value, (bool, int, float, SymDim, SizeExpression)):
        return value
    raise line.error("a size expected", start)


_NAME = re.compile(r"[A-Za-z_]\w*=")
_SIGN = re.compile(r"(?://|\*\*|[+*/%])(?= )")
_FUNCTIONS = frozenset(name for name in SIZE_FUNCTIONS if name.isidentifier())
