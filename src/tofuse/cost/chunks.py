"""When a product is worth computing in chunks of rows, with the gradients of its factors."""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.cost.thresholds import (
    CHUNKED_PRODUCT_BYTES,
    MAX_CHUNKS,
    MIN_CHUNK_ROWS,
    MIN_CHUNKS,
    MIN_PRODUCT_CHUNK_BYTES,
    MIN_WIDENING,
)

FLOAT_BYTES = 4  # of an element of a sum of half-precision products


@dataclass(frozen=True)
class ProductShape:
    """A product of [rows, inner] by [inner, columns] in elements of `itemsize` bytes."""

    rows: int
    inner: int
    columns: int
    itemsize: int

    @property
    def nbytes(self) -> int:
        return self.rows * self.columns * self.itemsize


@dataclass(frozen=True)
class ChunkLimits:
    """Bytes of a product that is chunked, and bytes and rows of a chunk, each at least so many."""

    product_bytes: int = CHUNKED_PRODUCT_BYTES
    chunk_bytes: int = MIN_PRODUCT_CHUNK_BYTES
    chunk_rows: int = MIN_CHUNK_ROWS

    def chunk_count(self, product: ProductShape, with_gradients: bool) -> int:
        """Return into how many chunks a product is divided; 0 if it stays whole.

        `with_gradients`: the gradient of the second factor is added up over the chunks, in float32
        if the product is in half precision. Then that must be smaller than the product.
        """
        p = product
        count = min(p.nbytes // self.chunk_bytes, p.rows // self.chunk_rows, MAX_CHUNKS)
        if p.nbytes < self.product_bytes or count < MIN_CHUNKS:
            return 0
        if p.columns < MIN_WIDENING * p.inner:
            return 0
        item = p.itemsize if p.itemsize >= FLOAT_BYTES else FLOAT_BYTES + 2 * p.itemsize
        return 0 if with_gradients and p.inner * item > p.rows * p.itemsize else count


DEFAULT_CHUNK_LIMITS = ChunkLimits()
