"""Who holds a storage, by torch's and Python's counts of references."""

from __future__ import annotations

from sys import getrefcount

import torch

from tofuse.torch_internals.memory import counts_show_owners, storage_key, storage_use_count

COUNTS_SHOW_OWNERS = counts_show_owners()  # if not, no memory is used twice


class StorageOwners:
    """Notes the owners of a storage, to find out later whether it has others.

    Two counts tell whether anything else holds the storage: C++ owners (tensors, views, saved
    tensors), and references to the Python object that `tensor.untyped_storage()` returns.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.storage = tensor.untyped_storage()
        self.address = self.storage.data_ptr()
        self.cdata = storage_key(self.storage)
        self.owners = storage_use_count(self.cdata)
        self.references = getrefcount(self.storage)

    def is_free(self) -> bool:
        return (
            storage_use_count(self.cdata) == self.owners
            and getrefcount(self.storage) == self.references
        )

    def is_moved(self) -> bool:
        """Whether the storage has other memory now: it was resized, or moved to shared memory."""
        return self.storage.data_ptr() != self.address
