"""Training on two ranks: the rows of `make distributed`, and what they do not show."""

import json
import re
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import tofuse
from suites.distributed.measure import check_row
from suites.distributed.ranks import Scenario, run_ranks
from suites.distributed.rows import ROWS, whole
from tests.support.broad import sample_cases
from tests.support.dropout_on_ranks import dropout_masks, dropouts_of_parts, masks_of_parts
from tests.support.random_collectives import random_programs_with_collectives
from tofuse.report.chrome_trace import COLLECTIVE_THREAD

STEPS = 3
WIDTH = 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def blocks():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block())


def train(model, parameters, x):
    """Return the losses of some steps, and the parameters after them."""
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    losses = []
    for _ in range(STEPS):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(whole(loss).detach())
    return [*losses, *(whole(p).detach().clone() for p in parameters)]


def check(make, compile_model, x):
    """Compare training of a model with training of the compiled model."""
    plain = make()
    expected = train(plain, list(plain.parameters()), x)
    model = make()
    compiled = compile_model(model)
    actual = train(compiled, list(model.parameters()), x)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def inputs(rank):
    return torch.randn(2, 8, WIDTH, generator=torch.Generator().manual_seed(rank))


def strict(model):
    return tofuse.compile(model, strict=True)


def parallel_blocks(mesh):
    model = blocks()
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def gradients(model, x):
    """Return the result of a call, and the gradients of the argument and of all parameters."""
    x = x.detach().requires_grad_()
    result = model(x)
    found = torch.autograd.grad(result.square().mean(), (x, *model.parameters()))
    return [result.detach(), *map(whole, found)]


def layouts(dims, dtype):
    """Yield arguments of several sizes, of one row too, and of other strides."""
    draw = torch.Generator().manual_seed(dims)
    for rows, step in (7, 1), (1, 1), (5, 3):
        shape = *(2,) * (dims - 2), rows, step * WIDTH
        yield torch.randn(shape, dtype=dtype, generator=draw)[..., ::step]


def sizes_dtypes_and_layouts(rank, ranks):
    """Sizes become symbolic in a program that holds DTensors."""
    mesh = init_device_mesh("cpu", (ranks,))
    for dims, dtype, rtol, atol in (3, torch.float64, 1e-7, 1e-7), (2, torch.bfloat16, 0.1, 0.02):
        torch.compiler.reset()
        model = parallel_blocks(mesh).to(dtype)
        compiled = strict(model)
        for x in layouts(dims, dtype):
            actual, expected = gradients(compiled, x), gradients(model, x)
            torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def traced_dtensors(rank, ranks):
    """Programs of capture="trace" that take DTensors train, and placements are guarded."""
    mesh = init_device_mesh("cpu", (ranks,))
    check(partial(parallel_blocks, mesh), partial(tofuse.compile, capture="trace"), inputs(0))
    call = tofuse.compile(lambda a, b: (a.sin() * b).sum(), capture="trace")
    x = torch.randn(2 * ranks, 4, generator=torch.Generator().manual_seed(0))
    for a, b in 2 * [(Shard(0), Replicate()), (Replicate(), Replicate()), (Shard(1), Shard(0))]:
        first, second = (distribute_tensor(x, mesh, [p]) for p in (a, b))
        torch.testing.assert_close(whole(call(first, second)), (x.sin() * x).sum())


def strides_of_arguments(rank, ranks):
    """The first layer is parallel, so that the argument becomes a DTensor as it is."""
    mesh = init_device_mesh("cpu", (ranks,))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    compiled = strict(model)
    for rows, step in (7, 1), (7, 3), (7, 2), (1, 2), (5, 1), (5, 2):
        x = torch.randn(rows, step * WIDTH)[:, ::step]
        torch.testing.assert_close(gradients(compiled, x), gradients(model, x))


class TrainRow:
    """A row trains as in eager, and kernels run the pointwise work in both directions."""

    def __init__(self, row: str):
        self.row = row
        self.__name__ = row.replace(" ", "_")

    def __call__(self, rank: int, ranks: int) -> None:
        report = check_row(self.row, rank, ranks)
        assert report.forward.kernels and report.backward.kernels
        is_cut = [n for n in report.notes if "where DistributedDataParallel's buckets end" in n]
        assert bool(is_cut) == self.row.startswith("DDP")


def work_beside_collectives(rank, ranks):
    mesh = init_device_mesh("cpu", (ranks,))
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    model = blocks()
    for block in model:
        parallelize_module(block, mesh, plan)
    part = inputs(0).chunk(ranks, 1)[rank].contiguous()
    report = tofuse.explain(model, strict=True, measure=True)(part)
    assert_overlap(report.backward.graphs[0].plan)
    assert_collectives_reported(report, rank, ranks)


