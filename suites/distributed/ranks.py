"""Start processes that talk through gloo on this machine."""

import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

Scenario = Callable[[int, int], None]  # gets the rank and the number of ranks


def run_ranks(scenarios: list[Scenario], ranks: int) -> dict[str, str]:
    """Run the scenarios one after another on all ranks; return the errors by scenario's name.

    The scenarios must be functions of a module, or instances with a `__name__`, since the processes
    import them.
    """
    with tempfile.TemporaryDirectory() as folder:
        spawn(_run, (ranks, folder, scenarios), nprocs=ranks)
        paths = sorted(Path(folder).glob("*.error"))
        return {path.stem: path.read_text() for path in paths}


def join_group(folder: str | Path, rank: int, ranks: int) -> None:
    """Make this process a rank of the default group; `folder` must be new, and the same for all."""
    torch.set_num_threads(1)
    store = dist.FileStore(  # type: ignore[attr-defined]  # public, but not exported
        f"{folder}/store", ranks
    )
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)


def _run(rank: int, ranks: int, folder: str, scenarios: list[Scenario]) -> None:
    join_group(folder, rank, ranks)
    for scenario in scenarios:
        torch.compiler.reset()
        torch.manual_seed(0)
        try:
            scenario(rank, ranks)
        except Exception:
            path = Path(folder, f"{scenario.__name__}-{rank}.error")
            path.write_text(traceback.format_exc())
        dist.barrier()
    dist.destroy_process_group()
