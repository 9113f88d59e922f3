"""Every workload by name, and the choice among them."""

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from benchmarks.seeds import Inputs, Size
from benchmarks.workloads.base import Case, Group, Make, Workload, calls
from benchmarks.workloads.extra import BF16, EXTRA, SIZES
from benchmarks.workloads.table import TABLE

COPY_BYTES = 256_000_000  # of each of two tensors: eight times the largest cache here


def pick(name: str) -> Workload:
    """The workload of that name, the copy included; KeyError if there is none."""
    return {workload.name: workload for workload in (COPY, *WORKLOADS)}[name]


def choose(only: Sequence[str], groups: Sequence[str]) -> tuple[Workload, ...]:
    """Those of `groups` whose name is or matches one of `only`; empty sequences choose all.

    ValueError if a name matches nothing.
    """
    names = [workload.name for workload in WORKLOADS]
    for name in only:
        if not any(fnmatchcase(known, name) for known in names):
            near = difflib.get_close_matches(name, names, 3, cutoff=0.4)
            hint = f"; near it are {', '.join(near)}" if near else ""
            raise ValueError(f"no workload is called {name!r}{hint}")
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


def model(family: str, training: bool) -> Make:
    def make(size: Size, dtype: torch.dtype) -> Case:
        # transformers takes four seconds to import, which the other workloads need not wait for.
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
WORKLOADS: tuple[Workload, ...] = (*TABLE, *EXTRA, *BF16, *SIZES, *MODELS)
GROUPS: tuple[Group, ...] = ("table", "extra", "bf16", "sizes", "models")
