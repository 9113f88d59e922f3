"""Library calls that write into memory of ours: an operator's own `out` form, where it has one."""

from __future__ import annotations

from functools import cache

import torch

from tofuse.plan.library_results import OutVariant


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
