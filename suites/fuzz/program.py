"""A random program as straight-line statements: print it as Python, keep it as JSON, load it."""

import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

import tofuse

# Rounding errors of values in a coarser dtype than the result. The comparison allows a result of
# that dtype, but not a wider one, 8 ulps; and it allows 4 times what these errors change.
INNER_ULPS = 3
Option = bool | str | float | int | None | tuple[str, ...]
Namespace = dict[str, object]
MODULES: Namespace = {
    **{"functools": functools, "itertools": itertools},
    **{"torch": torch, "F": F, "tofuse": tofuse},
}
IMPORTS = """import functools
import itertools

import torch
import torch.nn.functional as F

import tofuse
"""
NAME = re.compile(r"\b[xv]\d+\b")
LOW_PRECISION = re.compile(r"torch\.(float32|float16|bfloat16|complex64)\b")
INNER_CALL = re.compile(r"\b[xv]\d+\.tanh\(\)")
SUBTRACTS = re.compile(r"norm|var|std|cosine|cov\(|softmax|cdist|logsumexp|logcumsumexp")
HALVES = torch.bfloat16, torch.float16
TO_DOUBLE = {"complex64": "torch.complex128"}


@dataclass(frozen=True)
class Input:
    """An argument: `text` makes it, from sizes `s0`, `s1`, ... and from inputs before it.

    `mode` is "leaf" (it requires a gradient), "nonleaf" (a copy of one that does) or "".
    """

    name: str
    text: str
    mode: str = ""


@dataclass(frozen=True)
class Statement:
    """One line inside `with` blocks.

    `rounds`: a tensor that is rounded in that dtype: a new one, or the one named by `written`.
    `operands`: the coarsest dtype of the operands, in which parts of the statement are rounded.
    """

    text: str
    scopes: tuple[str, ...] = ()
    rounds: str = ""
    operands: str = ""
    written: str = ""

    @property
    def result(self) -> str | None:
        name, equals, _ = self.text.partition(" = ")
        return name if equals and NAME.fullmatch(name) else None

    @property
    def reads(self) -> tuple[str, ...]:
        names = NAME.findall(self.text)
        return tuple(names[1:] if self.result else names)


@dataclass(frozen=True)
class Program:
    """A function, its arguments, and the sizes of each call."""

    seed: int
    inputs: tuple[Input, ...]
    statements: tuple[Statement, ...]
    results: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]
    draws: bool = False  # random numbers: not the same as eager's
    tangents: str = "dense"

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    def renamed(self, old: str, new: str) -> "Program":
        """Return the program with each use of a name replaced by another."""
        swap = re.compile(rf"\b{old}\b")
        statements = [
            replace(s, text=swap.sub(new, s.text), written=swap.sub(new, s.written))
            for s in self.statements
        ]
        results = tuple(new if name == old else name for name in self.results)
        return replace(self, statements=tuple(statements), results=results)


def from_json(text: str) -> Program:
    """Return the program that `to_json` wrote."""
    data = json.loads(text)
    return Program(
        data["seed"],
        tuple(Input(**x) for x in data["inputs"]),
        tuple(Statement(**{**s, "scopes": tuple(s["scopes"])}) for s in data["statements"]),
        tuple(data["results"]),
        tuple(tuple(sizes) for sizes in data["sizes"]),
        data["draws"],
        data["tangents"],
    )


def function_source(program: Program, jitter: bool = False) -> str:
    """Return the text of `def program(...)`; `jitter` adds a rounding error to each statement.

    Functions that subtract a mean or the like get one in their operands, too, which changes each
    element of the result by itself: nothing cancels that rounding would not cancel.
    """
    names = ", ".join(x.name for x in program.inputs)
    lines = [f"def program({names}):"]
    for scopes, group in itertools.groupby(program.statements, key=lambda s: s.scopes):
        indent = "    "
        for scope in scopes:
            lines.append(f"{indent}with {scope}:")
            indent += "    "
        lines += [indent + line for s in group for line in statement_lines(s, jitter)]
    lines.append(f"    return ({', '.join(program.results)},)")
    return "\n".join(lines) + "\n"


