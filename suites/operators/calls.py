"""Calls of operators with their arguments, in the layouts and variants that a case names."""

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves, tree_map

T = TypeVar("T")
LAYOUTS = ("contiguous", "transposed", "strided", "expanded")
MODES = (*LAYOUTS, "dynamic", "inplace", "out")


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """One call of a function. A module as `fn` is copied with the arguments."""

    fn: Callable[..., object]
    args: tuple[object, ...]
    kwargs: Mapping[str, object] = dataclasses.field(default_factory=dict)
    # applied to the results before they are differentiated, by eager: an svd's signs are open
    process: Callable[..., object] | None = None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the arguments, then a module's parameters and buffers."""
        found = [t for t in tree_leaves((self.args, self.kwargs)) if isinstance(t, torch.Tensor)]
        if isinstance(self.fn, torch.nn.Module):
            found += [*self.fn.parameters(), *self.fn.buffers()]
        return list({id(t): t for t in found}.values())

    def copy(self) -> "Call":
        """Return the call with tensors of its own, of the same layout and aliasing."""
        storages: dict[int, torch.UntypedStorage] = {}
        tensors: dict[int, torch.Tensor] = {}

        def copy_leaf(x: object) -> object:
            if not isinstance(x, torch.Tensor):
                return x
            if id(x) not in tensors:
                tensors[id(x)] = copy_tensor(x, storages)
            return tensors[id(x)]

        args, kwargs = tree_map(copy_leaf, (self.args, dict(self.kwargs)))
        fn = copy.deepcopy(self.fn) if isinstance(self.fn, torch.nn.Module) else self.fn
        return dataclasses.replace(self, fn=fn, args=args, kwargs=kwargs)

    def without_gradient(self) -> "Call":
        """Return the call with tensors that do not require grad."""
        detached = tree_map(
            lambda x: x.detach() if isinstance(x, torch.Tensor) else x, (self.args, self.kwargs)
        )
        return dataclasses.replace(self, args=detached[0], kwargs=detached[1])

    def __call__(self) -> object:
        return self.fn(*self.args, **self.kwargs)

    def __repr__(self) -> str:
        name = getattr(self.fn, "__name__", None) or type(self.fn).__name__
        if isinstance(self.fn, functools.partial):
            name = f"{self.fn.func.__name__}{self.fn.args}"
        parts = [show(a) for a in self.args]
        parts += [f"{k}={show(v)}" for k, v in self.kwargs.items()]
        return f"{name}({', '.join(parts)})"


def show(x: object) -> str:
    """Return an argument as short text: a tensor as `f32[2, 3]`, with strides if they are odd."""
    if isinstance(x, torch.Tensor):
        dtype = str(x.dtype).removeprefix("torch.")
        if x.layout is not torch.strided:
            return f"{dtype}{list(x.shape)} {x.layout}"
        values = f"={x.tolist()}" if x.numel() < 4 else ""
        strides = "" if x.is_contiguous() else f" strides {list(x.stride())}"
        return f"{dtype}{list(x.shape)}{strides}{values}"
    if isinstance(x, list | tuple):
        text = ", ".join(map(show, x))
        return f"[{text}]" if isinstance(x, list) else f"({text})"
    return repr(x)


