"""The variants of a backward for gradients with other strides."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

from torch import Tensor

from tofuse.capture.aot.tangent_layouts import TangentLayouts
from tofuse.capture.lower.convert import CapturedGraph
from tofuse.dispatch.dispatcher import NEW_KEY, Dispatcher
from tofuse.driver.context import CompileContext
from tofuse.errors import TofuseWarning
from tofuse.runtime.execute import CompiledPlan

Strides = tuple[int, ...]


def specialize_strides(
    run: CompiledPlan,
    expected: Mapping[int, Strides],
    tangents: Callable[[], TangentLayouts],
    compile_backward: Callable[[CapturedGraph], CompiledPlan],
    context: CompileContext,
    record: Callable[[str], None],
) -> CompiledPlan:
    """Return a backward that is compiled again for gradients with other strides, four at most.

    `expected` has the strides for which `run` was compiled, by argument; it copies arguments that
    have others. The first call with other strides compiles, so that all have the same bits.
    `record` receives the reason for each program.
    """

    def strides_of(args: list[object]) -> tuple[Strides, ...] | None:
        for k, strides in expected.items():
            if args[k].stride() != strides:  # type: ignore[attr-defined]  # they are tensors
                break
        else:
            return None
        found = tuple(_significant_strides(args[k], s) for k, s in expected.items())
        return None if found == tuple(expected.values()) else found

    def make(args: list[object]) -> tuple[CompiledPlan, str]:
        strides = dict(zip(expected, strides_of(args) or (), strict=True))
        try:
            variant = compile_backward(tangents().with_strides(strides))
        except Exception as error:
            context.raise_if_fatal(error)
            message = f"tofuse copies gradients to other strides: {error}"
            warnings.warn(message, TofuseWarning, stacklevel=2)
            return run, f"gradients are copied to other strides: {error}"
        return variant, f"gradients have the strides {', '.join(map(str, strides.values()))}"

    dispatcher = Dispatcher(run, record)
    dispatcher.specialize(strides_of, make, NEW_KEY)
    return dispatcher


def _significant_strides(tensor: object, expected: Strides) -> Strides:
    """Return the strides, with the expected stride for extents of 1: it does not matter there."""
    assert isinstance(tensor, Tensor)
    if not tensor.numel():
        return expected  # a stride of 0 would read an element that is not there
    triples = zip(tensor.shape, tensor.stride(), expected, strict=True)
    return tuple(e if n == 1 else s for n, s, e in triples)
