"""The default process group of torch.distributed, for titles and traces of reports."""

from __future__ import annotations

import torch.distributed as dist

from tofuse.report.ranks import ONE_RANK, Ranks


def default_group() -> Ranks:
    """Return the ranks of the default process group; one rank without a group."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return ONE_RANK
    return Ranks(dist.get_rank(), dist.get_world_size(), _gather)


def _gather(item: object) -> list[object]:
    """Return the items of all ranks on rank 0, and none elsewhere."""
    on_first = dist.get_rank() == 0
    items: list[object] | None = [None] * dist.get_world_size() if on_first else None
    dist.gather_object(item, items)
    return items or []