def copy_tensor(t: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    """Return a leaf with the same values, strides and `requires_grad`; copy each storage once."""
    with torch.no_grad():
        if t.layout is not torch.strided or t.is_conj() or t.is_neg() or t.device.type == "meta":
            made = t.detach().clone()
        else:
            old = t.untyped_storage()
            key = old._cdata
            if key not in storages:
                storages[key] = old.clone()
            made = torch.empty(0, dtype=t.dtype)
            made.set_(storages[key], t.storage_offset(), t.shape, t.stride())
    return made.requires_grad_(t.requires_grad)


def relayout(t: torch.Tensor, layout: str) -> torch.Tensor:
    """Return a leaf of the same shape in another layout; "expanded" repeats the first row."""
    if t.layout is not torch.strided or t.dim() == 0 or t.numel() == 0:
        return t
    plain = t.detach()
    if layout == "transposed" and t.dim() >= 2:
        made = plain.transpose(-1, -2).contiguous().transpose(-1, -2)
    elif layout == "strided":
        made = plain.new_zeros((*t.shape[:-1], 2 * t.shape[-1]))[..., ::2]
        made.copy_(plain)
    elif layout == "expanded" and t.is_floating_point() | t.is_complex():
        made = plain[:1].clone().expand(t.shape)
    else:
        return t
    return made.detach().requires_grad_(t.requires_grad)


class NoSamplesError(Exception):
    """The database's own function of samples raises."""


def read_samples(generate: Callable[[], Iterable[T]]) -> list[T]:
    """Return what a function of the database gives; raise NoSamplesError if it raises."""
    try:
        return list(generate())
    except Exception as error:
        raise NoSamplesError(f"{type(error).__name__}: {error}") from error


def samples_of(op: OpInfo, dtype: torch.dtype) -> list[Call]:
    """Return one call for each sample; tensors require grad where the operator has a gradient."""
    grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    samples = read_samples(lambda: op.sample_inputs("cpu", dtype, requires_grad=grad))
    return [_call(op.op, s) for s in samples]


def _call(fn: Callable[..., object], sample: SampleInput) -> Call:
    process = sample.output_process_fn_grad
    named = getattr(process, "__qualname__", "")
    identity = named.startswith("SampleInput.__init__") or process is None
    args = (sample.input, *sample.args)
    return Call(fn, args, sample.kwargs, None if identity else process)


def calls_of(op: OpInfo, dtype: torch.dtype, mode: str) -> list[Call]:
    """Return the calls of a case: one or more for each sample of the operator."""
    samples = samples_of(op, dtype)
    match mode:
        case "inplace":
            return [c for s in samples for c in _inplace_calls(op, s)]
        case "out":
            return [c for k, s in enumerate(samples) for c in _out_calls(s, k)]
        case "contiguous" | "dynamic":
            return samples
        case _:
            return [_relayout_call(s, mode) for s in samples]


def error_calls(op: OpInfo) -> list[Call]:
    """Return the calls on which eager raises."""
    known: Callable[..., object] | None = op.error_inputs_func
    if known is None:
        return []
    return [_call(op.op, e.sample_input) for e in read_samples(lambda: op.error_inputs("cpu"))]


def _relayout_call(call: Call, layout: str) -> Call:
    args, kwargs = tree_map(
        lambda x: relayout(x, layout) if isinstance(x, torch.Tensor) else x,
        (call.args, dict(call.kwargs)),
    )
    return dataclasses.replace(call, args=args, kwargs=kwargs)


def _inplace_calls(op: OpInfo, sample: Call) -> Iterator[Call]:
    """Yield a call that writes into an argument, and one that writes into a copy, for gradients."""
    variant = op.inplace_variant
    if not isinstance(sample.args[0], torch.Tensor):
        return
    yield dataclasses.replace(sample.without_gradient(), fn=variant)
    if any(t.requires_grad for t in sample.tensors):

        def on_a_copy(x: torch.Tensor, *args: object, **kwargs: object) -> object:
            return variant(x.clone(), *args, **kwargs)

        yield dataclasses.replace(sample, fn=on_a_copy)


def _out_calls(sample: Call, number: int) -> Iterator[Call]:
    """Yield a call with `out=`: every other one in the layout of a transposed tensor."""
    sample = sample.without_gradient()
    try:
        results = sample.copy()()
    except Exception:  # without results there is nothing to write into
        return
    layout = "transposed" if number % 2 else "contiguous"

    def make_out(x: object) -> object:
        if not isinstance(x, torch.Tensor):
            return x
        return relayout(torch.empty_like(x).fill_(1), layout)

    if isinstance(results, torch.Tensor):
        yield dataclasses.replace(sample, kwargs={**sample.kwargs, "out": make_out(results)})
    elif isinstance(results, Sequence) and all(isinstance(r, torch.Tensor) for r in results):
        out = tuple(map(make_out, results))
        yield dataclasses.replace(sample, kwargs={**sample.kwargs, "out": out})
