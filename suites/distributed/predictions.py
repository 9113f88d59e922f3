"""Predicted overlap of collectives: checked on this machine, and on paper for accelerators."""

import statistics
import time
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import tofuse
from suites.distributed.llama import Llama, Sizes, make_sequence_parallel
from suites.distributed.simulate import Network, Prediction, predict
from tofuse.report.model import RegionReport, Report
from tofuse.report.program_view import op_work

MIDDLE = Sizes(vocabulary=512, width=512, heads=8, hidden=1408, length=128)
LARGE = Sizes(vocabulary=512, width=4096, heads=32, hidden=11008, length=2048)
ROUNDS = 20


def measured_and_predicted(rank: int, ranks: int) -> list[tuple[str, float, float, float]]:
    """Return a graph's phase, its µs as measured and as predicted, and those of all waits at once.

    Launches cost what was measured; collectives cost what two sizes of them cost alone.
    """
    mesh = init_device_mesh("cpu", (ranks,))
    network = measure_network(ranks)
    torch.manual_seed(0)
    model = make_sequence_parallel(Llama(2, MIDDLE), mesh)
    tokens = torch.randint(MIDDLE.vocabulary, (2, MIDDLE.length))
    report = tofuse.explain(model, measure=True)(tokens)
    found = []
    for graph in report.graphs:
        spans = graph.last_run
        measured = (spans[-1].end - spans[0].begin) / 1e3
        prediction = predict(graph, network, ranks, lambda r: r.measured_us or 0.0)
        serial = prediction.compute_us + prediction.communication_us
        found.append((graph.phase, measured, prediction.total_us, serial))
    return found


def measure_network(ranks: int) -> Network:
    """Return latency and bandwidth of a ring among all ranks, from two sizes of an all-gather."""
    times = []
    sizes = (1 << 10, 1 << 20)
    for nbytes in sizes:
        part = torch.zeros(nbytes // 4)
        gather = partial(_gather, part, torch.empty(ranks * part.numel()))
        gather()
        samples = []
        for _ in range(ROUNDS):
            dist.barrier()
            begin = time.perf_counter()
            gather()
            samples.append(1e6 * (time.perf_counter() - begin))
        times.append(statistics.median(samples))
    sent = [nbytes * (ranks - 1) for nbytes in sizes]
    slope = max(times[1] - times[0], 1e-3) / (sent[1] - sent[0])
    return Network(max(times[0] - slope * sent[0], 0.0), 1e6 / slope)


def _gather(part: Tensor, whole: Tensor) -> None:
    dist.all_gather_into_tensor(whole, part)


@dataclass(frozen=True)
class Accelerator:
    """A card's rates: operations and bytes a second that kernels reach, µs of a launch."""

    arithmetic: float
    bandwidth: float
    launch_us: float

    def us(self, region: RegionReport) -> float:
        """Return the predicted µs of a launch or library call; a collective only starts."""
        if any("c10d" in name for name in region.ops):
            return self.launch_us
        work = sum(map(op_work, region.region.ops))
        return self.launch_us + 1e6 * max(work / self.arithmetic, region.nbytes / self.bandwidth)


def large_block(ranks: int) -> Report:
    """Return the report of one block of a model of 7 billion parameters, as one of `ranks` has it.

    No other process is there: collectives of the fake process group do nothing.
    """
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (ranks,))
        model = make_sequence_parallel(Llama(1, LARGE), mesh).bfloat16()
        return tofuse.explain(model)(torch.zeros(1, LARGE.length, dtype=torch.int64))
    finally:
        dist.destroy_process_group()
        torch.compiler.reset()


def on_paper(ranks: int, card: Accelerator, network: Network) -> Prediction:
    """Return the prediction of a forward and backward of such a block."""
    parts = [predict(graph, network, ranks, card.us) for graph in large_block(ranks).graphs]
    return Prediction(
        sum(p.total_us for p in parts),
        sum(p.compute_us for p in parts),
        sum(p.communication_us for p in parts),
    )