def statement_lines(s: Statement, jitter: bool) -> list[str]:
    """Return the lines of a statement, with rounding errors if `jitter`."""
    if not jitter or not s.rounds or not (s.written or s.result):
        return [s.text]
    eps, inner = f"torch.finfo({s.rounds}).eps", f"torch.finfo({s.operands or s.rounds}).eps"
    if _eps(s.operands or s.rounds) > _eps(s.rounds):
        inner = f"{INNER_ULPS} * {inner}"
    if s.written:
        x = f"{s.written}.data"  # autograd must not see this write
        return [s.text, f"{x}.copy_(jitter({x}, max({eps}, {inner})))"]
    _, text = s.text.split(" = ", 1)
    text = INNER_CALL.sub(rf"jitter(\g<0>, {inner})", text)
    if SUBTRACTS.search(s.text):
        jittered = NAME.sub(rf"jitter(\g<0>, {inner})", text)
        text = f"mix({text}, {jittered})"
    return [f"{s.result} = jitter({text}, {eps})"]


def _eps(dtype: str) -> float:
    return torch.finfo(getattr(torch, dtype.removeprefix("torch."))).eps


def arguments_source(program: Program, prepare: bool = False) -> str:
    """Return the text of `def make_arguments(...)`, which returns arguments and leaves.

    `prepare` adds a call of `prepare(arguments)`, which may move them to other memory.
    """
    count = len(program.sizes[0])
    names = ", ".join(x.name for x in program.inputs)
    lines = [f"def make_arguments({', '.join(f's{k}' for k in range(count))}):"]
    lines.append(f"    torch.manual_seed({program.seed % 1000})")
    lines += [f"    {x.name} = {x.text}" for x in program.inputs]
    lines += [f"    {names}, = prepare([{names}])"] if prepare else []
    leaves = []
    for x in program.inputs:
        if x.mode:
            # no leaf is a view: without gradients, eager's views of such a leaf require none
            lines.append(f"    {x.name} = {x.name}.detach().requires_grad_()")
            leaves.append(f"{x.name}_leaf" if x.mode == "nonleaf" else x.name)
        if x.mode == "nonleaf":
            lines.append(f"    {x.name}_leaf, {x.name} = {x.name}, {x.name}.clone()")
    lines.append(f"    return [{names}], [{', '.join(leaves)}]")
    return "\n".join(lines) + "\n"


def coarsest_eps(program: Program) -> float:
    """Return the largest `eps` of the dtypes that a program names; autocast's is bfloat16's."""
    text = function_source(program) + arguments_source(program)
    text = text.replace(".half()", "torch.float16").replace(".bfloat16()", "torch.bfloat16")
    text = text.replace("autocast", "torch.bfloat16")
    text += "torch.float32"  # the default
    named = {f"torch.{m}" for m in LOW_PRECISION.findall(text)}
    return max(torch.finfo(d).eps for d in (torch.float32, *HALVES) if str(d) in named)


def double_source(program: Program, jitter: bool = False) -> str:
    """Return the function with float64 in place of narrower types, and without autocast."""
    text = function_source(program, jitter)
    finfo = re.compile(r"torch\.finfo\(torch\.(\w+)\)\.eps")
    text = finfo.sub(lambda m: str(torch.finfo(getattr(torch, m[1])).eps), text)
    text = re.sub(r"\.(float|half|bfloat16)\(\)", ".double()", text)
    text = re.sub(r"torch\.autocast\(.*?\)", "torch.enable_grad()", text)
    return LOW_PRECISION.sub(lambda m: TO_DOUBLE.get(m[1], "torch.float64"), text)


_numbers: Iterator[int] = itertools.count()


def load(source: str, **names: object) -> Namespace:
    """Run the text of a module and return its namespace; Dynamo can show its lines."""
    namespace: Namespace = {**MODULES, **names}
    exec(compile(source, f"<program {next(_numbers)}>", "exec"), namespace)
    return namespace


def load_function(source: str, name: str = "program", **names: object) -> Callable[..., object]:
    """Return one function of a module's text."""
    function = load(source, **names)[name]
    assert callable(function)
    return function


def make_arguments(
    program: Program,
    sizes: Sequence[int],
    prepare: Callable[[list[Tensor]], list[Tensor]] | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """Return fresh arguments for sizes, and the leaves that get a gradient."""
    source = arguments_source(program, prepare is not None)
    made = load_function(source, "make_arguments", prepare=prepare)(*sizes)
    assert isinstance(made, tuple)
    return made[0], made[1]
