"""Predicted overlap of collectives: checked on this machine, and on paper for accelerators."""

import statistics
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import tofuse
from suites.distributed.llama import Llama, Sizes, make_sequence_parallel
from suites.distributed.simulate import Network, Prediction, predict
from tofuse.analysis.alias import is_communication
from tofuse.report.model import GraphReport, Report
from tofuse.report.program_view import op_work
from tofuse.report.region_report import RegionReport

MIDDLE = Sizes(vocabulary=512, width=512, heads=8, hidden=1408, length=128)
# one block of a model of 7 billion parameters
LARGE = Sizes(vocabulary=512, width=4096, heads=32, hidden=11008, length=2048)


def measured_and_predicted(ranks: int) -> dict[str, str | int | float | list[str]]:
    """Return µs of the backward: as measured, as predicted, and with each collective waited for.

    Launches cost what they took in the run that is predicted. Collectives cost what they take in
    the forward, where they overlap nothing and a rank also waits for the others.
    """
    mesh = init_device_mesh("cpu", (ranks,))
    torch.manual_seed(0)
    model = make_sequence_parallel(Llama(2, MIDDLE), mesh)
    tokens = torch.randint(MIDDLE.vocabulary, (2, MIDDLE.length))
    report = tofuse.explain(model, measure=True)(tokens)
    (forward,), (backward,) = report.forward.graphs, report.backward.graphs
    network = Network(statistics.mean(collective_times(forward)), float("inf"))
    spans = backward.last_run
    measured = (spans[-1].end - spans[0].begin) / 1e3
    us = {s.name: s.us for s in spans}
    p = predict(backward, network, ranks, lambda r: us.get(r.name, 0.0))
    times = measured, p.total_us, p.compute_us + p.communication_us
    return {"backward": [f"{us:.0f}" for us in times]}


def collective_times(graph: GraphReport) -> list[float]:
    """Return the µs from the end of each collective's start to the end of its wait."""
    spans = {s.name: s for s in graph.last_run}
    region_of_step = graph.step_regions()
    return [
        (spans[region_of_step[c.wait].name].end - spans[c.name].end) / 1e3
        for c in graph.collectives
        if c.wait is not None
    ]


@dataclass(frozen=True)
class Accelerator:
    """A card's rates: operations and bytes a second that kernels reach, µs of a launch."""

    arithmetic: float
    bandwidth: float
    launch_us: float

    def us(self, region: RegionReport) -> float:
        """Return the predicted µs of a launch or library call; a collective only starts."""
        if is_communication(region.region.ops[0]):
            return self.launch_us
        work = sum(map(op_work, region.region.ops))
        return self.launch_us + 1e6 * max(work / self.arithmetic, region.nbytes / self.bandwidth)


# What an H100 reaches of what its data sheet says: 0.6 of bfloat16 products, 0.8 of memory.
H100 = Accelerator(0.6 * 989e12, 0.8 * 3.35e12, 3.0)
NETWORKS = {  # 0.8 of what each says, in one direction
    "NVLink 4, 450 GB/s": Network(12.0, 0.8 * 450e9),
    "PCIe 5, 64 GB/s": Network(15.0, 0.8 * 64e9),
    "InfiniBand, 400 Gb/s": Network(20.0, 0.8 * 50e9),
}


def report_of_block(ranks: int, sizes: Sizes) -> Report:
    """Return the report of a sequence parallel model with one block, as one of `ranks` has it.

    No other process is there: collectives of the fake process group do nothing.
    """
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (ranks,))
        model = make_sequence_parallel(Llama(1, sizes), mesh).bfloat16()
        return tofuse.explain(model)(torch.zeros(1, sizes.length, dtype=torch.int64))
    finally:
        dist.destroy_process_group()
        torch.compiler.reset()


def on_paper(ranks: int) -> dict[str, Prediction]:
    """Return the prediction of a forward and backward of a large block, for each network."""
    graphs = report_of_block(ranks, LARGE).graphs
    found = {}
    for name, network in NETWORKS.items():
        parts = [predict(graph, network, ranks, H100.us) for graph in graphs]
        total, compute, communication = (
            sum(getattr(p, f"{part}_us") for p in parts)
            for part in ("total", "compute", "communication")
        )
        found[name] = Prediction(total, compute, communication)
    return found
