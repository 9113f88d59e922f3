"""Training that is killed, and goes on from its checkpoint in new processes."""

import os
import signal
import tempfile
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.multiprocessing.spawn import ProcessExitedException, spawn

from suites.distributed.ranks import join_group
from suites.distributed.rows import Compiler, World, sharded_both_ways, train

RUNS = ("whole", "killed", "resumed")
STEPS, SAVED, KILLED = 6, 3, 4  # steps of the run; it saves after one, and dies after another


@dataclass(frozen=True)
class Resumption:
    """Losses of all steps of a run that ends, and of one that is killed; seconds of first steps."""

    whole: list[float]
    killed: list[float]
    resumed: list[float]
    first_s: float
    resumed_first_s: float


def kill_and_resume(ranks: int, backend: str = "tofuse") -> Resumption:
    """Train with FSDP2 and tensor parallelism: without a break, then killed and resumed."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TOFUSE_CACHE_DIR"] = f"{folder}/cache"
        for run in RUNS:
            Path(folder, run).mkdir()
            with suppress(ProcessExitedException):  # of the run that is killed
                spawn(_run, (ranks, folder, run, backend), nprocs=ranks)
        whole, killed, resumed = (_read(Path(folder, run)) for run in RUNS)
    return Resumption(whole[0], killed[0], resumed[0], whole[1][0], resumed[1][0])


def _read(folder: Path) -> tuple[list[float], list[float]]:
    """Return the losses and the seconds of a run's steps."""
    lines = [line.split() for line in (folder / "losses").read_text().splitlines()]
    return [float(loss) for loss, _ in lines], [float(seconds) for _, seconds in lines]


def _run(rank: int, ranks: int, folder: str, run: str, backend: str) -> None:
    warnings.simplefilter("ignore")
    join_group(Path(folder, run), rank, ranks)

    def compile_in_place(module: nn.Module) -> None:
        module.compile(backend=backend)

    compiler = Compiler(lambda module: module, compile_in_place)
    model, data_rank = sharded_both_ways(World(rank, ranks), compiler)
    training = train(model, data_rank)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    first = 0
    if run == "resumed":
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        load(state, checkpoint_id=f"{folder}/checkpoint")
        set_state_dict(
            model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state
        )
        first = SAVED
    for number in range(first, STEPS):
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = training.step(number)
        optimizer.step()
        dist.all_reduce(loss)
        if rank == 0:
            with Path(folder, run, "losses").open("a") as file:
                file.write(f"{loss.item():.9g} {time.perf_counter() - begin:.3f}\n")
        if run == "killed" and number + 1 == SAVED:
            state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
            save(state, checkpoint_id=f"{folder}/checkpoint")
        if run == "killed" and number + 1 == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()