def assert_overlap(plan):
    """Check that each collective but the first has a product or a kernel beside it."""
    steps = [line for line in plan.splitlines() if "call " in line or "launch " in line]
    starts = [
        k for k, line in enumerate(steps) if "c10d" in line and "wait_tensor.default" not in line
    ]
    assert len(starts) == 4
    assert not [k for k in starts[1:] if "wait_tensor.default" in steps[k + 1]], plan


def assert_collectives_reported(report, rank, ranks):
    """Check bytes, group and what runs beside each, and the trace of both ranks in one file."""
    assert report.title == f"Sequential (rank {rank} of {ranks})" and report.title in str(report)
    collectives = report.backward.collectives
    assert [c.operator for c in collectives] == [
        "all_gather_into_tensor", "reduce_scatter_tensor",
    ] * 2  # fmt: skip
    whole, part = 2 * 8 * WIDTH * 4, 2 * 8 * WIDTH * 4 // ranks
    sizes = [(c.operand_bytes, c.result_bytes) for c in collectives]
    assert sizes == [(part, whole), (whole, part)] * 2
    assert all(c.group == "0" and c.wait is not None for c in collectives)
    assert all(c.overlapped and c.overlapped_us > 0 for c in collectives[1:])
    recorded = report.as_dict()["graphs"][-1]["collectives"]
    assert [c["name"] for c in recorded] == [c.name for c in collectives]
    with tempfile.TemporaryDirectory() as folder:
        path = report.save_trace(Path(folder, "trace.json"), all_ranks=True)
        assert path.exists() == (rank == 0)
        events = json.loads(path.read_text())["traceEvents"] if rank == 0 else []
    for process in range(1, ranks + 1) if rank == 0 else ():
        spans = [e for e in events if e["pid"] == process and e["ph"] == "X"]
        sent = [e for e in spans if e["tid"] == COLLECTIVE_THREAD]
        assert [e["name"] for e in sent] == [c.name for c in report.collectives]
        assert {"overlapped", "group", "operand_bytes"} <= sent[0]["args"].keys()
        assert min(e["ts"] for e in spans) >= 0


def gathered_beside(x, w):
    """Read an operand of a collective for the last time before its result is waited for."""
    product = x @ w
    started = torch.ops._c10d_functional.all_gather_into_tensor(product, 2, "0")
    beside = (product * (product @ w)).sin()
    return torch.ops._c10d_functional.wait_tensor(started), beside


def scaled_in_place(x):
    x.mul_(2)
    return x + 1


def written_view_of_another(x, y):
    x.add_(1)
    return y * 2


def written_collectives(rank, ranks):
    """A program that writes into an unfinished collective's result runs as in eager."""
    mesh = init_device_mesh("cpu", (ranks,))
    for capture in "dynamo", "trace":
        found = []
        for compiler in (lambda function: function), partial(tofuse.compile, capture=capture):
            torch.manual_seed(0)
            layer = nn.Linear(WIDTH, WIDTH)
            parallelize_module(layer, mesh, RowwiseParallel(input_layouts=Replicate()))
            x = torch.randn(4, WIDTH)
            with torch.no_grad():  # with gradients, eager forbids to write into it
                y, z = layer(x), layer(x)
                result = compiler(scaled_in_place)(y)
                other = compiler(written_view_of_another)(z, z.view(-1))
                viewed = compiler(lambda y: y.view(-1))(layer(x)).mul_(3)
            found.append([result, y, z, other, viewed])
        torch.testing.assert_close(*found)


def operands_in_flight(rank, ranks):
    """A collective reads its operand until the wait: no kernel may write over it before."""
    compiled = tofuse.compile(gathered_beside, strict=True)
    for seed in range(10):
        draw = torch.Generator().manual_seed(ranks * seed + rank)
        x, w = torch.randn(512, 64, generator=draw), torch.randn(64, 64, generator=draw)
        torch.testing.assert_close(compiled(x, w), gathered_beside(x, w), rtol=1e-3, atol=1e-3)
    plan = tofuse.explain(gathered_beside, strict=True)(x, w).graphs[0].plan
    assert re.search(r"mul_sin_\d\(t_mm, t_mm_1, t_mm_1\)", plan), plan


def compiled_data_parallel(rank, ranks):
    """The model has 6 MB of parameters and so four buckets."""

    def make():
        torch.manual_seed(0)
        layers = (m for _ in range(6) for m in (nn.Linear(512, 512), nn.GELU()))
        return DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=2)

    x = torch.randn(4, 512, generator=torch.Generator().manual_seed(rank))
    check(make, lambda model: torch.compile(model, backend="tofuse"), x)


