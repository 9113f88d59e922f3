"""Make a failing program small: fewer statements, simpler arguments, smaller sizes."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from suites.fuzz.program import Input, Program
from suites.fuzz.run import Variant

Case = tuple[Program, Variant]
SMALL = (2, 3, 1, 5, 4)
PLAIN = (
    "torch.randn(())",
    "torch.randn((3, ))",
    "torch.randn((3, 4, ))",
    "torch.randn((2, 3, 4, ))",
)


def shrink(case: Case, fails: Callable[[Program, Variant], bool], seconds: float) -> Case:
    """Return a smaller case that fails too; `fails` is false for one that eager refuses."""
    end = time.monotonic() + seconds
    found = True
    while found:
        found = False
        for step in STEPS:
            while time.monotonic() < end:
                tried = (c for c in step(case) if c != case and time.monotonic() < end)
                smaller = next((c for c in tried if fails(*c)), None)
                if smaller is None:
                    break
                case, found = smaller, True
    return case


def fewer_sizes(case: Case) -> Iterator[Case]:
    program, variant = case
    for k in range(len(program.sizes)):
        if len(program.sizes) > 1:
            yield replace(program, sizes=program.sizes[k : k + 1]), variant
    for k in range(len(program.sizes)):
        if len(program.sizes) > 2:
            yield replace(program, sizes=program.sizes[:k] + program.sizes[k + 1 :]), variant


def fewer_results(case: Case) -> Iterator[Case]:
    program, variant = case
    if len(program.results) > 1:
        for name in program.results:
            yield replace(program, results=(name,)), variant
        for k in range(len(program.results)):
            results = program.results[:k] + program.results[k + 1 :]
            yield replace(program, results=results), variant


def earlier_results(case: Case) -> Iterator[Case]:
    program, variant = case
    for k, s in enumerate(program.statements):
        if s.result is not None and (s.result,) != program.results:
            statements = program.statements[: k + 1]
            yield replace(program, statements=statements, results=(s.result,)), variant


def fewer_statements(case: Case) -> Iterator[Case]:
    """Drop half, a quarter, ... of the statements; what they made is replaced by what they read."""
    program, variant = case
    count = len(program.statements)
    needed = _live(program)
    if len(needed) < count:
        yield _without(program, [k for k in range(count) if k not in needed]), variant
    length = count // 2
    while length:
        for start in range(count - length, -1, -length):
            yield _without(program, range(start, start + length)), variant
        length //= 2
    for k, s in enumerate(program.statements):
        if s.result is not None:
            for name in (x.name for x in program.inputs):
                smaller = _drop(program, k).renamed(s.result, name)
                yield smaller, variant


def _live(program: Program) -> list[int]:
    """Return the statements whose results are read, or that write."""
    wanted, kept = set(program.results), []
    for k, s in reversed(list(enumerate(program.statements))):
        if s.result is None or s.result in wanted:
            wanted.update(s.reads)
            kept.append(k)
    return kept


def _without(program: Program, dropped: "range | list[int]") -> Program:
    for k in sorted(dropped, reverse=True):
        s = program.statements[k]
        program = _drop(program, k)
        if s.result is not None and s.reads:
            program = program.renamed(s.result, s.reads[0])
    return program


def _drop(program: Program, k: int) -> Program:
    return replace(program, statements=program.statements[:k] + program.statements[k + 1 :])


def fewer_scopes(case: Case) -> Iterator[Case]:
    program, variant = case
    plain = tuple(replace(s, scopes=()) for s in program.statements)
    yield replace(program, statements=plain), variant
    for k, s in enumerate(program.statements):
        for scope in s.scopes:
            scopes = tuple(x for x in s.scopes if x != scope)
            statements = list(program.statements)
            statements[k] = replace(s, scopes=scopes)
            yield replace(program, statements=tuple(statements)), variant


def fewer_options(case: Case) -> Iterator[Case]:
    program, variant = case
    yield program, Variant()
    yield program, replace(variant, threads=1)
    yield program, replace(variant, canaries="")
    yield program, replace(variant, exact=())
    for option in variant.options:
        yield program, replace(variant, options=tuple(o for o in variant.options if o != option))


def simpler_inputs(case: Case) -> Iterator[Case]:
    program, variant = case
    text = " ".join([*(s.text for s in program.statements), *(x.text for x in program.inputs)])
    read = set(re.findall(r"\bx\d+\b", text)) | set(program.results)
    used = tuple(x for x in program.inputs if x.name in read)
    yield replace(program, inputs=used or program.inputs[:1]), variant
    if any(x.mode for x in program.inputs):
        plain = tuple(replace(x, mode="") for x in program.inputs)
        yield replace(program, inputs=plain), variant
    yield replace(program, tangents="dense"), variant
    for k, x in enumerate(program.inputs):
        choices = [replace(x, mode="")] if x.mode else []
        choices += [replace(x, mode="leaf")] if x.mode == "nonleaf" else []
        choices += [replace(x, text=t) for t in _simpler_texts(x)]
        for y in choices:
            inputs = (*program.inputs[:k], y, *program.inputs[k + 1 :])
            yield replace(program, inputs=inputs), variant


def _simpler_texts(x: Input) -> Iterator[str]:
    if x.text in PLAIN:
        yield from PLAIN[: PLAIN.index(x.text)]
        return
    yield from PLAIN
    inner = re.match(r"\((.*\))\)(\[|\.expand|\.permute)", x.text)
    if inner:
        yield inner[1]
    yield re.sub(r"\.to\(torch\.(bfloat16|float16|float64)\)", "", x.text)
    yield re.sub(r"\b[248]\b(?=,)", "3", x.text)


def smaller_sizes(case: Case) -> Iterator[Case]:
    program, variant = case
    for k, sizes in enumerate(program.sizes):
        for j, n in enumerate(sizes):
            for m in SMALL[: SMALL.index(n)] if n in SMALL else SMALL:
                new = (*sizes[:j], m, *sizes[j + 1 :])
                yield (
                    replace(program, sizes=(*program.sizes[:k], new, *program.sizes[k + 1 :])),
                    variant,
                )


STEPS: tuple[Callable[[Case], Iterator[Case]], ...] = (
    fewer_sizes,
    fewer_results,
    fewer_statements,
    earlier_results,
    fewer_scopes,
    fewer_options,
    simpler_inputs,
    smaller_sizes,
)
