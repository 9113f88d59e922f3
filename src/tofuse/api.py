"""The public entry points: compile a function or module, explain what was compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar, overload

import torch
from torch.fx import GraphModule

from tofuse.capture.aot import aot_backend
from tofuse.config import Config, make_config
from tofuse.errors import UnsupportedError
from tofuse.pipeline import compile_graph
from tofuse.report.model import GraphReport, Report
from tofuse.report.text import ReportText
from tofuse.runtime.pool import POOL

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=torch.nn.Module)
OLDEST, NEWEST = (2, 11), (2, 13)


@overload
def compile(target: M, **options: bool | str | int | None) -> M: ...
@overload
def compile(target: Callable[P, R], **options: bool | str | int | None) -> Callable[P, R]: ...
def compile(target, **options):  # type: ignore[no-untyped-def]  # the overloads have the types
    """Compile a function or a module, forward and backward.

    A module comes back as a module of the same class that shares parameters, buffers,
    submodules and hooks with the original; a function as a function. Options are the fields of
    `tofuse.config.Config`. Compilation happens at the first call, and again for new dtypes,
    devices or (unless `dynamic`) shapes.

    Raises TypeError for what is not callable, OptionError for an unknown option and
    UnsupportedError for a torch release outside 2.11 to 2.13.
    """
    return _compile(target, make_config(options), lambda report: None)


def explain(
    target: Callable[P, object], **options: bool | str | int | None
) -> Callable[P, ReportText]:
    """What `compile` makes of a function: `explain(fn)(*args)` gives a report.

    The function is called once with the arguments; the backward is compiled too where an output
    requires grad (gradients are computed but not accumulated). `report.regions`, `.kernels`,
    `.library_calls`, `.verdicts`, `.bytes_before`, `.bytes_after`, `.compile_ms` hold the
    decisions as data; printing the report shows them.
    """
    config = make_config(options)

    def run(*args: P.args, **kwargs: P.kwargs) -> ReportText:
        report = Report()
        compiled = _compile(target, config, report.graphs.append)
        outputs = [t for t in _tensors(compiled(*args, **kwargs)) if t.grad_fn is not None]
        if outputs:
            wanted = [t for t in _tensors((args, kwargs)) if t.requires_grad]
            if isinstance(target, torch.nn.Module):
                wanted += [p for p in target.parameters() if p.requires_grad]
            if wanted:
                ones = [torch.ones_like(t) for t in outputs]
                torch.autograd.grad(outputs, wanted, ones, allow_unused=True)
        return ReportText(report)

    return run


def memory_stats() -> dict[str, int]:
    """The memory pool in numbers: held_bytes, used_bytes, limit_bytes, blocks, hits, misses."""
    return POOL.stats()


def empty_cache() -> int:
    """Give the pool's unused memory back to the system; returns how many bytes that was."""
    return POOL.trim()


def dynamo_backend(gm: GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
    """The backend behind `torch.compile(fn, backend="tofuse")`."""
    return _backend(make_config({}), lambda report: None)(gm, example_inputs)


def _compile(target, config: Config, keep: Callable[[GraphReport], None]):  # type: ignore[no-untyped-def]
    _check_torch()
    if not callable(target):
        raise TypeError(f"tofuse compiles functions and modules, not {type(target).__name__}")
    backend = _backend(config, keep)
    if not isinstance(target, torch.nn.Module):
        return torch.compile(
            target, backend=backend, dynamic=config.dynamic, fullgraph=config.fullgraph
        )
    module = copy.copy(target)  # shares parameters, buffers, submodules and hooks
    module._compiled_call_impl = torch.compile(
        module._call_impl, backend=backend, dynamic=config.dynamic, fullgraph=config.fullgraph
    )
    return module


def _backend(
    config: Config, keep: Callable[[GraphReport], None]
) -> Callable[[GraphModule, Sequence[object]], Callable[..., object]]:
    return aot_backend(lambda gm, phase: compile_graph(gm, phase, config, keep))


def _check_torch() -> None:
    version = tuple(int(p) for p in torch.__version__.split("+")[0].split(".")[:2])
    if not OLDEST <= version <= NEWEST:
        raise UnsupportedError(
            f"tofuse supports torch 2.11 to 2.13, and this is {torch.__version__}; "
            "install one of those"
        )


def _tensors(tree: object) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(tree)
    return [t for t in leaves if isinstance(t, torch.Tensor)]
