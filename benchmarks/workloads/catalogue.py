"""The catalogue: every workload by name."""

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from benchmarks.seeds import Inputs, Size
from benchmarks.workloads.attention import ATTENTION
from benchmarks.workloads.base import Case, CaseMaker, Workload, WorkloadGroup, calls
from benchmarks.workloads.extra import BF16, EXTRA, SIZES
from benchmarks.workloads.neighbours import NEIGHBOURS
from benchmarks.workloads.products import PRODUCTS
from benchmarks.workloads.table import TABLE

COPY_BYTES = 256_000_000  # of each of two tensors: eight times the largest cache


def pick(name: str) -> Workload:
    """Return the workload of that name, including the copy; raise KeyError if there is none."""
    return {workload.name: workload for workload in (COPY, *WORKLOADS)}[name]


def choose(only: Sequence[str], groups: Sequence[str]) -> tuple[Workload, ...]:
    """Return the workloads in `groups` whose names match one of `only`; empty sequences match all.

    Raises ValueError if a name matches nothing.
    """
    names = [workload.name for workload in WORKLOADS]
    for name in only:
        if not any(fnmatchcase(known, name) for known in names):
            similar = difflib.get_close_matches(name, names, 3, cutoff=0.4)
            hint = f"; similar names: {', '.join(similar)}" if similar else ""
            raise ValueError(f"there is no workload {name!r}{hint}")
    return tuple(
        workload
        for workload in WORKLOADS
        if (not groups or workload.group in groups)
        and (not only or any(fnmatchcase(workload.name, name) for name in only))
    )


def copy(target: Tensor, source: Tensor) -> Tensor:
    return target.copy_(source)


def copy_inputs(size: Size, dtype: torch.dtype) -> Inputs:
    elements = (COPY_BYTES if size == "full" else COPY_BYTES // 100) // dtype.itemsize
    return torch.ones(elements, dtype=dtype), torch.ones(elements, dtype=dtype)


def model(family: str, training: bool) -> CaseMaker:
    def make(size: Size, dtype: torch.dtype) -> Case:
        # importing transformers takes four seconds, which other workloads do not need
        from benchmarks.workloads.models import case

        return case(family, size, training)

    return make


FAMILIES = ("bert", "gpt2", "llama", "t5", "vit", "resnet")
MODELS: tuple[Workload, ...] = tuple(
    Workload(
        f"{family}_{'training' if training else 'inference'}", "models", model(family, training)
    )
    for family in FAMILIES
    for training in (True, False)
)

COPY = Workload("copy", "machine", calls(copy, copy_inputs))
WORKLOADS: tuple[Workload, ...] = (
    *(*TABLE, *EXTRA, *BF16, *SIZES, *PRODUCTS, *ATTENTION, *NEIGHBOURS, *MODELS),
)
GROUPS: tuple[WorkloadGroup, ...] = tuple(dict.fromkeys(w.group for w in WORKLOADS))
