"""Random programs made of the parts in `parts.txt`; one part may change between processes."""

from __future__ import annotations

import random
import textwrap
from dataclasses import dataclass
from pathlib import Path

HEADER = """\
import abc, collections, contextlib, dataclasses, enum, functools, math, operator, os, sys, types
import typing
import torch
import torch.nn.functional as F

LAYER_NORM, TORCH_LAYER_NORM, GELU = torch.nn.LayerNorm.forward, torch.layer_norm, F.gelu
SIN, SQRT, TRUEDIV = torch.sin, math.sqrt, operator.truediv
"""
# How the second process gets the other definition. "nothing": it gets the same.
CHANGES = ("nothing", "nothing", "edit", "flag", "folder", "older file")


@dataclass(frozen=True)
class Part:
    """A definition, its changed form, an expression of the tensor `x`, and code that undoes it."""

    name: str
    first: str
    changed: str
    expression: str
    undo: str

    def numbered(self, number: str) -> Part:
        """Return the part with its number in all names."""
        texts = (self.first, self.changed, self.expression, self.undo)
        return Part(self.name, *(text.replace("%", number) for text in texts))


@dataclass(frozen=True)
class Program:
    """The file of a program in the first and in the second process."""

    name: str
    parts: tuple[str, ...]
    change: str
    first: str
    second: str


def read_parts() -> list[Part]:
    """Return the parts of `parts.txt`."""
    blocks = Path(__file__).with_name("parts.txt").read_text().split("\n# ")[1:]
    return [_read_part(block) for block in blocks]


def _read_part(block: str) -> Part:
    title, _, body = block.partition("\n")
    body, _, expression = body.rpartition("\n-> ")
    body, _, undo = f"{body}\n".partition("\nundo\n")
    first, _, changed = f"{body}\n".partition("\n~\n")
    changed = changed or first.replace("2.0", "3.0")
    assert changed != first and expression, title
    return Part(title, first.strip(), changed.strip(), expression.strip(), undo.strip() or "pass")


def random_program(seed: int, parts: list[Part]) -> Program:
    """Return the program of a seed: one to three parts, of which one may change."""
    choice = random.Random(seed)
    drawn = choice.choices(parts, k=choice.randint(1, 3))
    chosen = [part.numbered(f"{seed}_{k}") for k, part in enumerate(drawn)]
    change = choice.choice(CHANGES)
    changing = chosen[choice.randrange(len(chosen))]
    if change == "flag":
        texts = (textwrap.indent(text, "    ") for text in (changing.first, changing.changed))
        flag = 'if os.environ["PHASE"] == "1":\n{}\nelse:\n{}'.format(*texts)
        first = second = _text(chosen, changing, flag)
    else:
        first = _text(chosen, changing, changing.first)
        second = _text(chosen, changing, changing.changed)
    name = f"case{seed}"
    if change == "nothing":
        return Program(name, tuple(p.name for p in chosen), change, first, first)
    names = tuple(f"{p.name}{' (changes)' * (p is changing)}" for p in chosen)
    return Program(name, names, change, first, second)


def _text(parts: list[Part], changing: Part, definition: str) -> str:
    lines = [HEADER, *(definition if p is changing else p.first for p in parts)]
    lines += ["def undo():", *(textwrap.indent(p.undo, "    ") for p in parts)]
    lines.append("def fn(x):")
    lines += [f"    result{k} = {p.expression}" for k, p in enumerate(parts)]
    total = " + ".join(f"result{k}" for k in range(len(parts)))
    lines.append(f"    return torch.tanh({total})")
    return "\n".join(lines) + "\n"
