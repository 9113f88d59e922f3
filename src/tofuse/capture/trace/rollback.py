"""Rollback of what tracing changes in modules and arguments, or an error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from tofuse.capture.trace.pytree import field_values, tensor_dataclasses
from tofuse.errors import CaptureError
from tofuse.torch_internals.modules import tensor_tables


@contextmanager
def restore_modules(
    modules: Sequence[torch.nn.Module], read: Sequence[torch.Tensor]
) -> Iterator[None]:
    """Restore at exit the tensors of modules that the program replaced by traced ones.

    Raise CaptureError if the next call would have to see the new tensor: if it is a parameter or a
    buffer, or if the program reads the old one. `read` may grow while the program is traced.
    """
    tables = [(m, table) for m in modules for table in (*tensor_tables(m), m.__dict__)]
    before = [(m, table, dict(table)) for m, table in tables]
    replaced: list[str] = []
    try:
        yield
    finally:
        for module, table, old_values in before:
            tensors = {n: x for n, x in table.items() if isinstance(x, torch.Tensor)}
            for name in [n for n, x in tensors.items() if x is not old_values.get(n)]:
                old = old_values.get(name)
                if table is not module.__dict__ or any(old is t for t in read):
                    replaced.append(f"{type(module).__name__}.{name}")
                if name in old_values:
                    table[name] = old
                else:
                    del table[name]
    if replaced:
        raise CaptureError(
            f"capture='trace' cannot trace a program that replaces a tensor, {replaced[0]}; "
            "write into it, with copy_ for instance, or compile it without capture='trace'"
        )


@contextmanager
def reject_argument_changes(arguments: object, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Raise CaptureError at exit if the program changed more of its arguments than elements.

    These are fields of dataclasses and `requires_grad` of tensors. The program gets copies of
    dataclasses and fake tensors, so the change would be lost.
    """
    requires_grad = [t.requires_grad for t in tensors]
    before = [(x, field_values(x)) for x in tensor_dataclasses(arguments)]
    yield
    for x, old in before:
        new = field_values(x)
        if changed := [name for name in old if new.get(name, old) is not old[name]]:
            raise CaptureError(
                "capture='trace' cannot trace a program that sets a field of an argument, "
                f"{type(x).__name__}.{changed[0]}; return it, or compile without capture='trace'"
            )

    if requires_grad != [t.requires_grad for t in tensors]:
        raise CaptureError(
            "capture='trace' cannot trace a program that changes whether an argument requires "
            "grad; call requires_grad_ before it, or compile it without capture='trace'"
        )
