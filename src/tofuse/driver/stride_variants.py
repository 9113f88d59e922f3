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
    strides compiles, so that all have the same bits. Where no more is compiled, gradients are
    copied to these strides, or to row-major ones if these repeat elements. `record` receives the
    reason for each program.
    """

    def strides_of(args: list[object]) -> tuple[Strides, ...] | None:
        for k, strides in expected.items():
            if args[k].stride() != strides:  # type: ignore[attr-defined]  # they are tensors
                break
        else:
            return None
        found = tuple(significant_strides(args[k], s) for k, s in expected.items())
        return None if found == tuple(expected.values()) else found

    def make(args: list[object]) -> tuple[CompiledPlan, str]:
        strides = dict(zip(expected, strides_of(args) or (), strict=True))
        try:
            variant = compile_backward(tangents().with_strides(strides))
        except Exception as error:
            context.raise_if_fatal(error)
            message = f"tofuse copies gradients to other strides: {error}"
            warnings.warn(message, TofuseWarning, stacklevel=2)
            return general, f"gradients are copied to other strides: {error}"
        return variant, f"gradients have the strides {', '.join(map(str, strides.values()))}"

    @functools.cache
    def row_major() -> CompiledPlan:
        return compile_backward(tangents().row_major())

    def run_or_copy(args: list[object]) -> list[Tensor]:
        return (run if strides_of(args) is None else row_major())(args)

    general = run_or_copy if any(0 in strides for strides in expected.values()) else run
    dispatcher = Dispatcher(general, record)
    dispatcher.specialize(strides_of, make, NEW_KEY)
    return dispatcher
