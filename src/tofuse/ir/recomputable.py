"""The products of a joint graph that its backward may compute again, by the names of results."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class RecomputableProducts:
    """Names of results in a joint graph.

    `products` may be computed again. Kernels make `values` of them, up to reductions. `readers` are
    the products, and the reductions, that read these values.
    """

    products: frozenset[str]
    values: frozenset[str]
    readers: frozenset[str]