def methods_of_sharded_modules(rank, ranks):
    """Those of FSDP2 are found on the compiled module."""
    mesh = init_device_mesh("cpu", (ranks,))
    model = blocks()
    for block in model:
        fully_shard(block, mesh=mesh)
    compiled = tofuse.compile(fully_shard(model, mesh=mesh))
    compiled.unshard()
    compiled.reshard()
    compiled.set_requires_gradient_sync(True)


def checkpoints_of_sharded_blocks(rank, ranks):
    """The report names what keeps Dynamo from a checkpoint around a sharded block."""
    mesh = init_device_mesh("cpu", (ranks,))

    def make(inside):
        model = blocks()
        for k, block in enumerate(model):
            wrapper = checkpoint_wrapper(fully_shard(block, mesh=mesh) if inside else block)
            model[k] = wrapper if inside else fully_shard(wrapper, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    for inside in False, True:
        torch.compiler.reset()
        report = tofuse.explain(make(inside))(inputs(rank))
        assert bool(report.forward.kernels) != inside
        assert bool(report.backward.kernels) != inside
        assert "around a sharded module" in str(report).replace("\n  ", " ")
        check(partial(make, inside), tofuse.compile, inputs(rank))


def collectives_in_arguments(rank, ranks):
    """Gradients pass through an argument that is a collective's result, not yet waited for."""
    mesh = init_device_mesh("cpu", (ranks,))
    for layout, dtype in (Replicate(), torch.float32), (Shard(0), torch.float64):
        torch.manual_seed(0)
        first = nn.Linear(WIDTH, WIDTH, dtype=dtype)
        second = nn.Sequential(nn.LayerNorm(WIDTH), nn.GELU()).to(dtype)
        style = RowwiseParallel(input_layouts=Replicate(), output_layouts=layout)
        parallelize_module(first, mesh, style)
        compiled = tofuse.compile(second, strict=True)
        traced = tofuse.compile(second, capture="trace")
        for rows in 6, 10, 2:
            x = torch.randn(rows, WIDTH, dtype=dtype, requires_grad=True)
            parameters = [x, *first.parameters(), *second.parameters()]
            found = []
            for function in second, compiled, compiled, traced:
                result = function(first(x))
                found.append([result, *torch.autograd.grad(result.square().sum(), parameters)])
            for actual in found[1:]:
                torch.testing.assert_close([*map(whole, actual)], [*map(whole, found[0])])


@contextmanager
def executor_that_fails(on_this_rank):
    def check(request):
        if on_this_rank:
            raise ValueError("no such library here")
        return "not wanted"

    tofuse.register_executor("mine", ops=["aten.mm", "aten.addmm"], run=torch.mm, check=check)
    try:
        yield ("mine", "llvm")
    finally:
        tofuse.unregister_executor("mine")


def fallback_on_one_rank(rank, ranks):
    """The rank that runs the program through PyTorch starts the same collectives."""
    mesh = init_device_mesh("cpu", (ranks,))
    with executor_that_fails(rank == 1) as executors, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        compile_model = partial(tofuse.compile, executors=executors)
        check(partial(parallel_blocks, mesh), compile_model, inputs(0))
    messages = [str(w.message) for w in seen if issubclass(w.category, tofuse.TofuseWarning)]
    assert any("no such library here" in m for m in messages) == (rank == 1), messages


def error_on_one_rank(rank, ranks):
    """The other rank waits in the first collective until the timeout of its group.

    The processes must be new: DTensor's caches take meshes of the same ranks for one, and would run
    the collectives in the group of an earlier one.
    """
    group = dist.new_group(timeout=timedelta(seconds=10))
    model = parallel_blocks(DeviceMesh.from_group(group, "cpu"))
    error = "no such library here" if rank == 1 else "(?i)timed out"
    with executor_that_fails(rank == 1) as executors:
        compiled = tofuse.compile(model, executors=executors, strict=True)
        with pytest.raises(Exception, match=error):
            compiled(inputs(0))


SCENARIOS: tuple[Scenario, ...] = (
    *map(TrainRow, ROWS),
    sizes_dtypes_and_layouts,
    strides_of_arguments,
    traced_dtensors,
    checkpoints_of_sharded_blocks,
    collectives_in_arguments,
    written_collectives,
    random_programs_with_collectives,
    work_beside_collectives,
    operands_in_flight,
    compiled_data_parallel,
    methods_of_sharded_modules,
    fallback_on_one_rank,
    dropout_masks,
    dropouts_of_parts,
    masks_of_parts,
)


def test_two_ranks(request):
    """All scenarios share two processes."""
    chosen: Sequence[Scenario] = SCENARIOS
    if not request.config.getoption("--full"):
        chosen = sample_cases(SCENARIOS, "test_two_ranks", 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        errors = run_ranks(list(chosen), ranks=2)
    assert not errors, "\n".join(errors.values())


def test_error_on_one_rank():
    assert not run_ranks([error_on_one_rank], ranks=2)
