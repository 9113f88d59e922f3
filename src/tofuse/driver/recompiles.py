"""Explain recompilations: what changed, the user's line, and what to write."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from types import CodeType

from tofuse.capture.dynamo.graph_breaks import WRAPPER_FILE, GraphBreak, graph_breaks
from tofuse.report.recompile_report import GraphBreakReport, Recompile, RecompileReport
from tofuse.torch_internals.dynamo import guard_failures


def explain_recompiles() -> RecompileReport:
    """Return why functions were compiled again, or run in parts, since the process began.

    It lists all functions that `tofuse.compile` and `torch.compile` captured, with the value that
    changed, the user's line and what to write; `torch.compiler.reset()` clears it. Functions with
    `capture="trace"` are not listed.
    """
    recompiles = [r for code, failures in guard_failures.items() for r in _causes(code, failures)]
    return RecompileReport(tuple(recompiles), tuple(map(_graph_break, graph_breaks())))


def _causes(code: CodeType, failures: Sequence[str]) -> Iterator[Recompile]:
    """Yield the cause of each recompilation of a function.

    It is what differs from the program used last, or from the next one that differs in something
    new: a model in training mode also differs from its program for `eval()`.
    """
    known: set[str] = set()
    for group in _groups(failures):
        found = [_recompile(code, failure) for failure in group]
        cause = next((r for r in found if r.subject not in known), found[0])
        known.add(cause.subject)
        yield cause


def _groups(failures: Sequence[str]) -> Iterator[list[str]]:
    """Split the failures by recompilation: one has a failure for each earlier program.

    The program used last comes first. The program of the previous recompilation is new to the
    list: each group has one that is.
    """
    group: list[str] = []
    in_group: set[str] = set()
    known: set[str] = set()
    has_new = False
    for failure in failures:
        program = failure.partition(":")[0]
        is_new = program not in known
        if program in in_group or (is_new and has_new):
            yield group
            group, in_group, has_new = [], set(), False
        group.append(failure)
        in_group.add(program)
        known.add(program)
        has_new |= is_new
    if group:
        yield group


def _recompile(code: CodeType, failure: str) -> Recompile:
    guard, _, stack = failure.partition(": ")[2].partition("\nUser stack trace:")
    condition, _, comment = guard.partition(" # ")
    condition = condition.partition(". Guard failed on a parameter")[0].strip()
    condition = MEMBER.sub(r".\1", condition.replace("function.__self__", "self"))
    change, todo = next(
        (rule.explain(found) for rule in RULES if (found := rule.pattern.fullmatch(condition))),
        (condition, ""),
    )
    return Recompile(_function(code), change, _line(stack, comment), todo)


def _function(code: CodeType) -> str:
    """Return the function's name and place; a wrapper of ours is named after what it calls."""
    if code.co_filename == WRAPPER_FILE:
        return re.sub(r"_\d+$", "", code.co_name)
    resumed = re.fullmatch(r"torch_dynamo_resume_in_(.*)_at_(\d+)", code.co_name)
    name = f"{resumed[1]} after line {resumed[2]}" if resumed else code.co_name
    return f"{name} ({PurePath(code.co_filename).name}:{code.co_firstlineno})"


def _line(stack: str, comment: str) -> str:
    """Return the user's line of a guard, from the stack or else from the guard's comment."""
    frames = FRAME.findall(stack)
    if frames:
        file, number = frames[-1]
        return _source(file, int(number))
    lines = COMMENT.findall(comment)
    if not lines:
        return ""
    source, file, number = lines[-1]  # the others say where a size is first used
    return f"{PurePath(file).name}:{number}  {source.strip()}"


def _source(file: str, number: int) -> str:
    return f"{PurePath(file).name}:{number}  {linecache.getline(file, number).strip()}".strip()


def _graph_break(broken: GraphBreak) -> GraphBreakReport:
    line = "" if broken.frame is None else _source(broken.frame.filename, broken.frame.lineno or 0)
    todo = " Or: ".join(broken.hints)
    if broken.reason.startswith("generic_jump"):
        return GraphBreakReport(line, "a branch depends on the values of a tensor", BRANCH)
    return GraphBreakReport(line, broken.reason, todo)


@dataclass(frozen=True)
class _Rule:
    """Explains guards of one form: returns what changed, and what to write."""

    pattern: re.Pattern[str]
    explain: Callable[[re.Match[str]], tuple[str, str]]


