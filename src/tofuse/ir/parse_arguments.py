"""Parse the text of call arguments and of size expressions."""

from __future__ import annotations

import ast
import re

from tofuse.errors import ParseError
from tofuse.ir.call_arguments import (
    CallArgument,
    CallArguments,
    Device,
    OperandRef,
    TensorRef,
    TorchConstant,
)
from tofuse.ir.dims import SymDim, symbol
from tofuse.ir.size_expression import SizeExpression, SizeFunction, SizeTerm, apply_function


def parse_arguments(text: str) -> CallArguments:
    """Parse the output of `show_arguments`. Raises ParseError, which shows the text."""
    call = _parse(f"call({_OPERAND.sub(_operand_name, text)})", text)
    if not isinstance(call, ast.Call):
        raise ParseError(f"{text!r} are not the arguments of a call")
    keyword = tuple((k.arg, _argument(k.value)) for k in call.keywords if k.arg is not None)
    if len(keyword) < len(call.keywords):
        raise ParseError(f"{text!r} has an argument without a name")
    return CallArguments(tuple(map(_argument, call.args)), keyword)


def parse_size(text: str) -> SizeTerm:
    """Parse the output of `show_size`. Raises ParseError, which shows the text."""
    return _size(_argument(_parse(text, text)), text)


def _parse(source: str, text: str) -> ast.expr:
    try:
        return ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise ParseError(f"{text!r} are not arguments of a call") from error


def _operand_name(found: re.Match[str]) -> str:
    """Give an operand a name that Python reads and no size has."""
    return found[0] if found[1] is None else f"_{found[1]}"


def _argument(node: ast.expr) -> CallArgument:
    match node:
        case ast.List(items):
            return tuple(map(_argument, items))
        case ast.Constant(bool() | int() | float() | str() | None as value):
            return value
        case ast.Name(name):
            return _name(name)
        case ast.Attribute(ast.Name("torch"), name):
            return TorchConstant(name)
        case ast.Call(
            ast.Attribute(ast.Name("torch"), "device"), [ast.Constant(str() as name)], []
        ):
            return Device(name)
        case ast.Call(ast.Name("complex"), [real, imaginary], []):
            return complex(_number(real), _number(imaginary))
        case ast.Call(ast.Name(function), operands, []) if function in _FUNCTIONS:
            return apply_function(_FUNCTIONS[function], *map(_term, operands))
        case ast.BinOp(left, sign, right) if type(sign) in _SIGNS:
            return apply_function(_SIGNS[type(sign)], _term(left), _term(right))
        case ast.UnaryOp(ast.USub(), ast.Constant() | ast.Name("inf" | "nan") as operand):
            return -_number(operand)
    raise ParseError(f"{ast.unparse(node)!r} is no argument of a call")


def _name(name: str) -> CallArgument:
    if name in ("inf", "nan"):
        return float(name)
    if name.startswith("t_"):
        return TensorRef(name)
    return OperandRef(int(name[1:])) if name[:1] == "_" and name[1:].isdigit() else symbol(name)


def _term(node: ast.expr) -> SizeTerm:
    return _size(_argument(node), ast.unparse(node))


def _size(value: CallArgument, text: str) -> SizeTerm:
    if isinstance(value, (bool, int, float, SymDim, SizeExpression)):
        return value
    raise ParseError(f"{text!r} is no size")


def _number(node: ast.expr) -> int | float:
    value = _argument(node)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ParseError(f"{ast.unparse(node)!r} is no number")
    return value


_OPERAND = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\$(\d+)")  # strings stay as they are
_FUNCTIONS = {f.value: f for f in SizeFunction if not f.is_infix}
_SIGNS: dict[type[ast.operator], SizeFunction] = {
    ast.Add: SizeFunction.ADD,
    ast.Mult: SizeFunction.MUL,
    ast.FloorDiv: SizeFunction.FLOOR_DIV,
    ast.Div: SizeFunction.TRUE_DIV,
    ast.Mod: SizeFunction.MOD,
    ast.Pow: SizeFunction.POW,
}
