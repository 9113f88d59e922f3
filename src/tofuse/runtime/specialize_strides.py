"""Compile a backward again for gradient strides that occur repeatedly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from tofuse.runtime.execute import CompiledPlan

Strides = tuple[int, ...]
MAX_VARIANTS = 4  # compiled programs; `run` copies arguments of other strides


@dataclass(eq=False)
class StrideSpecializer:
    """Call `run`, or from the second call with other argument strides a program for those.

    `expected` maps positions of the checked arguments to their strides. `run` accepts any strides:
    it copies arguments that do not have the expected ones. `compile` may return `run` itself.
    """

    run: CompiledPlan
    expected: Mapping[int, Strides]
    compile: Callable[[Mapping[int, Strides]], CompiledPlan]
    variants: dict[tuple[Strides, ...], CompiledPlan | None] = field(default_factory=dict)

    def __call__(self, args: list[object]) -> list[object]:
        for k, strides in self.expected.items():
            if args[k].stride() != strides:  # type: ignore[attr-defined]  # they are tensors
                return self._call_variant(args)
        return self.run(args)

    def _call_variant(self, args: list[object]) -> list[object]:
        """Call with unexpected strides."""
        strides = {k: _significant_strides(args[k], s) for k, s in self.expected.items()}
        key = tuple(strides.values())
        if strides == self.expected:
            return self.run(args)
        if key not in self.variants:
            if len(self.variants) < MAX_VARIANTS:
                self.variants[key] = None  # compile at the second call
            return self.run(args)
        program = self.variants[key]
        if program is None:
            program = self.variants[key] = self.compile(strides)
        return program(args)


def _significant_strides(tensor: object, expected: Strides) -> Strides:
    """Return the strides, with the expected stride for extents of 1: it does not matter there."""
    assert isinstance(tensor, torch.Tensor)
    triples = zip(tensor.shape, tensor.stride(), expected, strict=True)
    return tuple(e if n == 1 else s for n, s, e in triples)
