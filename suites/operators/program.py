"""Runs calls in eager, or many of them compiled as one program, and keeps what they gave."""

import dataclasses
import logging
import math
import warnings
from collections.abc import Callable, Sequence

import torch
from torch.testing._internal import common_methods_invocations, common_utils
from torch.testing._internal.opinfo import core
from torch.utils._pytree import tree_leaves

from suites.operators.calls import Call
from tofuse.config import make_config
from tofuse.driver.compile import compile_reporting
from tofuse.report.model import Report

Compiler = Callable[[Callable[..., object]], Callable[..., object]]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one call gave: an error, or its results.

    `aliases` has, for each result that is a tensor, the first tensor before it (arguments, then
    results) with the same memory, and whether it is the same object; None if its memory is new.
    """

    error: Exception | None = None
    outputs: tuple[object, ...] = ()
    gradients: tuple[torch.Tensor | None, ...] = ()
    arguments: tuple[torch.Tensor, ...] = ()
    aliases: tuple[tuple[int, bool] | None, ...] = ()


def run_eager(call: Call, seed: int = 0) -> Outcome:
    """Return what eager gives for one call."""
    call = call.copy()
    try:
        torch.manual_seed(seed)
        results = [call()]
        gradients = _differentiate([call], results)
    except Exception as error:
        return Outcome(error=error)
    return _outcome(call, results[0], gradients[0])


def run_compiled(calls: Sequence[Call], compiler: Compiler) -> list[Outcome]:
    """Return what the calls give as one compiled program; its errors are raised."""
    torch._dynamo.reset()
    calls = [call.copy() for call in calls]
    program, tensors = write_program(calls)
    torch.manual_seed(0)
    results = compiler(program)(*tensors)
    assert isinstance(results, tuple)
    gradients = _differentiate(calls, results)
    return [_outcome(*parts) for parts in zip(calls, results, gradients, strict=True)]


def compile_here(report: Report, dynamic: bool) -> Compiler:
    """Return tofuse as a compiler; what it decides is added to the report."""

    def compile_program(program: Callable[..., object]) -> Callable[..., object]:
        config = make_config({"strict": True, "dynamic": dynamic or None})
        compiled, added = compile_reporting(program, config)
        report.graphs = added.graphs
        return compiled

    return compile_program


def compile_with_torch(dynamic: bool) -> Compiler:
    """Return torch.compile with AOTAutograd and eager's operators: torch's share of a program."""
    return lambda program: torch.compile(program, backend="aot_eager", dynamic=dynamic or None)


def write_program(calls: Sequence[Call]) -> tuple[Callable[..., object], list[torch.Tensor]]:
    """Return a function of all tensors that returns the results of the calls, and the tensors."""
    names: dict[int, str] = {}
    tensors: list[torch.Tensor] = []
    scope: dict[str, object] = {}

    def write(x: object) -> str:
        if isinstance(x, torch.Tensor):
            if id(x) not in names:
                names[id(x)] = f"t{len(tensors)}"
                tensors.append(x)
            return names[id(x)]
        if type(x) is list:
            return f"[{', '.join(map(write, x))}]"
        if type(x) is tuple:
            return f"({''.join(write(item) + ', ' for item in x)})"
        if type(x) is float and not math.isfinite(x):
            return f"float('{x}')"
        if type(x) in (bool, int, float, str, type(None)):
            return repr(x)
        if type(x) is slice:
            return f"slice({write(x.start)}, {write(x.stop)}, {write(x.step)})"
        scope[f"c{len(scope)}"] = x
        return f"c{len(scope) - 1}"

    lines = []
    for k, call in enumerate(calls):
        arguments = [*map(write, call.args), *(f"{n}={write(v)}" for n, v in call.kwargs.items())]
        lines.append(f"    r{k} = {write(call.fn)}({', '.join(arguments)})\n")
    results = "".join(f"r{k}, " for k in range(len(calls)))
    parameters = ", ".join(f"t{k}" for k in range(len(tensors)))
    source = f"def program({parameters}):\n{''.join(lines)}    return ({results})\n"
    exec(source, scope)
    program = scope["program"]
    assert callable(program)
    return program, tensors


def prepare_torch() -> None:
    """Silence torch's warnings, and make its database fast to read and possible to capture."""
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    for module in (common_utils, core):  # slow: it walks the whole stack for each sample
        vars(module)["extract_test_fn"] = lambda: None
    # calls torch.manual_seed, which no compiler captures
    vars(common_methods_invocations)["wrapper_set_seed"] = _call_unseeded


def _call_unseeded(op: Callable[..., object], *args: object, **kwargs: object) -> object:
    return op(*args, **kwargs)


def _differentiate(
    calls: Sequence[Call], results: Sequence[object]
) -> list[tuple[torch.Tensor | None, ...]]:
    """Return the gradients of each call's tensors, all computed by one backward."""
    sources: list[torch.Tensor] = []
    for call, result in zip(calls, results, strict=True):
        if not any(t.requires_grad for t in call.tensors):
            continue
        differentiable = call.process(result) if call.process else result
        sources += [t for t in tree_leaves(differentiable) if _has_gradient(t)]
    leaves = [[t for t in call.tensors if t.requires_grad and t.is_leaf] for call in calls]
    flat = [t for group in leaves for t in group]
    if not sources or not flat:
        return [() for _ in calls]
    cotangents = [_cotangent(t) for t in sources]
    gradients = iter(torch.autograd.grad(sources, flat, cotangents, allow_unused=True))
    return [tuple(next(gradients) for _ in group) for group in leaves]


def _has_gradient(t: object) -> bool:
    return isinstance(t, torch.Tensor) and t.requires_grad


def _cotangent(t: torch.Tensor) -> torch.Tensor:
    if t.layout is not torch.strided:
        return torch.ones_like(t)
    generator = torch.Generator().manual_seed(1)
    wide = torch.complex128 if t.is_complex() else torch.float64
    return torch.randn(t.shape, dtype=wide, generator=generator).to(t.dtype)


def _outcome(call: Call, result: object, gradients: tuple[torch.Tensor | None, ...]) -> Outcome:
    outputs = tuple(tree_leaves(result))
    arguments = tuple(call.tensors)
    tensors = [*arguments, *(t for t in outputs if isinstance(t, torch.Tensor))]
    first: dict[int, int] = {}
    aliases: list[tuple[int, bool] | None] = []
    for k, t in enumerate(tensors):
        key = _storage_key(t)
        if k >= len(arguments):
            shared = first.get(key) if key else None
            aliases.append(None if shared is None else (shared, tensors[shared] is t))
        first.setdefault(key, k)
    return Outcome(None, outputs, gradients, arguments, tuple(aliases))


def _storage_key(t: torch.Tensor) -> int:
    """Return what two tensors have in common if they share memory; 0 for one without memory."""
    if t.layout is not torch.strided or t.numel() == 0:
        return 0
    return t.untyped_storage()._cdata


def tensors_of(outcome: Outcome) -> list[torch.Tensor | None]:
    """Return the results, gradients and arguments that are tensors, detached."""
    outputs = [t for t in outcome.outputs if isinstance(t, torch.Tensor)]
    return [
        None if t is None else t.detach()
        for t in (*outputs, *outcome.gradients, *outcome.arguments)
    ]
