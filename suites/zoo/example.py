"""A model with inputs, and one training step of it."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel, XLNetModel

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Example:
    """A model in training mode, the arguments of a step, and the arguments of `generate`."""

    model: nn.Module
    inputs: Inputs
    prompt: Inputs = field(default_factory=dict)  # empty: the model does not generate


@dataclass(frozen=True)
class Step:
    """The results of a forward and a backward, by name."""

    outputs: dict[str, Tensor]
    gradients: dict[str, Tensor]


def training_step(model: nn.Module, inputs: Mapping[str, Tensor]) -> Step:
    """Run forward and backward; the loss is the model's, else the mean square of its results."""
    for parameter in model.parameters():
        parameter.grad = None
    result = model(**inputs)
    leaves = [x for x in tree_leaves(result) if isinstance(x, Tensor) and x.is_floating_point()]
    loss = getattr(result, "loss", None)
    if loss is None:
        loss = torch.stack([x.square().mean() for x in leaves if x.requires_grad]).sum()
    loss.backward()
    outputs = {f"result {k}": x.detach() for k, x in enumerate(leaves)}
    named = model.named_parameters()
    return Step(outputs, {name: p.grad for name, p in named if p.grad is not None})


def in_float64(inputs: Mapping[str, Tensor]) -> Inputs:
    """Return the inputs with float64 instead of float32."""
    return {k: x.double() if x.is_floating_point() else x for k, x in inputs.items()}


def float64_copy(model: nn.Module) -> nn.Module:
    """Return a copy in float64, whose experts run one by one: a grouped product has no float64."""
    result = copy.deepcopy(model).double()
    if any("Experts" in type(module).__name__ for module in model.modules()):
        assert isinstance(result, PreTrainedModel)
        result.set_experts_implementation("eager")
    for module in result.modules():
        if isinstance(module, XLNetModel):
            _encode_in_float64(module)
    return result


def _encode_in_float64(model: XLNetModel) -> None:
    """Replace the float32 tensors that a model makes whatever its parameters are."""
    encode = model.relative_positional_encoding
    model.__dict__["relative_positional_encoding"] = lambda *args, **options: encode(
        *args, **options
    ).double()
    model.register_forward_pre_hook(
        lambda _, args, options: (args, {k: _double(x) for k, x in options.items()}),
        with_kwargs=True,
    )


def _double(value: object) -> object:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.double()
    return value


def without_randomness(model: nn.Module) -> nn.Module:
    """Switch off the dropout of all modules; return the model."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return model


def seed_parameters(model: nn.Module) -> None:
    """Give every parameter random values: some models start with weights of zero."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.05, generator=generator)
