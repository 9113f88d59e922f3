"""A program that is compiled again for arguments that keep coming in another layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from tofuse.runtime.execute import CompiledPlan

Layout = tuple[int, ...]
VARIANTS = 4  # compiled at most; what lies otherwise still is copied by the first program


@dataclass(eq=False)
class ByLayout:
    """`run`, but from the second call on with arguments that lie otherwise, a program for those.

    `expected` has the strides by the positions of the arguments that are looked at. `run` takes
    any layout too: it copies what lies otherwise. `compile` may answer with `run` itself.
    """

    run: CompiledPlan
    expected: Mapping[int, Layout]
    compile: Callable[[Mapping[int, Layout]], CompiledPlan]
    found: dict[tuple[Layout, ...], CompiledPlan | None] = field(default_factory=dict)

    def __call__(self, args: list[object]) -> list[object]:
        for k, layout in self.expected.items():
            if args[k].stride() != layout:  # type: ignore[attr-defined]  # they are tensors
                return self.other(args)
        return self.run(args)

    def other(self, args: list[object]) -> list[object]:
        """A call with arguments that lie otherwise."""
        layouts = {k: _layout(args[k], layout) for k, layout in self.expected.items()}
        key = tuple(layouts.values())
        if layouts == self.expected:
            return self.run(args)
        if key not in self.found:
            if len(self.found) < VARIANTS:
                self.found[key] = None  # once is no habit
            return self.run(args)
        program = self.found[key]
        if program is None:
            program = self.found[key] = self.compile(layouts)
        return program(args)


def _layout(tensor: object, expected: Layout) -> Layout:
    """The strides of a tensor, those of extents of 1 as expected: no element lies by them."""
    assert isinstance(tensor, torch.Tensor)
    triples = zip(tensor.shape, tensor.stride(), expected, strict=True)
    return tuple(e if n == 1 else s for n, s, e in triples)
