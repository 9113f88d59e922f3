"""Library calls that write into memory of ours: an operator's own `out` form, where it has one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

# Operators without such a form whose results are tensors that nobody else holds.
OWN = frozenset(
    f"aten.{name}.default"
    for name in (
        "convolution",
        "convolution_backward",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    )
)


@dataclass(frozen=True)
class OutVariant:
    """The operator that writes, and the names of its arguments for the results."""

    target: str
    names: tuple[str, ...]


@cache
def out_variant(target: str) -> OutVariant | None:
    """For `aten.mm.default` it is `aten.mm.out(..., out=)`; None where there is none that helps.

    The forms that torch derives from the plain operator make the result and copy it: only those
    with a CPU kernel of their own write it where it shall be, and of these not Fourier transforms.
    """
    namespace, _, rest = target.partition(".")
    if namespace != "aten" or rest.startswith("_fft_"):
        return None
    packet_name, _, overload_name = rest.partition(".")
    packet = getattr(torch.ops.aten, packet_name)
    plain = getattr(packet, overload_name)._schema
    if plain.is_mutable or any(r.alias_info for r in plain.returns):
        return None
    for name in packet.overloads():
        schema = getattr(packet, name)._schema
        outs = tuple(a.name for a in schema.arguments if a.is_out)
        rest_of = [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]
        if not outs or len(outs) != len(plain.returns):
            continue
        if rest_of != [(a.name, str(a.type)) for a in plain.arguments]:
            continue
        if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{packet_name}.{name}", "CPU"):
            return OutVariant(f"aten.{packet_name}.{name}", outs)
    return None
