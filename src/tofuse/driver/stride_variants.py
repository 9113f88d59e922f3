"""The variants of a backward for gradients with other strides."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping

from torch import Tensor

from tofuse.capture.aot.tangent_layouts import TangentLayouts, significant_strides
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

    `expected` has the strides for which `run` was compiled, by argument. The first call with other
    strides compiles, so that all have the same bits. Gradients for which nothing is compiled are
    copied to the expected strides. If these put two elements in one place, as strides of 0 do, the
    gradients are copied to row-major ones, and the backward is compiled for these, too. `record`
    receives the reason for each program.
    """
    own = tuple(expected.values())

    def strides_of(args: list[object]) -> tuple[Strides, ...]:
        for k, strides in expected.items():
            if args[k].stride() != strides:  # type: ignore[attr-defined]  # they are tensors
                return tuple(significant_strides(args[k], s) for k, s in expected.items())
        return own

    def make(args: list[object]) -> tuple[CompiledPlan, str]:
        strides = dict(zip(expected, strides_of(args), strict=True))
        try:
            variant = compile_backward(tangents().with_strides(strides))
        except Exception as error:
            context.raise_if_fatal(error)
            message = f"tofuse copies gradients to other strides: {error}"
            warnings.warn(message, TofuseWarning, stacklevel=2)
            return run_copies, f"gradients are copied to other strides: {error}"
        return variant, f"gradients have the strides {', '.join(map(str, strides.values()))}"

    @functools.cache
    def program_for_copies() -> CompiledPlan:
        layouts = tangents()
        return compile_backward(layouts.row_major()) if layouts.overlap else run

    def run_copies(args: list[object]) -> list[Tensor]:
        return program_for_copies()(args)

    dispatcher = Dispatcher(run_copies, record)
    dispatcher.specialize(strides_of, make, NEW_KEY)
    dispatcher.add_kind(own, run, "the backward was compiled for these gradients")
    return dispatcher
