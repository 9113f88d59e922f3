"""Tracing leaves what modules and arguments hold as it was."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager

import torch

from tofuse.capture.trace.pytree import held_by, records
from tofuse.errors import CaptureError


@contextmanager
def unchanged(modules: Sequence[torch.nn.Module], read: Sequence[torch.Tensor]) -> Iterator[None]:
    """Put back the tensors that a program put in the place of others, which are traced ones.

    CaptureError where the next call would have to see the new one: a parameter, a buffer, or a
    tensor that the program reads too. `read` may grow while the program is traced.
    """
    places = [(m, held, dict(held)) for m in modules for held in _places(m)]
    replaced: list[str] = []
    try:
        yield
    finally:
        for module, held, old in places:
            names = [n for n, x in held.items() if isinstance(x, torch.Tensor)]
            for name in names:
                before = old.get(name)
                if held[name] is before:
                    continue
                if held is not module.__dict__ or any(before is t for t in read):
                    replaced.append(f"{type(module).__name__}.{name}")
                if name in old:
                    held[name] = before
                else:
                    del held[name]
    if replaced:
        raise CaptureError(
            f"capture='trace' cannot follow a program that replaces a tensor, {replaced[0]}; "
            "write into it, with copy_ for instance, or compile it without capture='trace'"
        )


@contextmanager
def same_fields(arguments: object) -> Iterator[None]:
    """CaptureError where a program sets a field of a dataclass that it is given: what it gets is
    another, that holds stand-ins for tensors."""
    before = [(x, held_by(x)) for x in records(arguments)]
    yield
    for x, held in before:
        now = held_by(x)
        if changed := [name for name in held if now.get(name, held) is not held[name]]:
            raise CaptureError(
                "capture='trace' cannot follow a program that sets a field of an argument, "
                f"{type(x).__name__}.{changed[0]}; return it, or compile without capture='trace'"
            )


@contextmanager
def same_wishes(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """CaptureError where a program asks for gradients of an argument, of which a stand-in is told,
    or wants no more of them."""
    before = [t.requires_grad for t in tensors]
    yield
    if before != [t.requires_grad for t in tensors]:
        raise CaptureError(
            "capture='trace' cannot follow a program that changes whether an argument requires "
            "grad; call requires_grad_ before it, or compile it without capture='trace'"
        )


def _places(module: torch.nn.Module) -> tuple[MutableMapping[str, object], ...]:
    return (module._parameters, module._buffers, module.__dict__)  # type: ignore[return-value]  # invariant
