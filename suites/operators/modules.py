"""Calls of the modules and optimizers of torch's databases."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch.testing._internal import common_modules, common_optimizers
from torch.testing._internal.common_modules import ModuleInfo
from torch.testing._internal.common_optimizers import OptimizerInfo
from torch.utils._pytree import tree_leaves

from suites.operators.calls import Call, read_samples
from suites.operators.program import Compiler

STEPS = 3
SHAPES = ((3, 4), (5,), (2, 1, 3), ())  # of the parameters of an optimizer
IMPLEMENTATIONS = ("foreach", "fused", "differentiable")


def module_infos() -> dict[str, ModuleInfo]:
    """Return the modules of the database by name."""
    return {f"module/{info.name}": info for info in common_modules.module_db}


def module_calls(info: ModuleInfo, dtype: torch.dtype, mode: str) -> list[Call]:
    """Return a call for each input of a module, in the mode "train" or "eval"."""
    torch.manual_seed(0)
    training = mode == "train"
    calls = []
    inputs = read_samples(lambda: info.module_inputs_func(info, "cpu", dtype, True, training))
    for k in inputs:
        if k.forward_input is None:
            continue
        made = k.constructor_input
        module = info.module_cls(*made.args, **made.kwargs).to(dtype).train(training)
        if info.is_lazy:
            module(*copy.deepcopy(k.forward_input.args), **k.forward_input.kwargs)
        calls.append(Call(module, k.forward_input.args, k.forward_input.kwargs))
    return calls


def optimizer_infos() -> dict[str, OptimizerInfo]:
    """Return the optimizers of the database by name."""
    return {f"optimizer/{class_of(info).__name__}": info for info in common_optimizers.optim_db}


def class_of(info: OptimizerInfo) -> type[torch.optim.Optimizer]:
    """Return the optimizer's class, which torch annotates as an instance."""
    found: object = info.optim_cls
    assert isinstance(found, type) and issubclass(found, torch.optim.Optimizer)
    return found


def optimizer_modes(info: OptimizerInfo) -> list[str]:
    """Return "loop", and the other implementations of a step that an optimizer has."""
    return ["loop", *(name for name in IMPLEMENTATIONS if name in info.supported_impls)]


def optimizer_calls(info: OptimizerInfo, dtype: torch.dtype, mode: str) -> list[Call]:
    """Return a call for each configuration of an optimizer: a few steps on new parameters."""
    generator = torch.Generator().manual_seed(0)

    def draw(shape: Sequence[int]) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype)

    shapes = [s for s in SHAPES if len(s) == 2 or class_of(info) is not torch.optim.Muon]
    parameters = [draw(s) for s in shapes]
    gradients = [[draw(s) for s in shapes] for _ in range(STEPS)]
    flags = {n: n == mode for n in IMPLEMENTATIONS if n in info.supported_impls}
    return [
        Call(partial(run_steps, info, {**given.kwargs, **flags}), (parameters, gradients))
        for given in read_samples(lambda: info.optim_inputs_func("cpu"))
    ]


def run_steps(
    info: OptimizerInfo,
    options: Mapping[str, object],
    parameters: list[torch.Tensor],
    gradients: list[list[torch.Tensor]],
    compiler: Compiler | None = None,
) -> list[torch.Tensor]:
    """Return parameters and state after the steps, which are compiled if there is a compiler."""
    trained = [torch.nn.Parameter(t.clone()) for t in parameters]
    make: Callable[..., torch.optim.Optimizer] = class_of(info)
    optimizer = make(trained, **options)
    step = compiler(optimizer.step) if compiler else optimizer.step
    for given in gradients:
        for parameter, gradient in zip(trained, given, strict=True):
            gradient = gradient.clone()
            parameter.grad = gradient.to_sparse() if info.only_supports_sparse_grads else gradient
        if info.step_requires_closure:
            step(lambda: float(sum(p.detach().square().sum().item() for p in trained)))
        else:
            step()
    state = [t for t in tree_leaves(optimizer.state_dict()) if isinstance(t, torch.Tensor)]
    return [*(p.detach() for p in trained), *state]
