"""Find the out variant of a PyTorch operator, which writes its result into given memory."""

from __future__ import annotations

from functools import cache

import torch

from tofuse.analysis.alias import updates_operand
from tofuse.ir.plan import OutVariant
from tofuse.torch_internals.operators import has_cpu_kernel, schema_of


@cache
def out_variant(target: str) -> OutVariant | None:
    """Return `aten.mm.out(..., out=)` for `aten.mm.default`; None if there is no useful variant.

    The out variants that torch derives from the plain operator make the result and copy it. Only
    those with a CPU kernel write it directly, except for Fourier transforms. If there is
    none, an operator that updates a copy of its first operand has its in-place overload as variant.
    """
    namespace, _, rest = target.partition(".")
    if namespace != "aten" or rest.startswith("_fft_"):
        return None
    packet_name, _, overload_name = rest.partition(".")
    packet = getattr(torch.ops.aten, packet_name)
    functional = schema_of(getattr(packet, overload_name))
    if functional.is_mutable or any(r.alias_info for r in functional.returns):
        return None
    inputs = [(a.name, str(a.type)) for a in functional.arguments]
    for name in packet.overloads():
        schema = schema_of(getattr(packet, name))
        outs = tuple(a.name for a in schema.arguments if a.is_out)
        if not outs or len(outs) != len(functional.returns):
            continue
        if [(a.name, str(a.type)) for a in schema.arguments if not a.is_out] != inputs:
            continue
        if has_cpu_kernel(f"aten::{packet_name}.{name}"):
            return OutVariant(f"aten.{packet_name}.{name}", outs)
    in_place = getattr(torch.ops.aten, f"{packet_name}_", None) if updates_operand(target) else None
    if in_place is None or overload_name not in in_place.overloads():
        return None
    return OutVariant(f"aten.{packet_name}_.{overload_name}", ())
