"""Library calls whose results the plan may place: by an `out` form, or as fresh memory."""

from __future__ import annotations

from dataclasses import dataclass

# Operators without such a form whose results are tensors that nobody else holds.
FRESH_RESULTS = frozenset(
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