def _tensor_property(found: re.Match[str]) -> tuple[str, str]:
    tensor, kind, axis, before, after = found.groups()
    name = TENSOR_PROPERTIES.get(kind, kind)
    place = f"{tensor}.{name}" if axis is None else f"{tensor}.{name}({axis})"
    todo = TENSOR_ADVICE.get(kind, "Each of them gets a program of its own.")
    change = f"{place} was {before}" if after is None else f"{place}: {before}, then {after}"
    return change, todo.format(tensor=tensor, axis=axis)


def _value(found: re.Match[str]) -> tuple[str, str]:
    name, value = _plain_name(found[1]), found[2]
    if name.endswith(".training"):
        return f"{name} was {value}", "Nothing: train() and eval() get a program each."
    if not NUMBER_TEXT.fullmatch(value):
        return f"{name} was {value}", "Nothing if there are few values: each gets a program."
    if name.startswith("self."):
        return f"{name} was {value}", f"Make it a buffer: register_buffer, torch.tensor({value})."
    return f"{name} was {value}", NUMBER.format(value=value)


def _plain_name(text: str) -> str:
    """Return a variable's name without Dynamo's dictionaries of locals and globals."""
    return re.sub(r"\b[LG]\['(\w+)'\]", r"\1", text)


BRANCH = (
    "Compute both sides and choose with torch.where, or use torch.cond. Otherwise the parts before "
    "and after are compiled separately."
)
TENSOR_PROPERTIES = {"size": "size", "stride": "stride", "dtype": "dtype", "rank": "dim()"}
TENSOR_ADVICE = {
    "size": "Nothing if it occurs once: the next program takes any size. To have that one from the "
    "start, compile with dynamic=True, or call torch._dynamo.mark_dynamic({tensor}, {axis}).",
    "stride": "Pass {tensor}.contiguous(), if the layouts need no program each.",
    "dtype": "Convert {tensor} before the call, if the dtypes need no program each.",
    "requires_grad": "Nothing: calls with and without gradients get a program each.",
}
NUMBER_TEXT = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?j?")
NUMBER = (
    "Nothing if it occurs once: a number that has changed is an argument from then on. One for "
    "whose values there are many programs may be a tensor: torch.tensor({value})."
)
MEMBER = re.compile(r"\._(?:parameters|buffers|modules)\['(\w+)'\]")
FRAME = re.compile(r'^\s*File "(.*)", line (\d+), in ', re.MULTILINE)
COMMENT = re.compile(r"(?:^|\) and )\s*(.*?)  # (\S+):(\d+) in ")
NEW_OBJECT = (
    "Make the object once, outside of the call: a lambda or class that each call makes is new."
)
RULES = (
    _Rule(
        re.compile(
            r"tensor '(.*)' (\w+) mismatch(?: at index (\d+))?\. "
            r"expected (?:\w+=)?(.*?)(?:, actual (?:\w+=)?(.*?))?\.?"
        ),
        _tensor_property,
    ),
    _Rule(
        re.compile(r"tensor '(.*)' (.* mismatch)\..*"),
        lambda found: (f"{found[1]}: {found[2]}", "Each of them gets a program of its own."),
    ),
    _Rule(
        re.compile(r"GLOBAL_STATE changed: (.*)"),
        lambda found: (
            f"{found[1].strip().replace('_', ' ')} changed",
            "Nothing: each setting gets a program, as training and inference do.",
        ),
    ),
    _Rule(
        re.compile(r"len\((.*)\) == (\d+)"),
        lambda found: (
            f"{_plain_name(found[1])} had {found[2]} elements",
            "Stack the elements, or pad them to a fixed number, if each number needs no program.",
        ),
    ),
    _Rule(
        re.compile(r"___check_type_id\((.*), \d+\), type=<class '(.*)'>"),
        lambda found: (
            f"{_plain_name(found[1])} was of type {found[2].rpartition('.')[2]}",
            "Pass objects of one type, if the types need no program each.",
        ),
    ),
    _Rule(
        re.compile(r"___check_(?:obj|type)_id\((.*?), .*"),
        lambda found: (f"{_plain_name(found[1])} was another object", NEW_OBJECT),
    ),
    _Rule(
        re.compile(r"(.*(?:size|stride)\(\).*)"),
        lambda found: (
            f"the sizes no longer fit the program: it needs {_plain_name(found[1])}",
            "The line makes a choice by a size; compute the same for all sizes, if that is cheap.",
        ),
    ),
    _Rule(re.compile(r"(\S+) == ([^<>=]+)"), _value),
)
