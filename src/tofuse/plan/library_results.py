"""Facts about library calls that decide where the plan may put their results."""

from __future__ import annotations

from dataclasses import dataclass

# Operators without an out variant whose results never alias an operand.
EXCLUSIVE_RESULTS = frozenset(
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
    """The overload that writes into given tensors, and the names of its out arguments."""

    target: str
    names: tuple[str, ...]
