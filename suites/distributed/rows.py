"""The rows of the table: how users train on several ranks.

A row is a function that gets a `World` and a `Compiler`, and returns a `Training`.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.parallel import DistributedDataParallel

from suites.distributed.llama import (
    SMALL,
    Checkpointed,
    Llama,
    make_sequence_parallel,
    make_tensor_parallel,
)

BATCH = 4  # sequences of a step, on each rank
BUCKET_MB = 1  # Dynamo takes no less; the model has 2.5 MB of parameters


@dataclass(frozen=True)
class World:
    """A process among `ranks`, and the blocks of the model that it trains."""

    rank: int
    ranks: int
    blocks: int = 2

    def mesh(self) -> DeviceMesh:
        return init_device_mesh("cpu", (self.ranks,))

    def llama(self) -> Llama:
        return new_llama(self.blocks)


@dataclass(frozen=True)
class Compiler:
    """How a row compiles: a module into a compiled one, or a module in place."""

    compile: Callable[[nn.Module], nn.Module]
    compile_in_place: Callable[[nn.Module], None]


@dataclass(frozen=True)
class Training:
    """A model and its step, which returns the loss and leaves gradients in `.grad`."""

    parameters: list[nn.Parameter]
    step: Callable[[int], Tensor]
    tolerance: float = 1e-4  # of losses and gradients, as a share of the largest number


Row = Callable[[World, Compiler], Training]


def new_llama(blocks: int) -> Llama:
    torch.manual_seed(0)
    return Llama(blocks)


def draw_tokens(number: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return the tokens of a rank in a step, and the tokens that follow them."""
    draw = torch.Generator().manual_seed(1000 * rank + number)
    tokens = torch.randint(SMALL.vocabulary, (BATCH, SMALL.length + 1), generator=draw)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


def whole(x: Tensor) -> Tensor:
    """Return a tensor that may be split over ranks as a whole one."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def train(model: nn.Module, rank: int, tolerance: float = 1e-4) -> Training:
    """Return the plain loop. Ranks that share their data have rank 0."""

    def step(number: int) -> Tensor:
        tokens, target = draw_tokens(number, rank)
        loss = cross_entropy(model(tokens), target)
        loss.backward()
        return loss.detach()

    return Training(list(model.parameters()), step, tolerance)


def ddp(world: World, compiler: Compiler) -> Training:
    """`compile(DDP(model))`, several buckets."""
    wrapped = DistributedDataParallel(world.llama(), bucket_cap_mb=BUCKET_MB)
    return train(compiler.compile(wrapped), world.rank)


def ddp_inside(world: World, compiler: Compiler) -> Training:
    """`DDP(compile(model))`."""
    compiled = compiler.compile(world.llama())
    return train(DistributedDataParallel(compiled, bucket_cap_mb=BUCKET_MB), world.rank)


def ddp_accumulated(world: World, compiler: Compiler) -> Training:
    """`model.compile(); DDP(model)`; two batches a step, the first under `no_sync`."""
    model = world.llama()
    compiler.compile_in_place(model)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True)

    def scope(last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last else wrapped.no_sync()

    return _accumulate(wrapped, world.rank, scope)


def _accumulate(
    model: nn.Module, rank: int, scope: Callable[[bool], AbstractContextManager[object]]
) -> Training:
    def step(number: int) -> Tensor:
        total = torch.zeros(())
        for part in range(2):
            tokens, target = draw_tokens(2 * number + part, rank)
            with scope(part == 1):
                loss = cross_entropy(model(tokens), target)
                loss.backward()
            total += loss.detach()
        return total

    return Training(list(model.parameters()), step)


def shard(model: Llama, mesh: DeviceMesh, **options: object) -> Llama:
    """Shard each block, and then the rest."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)  # type: ignore[call-overload]
    fully_shard(model, mesh=mesh, **options)  # type: ignore[call-overload]
    return model


def fsdp(world: World, compiler: Compiler) -> Training:
    """`fully_shard` blocks and model; compile all of it."""
    return train(compiler.compile(shard(world.llama(), world.mesh())), world.rank)


def fsdp_blocks(world: World, compiler: Compiler) -> Training:
    """`block.compile()` for each block, then `fully_shard`."""
    model = world.llama()
    for block in model.blocks:
        compiler.compile_in_place(block)
    return train(shard(model, world.mesh()), world.rank)


def fsdp_bf16(world: World, compiler: Compiler) -> Training:
    """`MixedPrecisionPolicy` of bfloat16, reductions in float32; no `reshard_after_forward`."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = shard(world.llama(), world.mesh(), mp_policy=policy, reshard_after_forward=False)
    return train(compiler.compile(model), world.rank, tolerance=0.05)


def fsdp_accumulated(world: World, compiler: Compiler) -> Training:
    """Two batches a step, gradients reduced with the second: `set_requires_gradient_sync`."""
    model = compiler.compile(shard(world.llama(), world.mesh()))

    def scope(last: bool) -> AbstractContextManager[object]:
        model.set_requires_gradient_sync(last)  # type: ignore[operator]
        return nullcontext()

    return _accumulate(model, world.rank, scope)


def fsdp_offload(world: World, compiler: Compiler) -> Training:
    """Parameters, gradients and the optimizer on the host: `CPUOffloadPolicy`."""
    policy = CPUOffloadPolicy(pin_memory=False)
    model = shard(world.llama(), world.mesh(), offload_policy=policy)
    return train(compiler.compile(model), world.rank)


def tensor_parallel(world: World, compiler: Compiler) -> Training:
    """`parallelize_module` by columns and rows."""
    return train(compiler.compile(make_tensor_parallel(world.llama(), world.mesh())), rank=0)


def sequence_parallel(world: World, compiler: Compiler) -> Training:
    """The same, with norms and residuals split along the sequence."""
    return train(compiler.compile(make_sequence_parallel(world.llama(), world.mesh())), rank=0)


def loss_parallel_logits(world: World, compiler: Compiler) -> Training:
    """The same, with logits and loss split over the vocabulary: `loss_parallel`."""
    model = make_sequence_parallel(world.llama(), world.mesh(), split_logits=True)
    compiled = compiler.compile(model)

    def step(number: int) -> Tensor:
        tokens, target = draw_tokens(number, rank=0)
        with loss_parallel():
            loss = cross_entropy(compiled(tokens), target)
            loss.backward()
        return whole(loss.detach())

    return Training(list(model.parameters()), step)


def two_dimensional(world: World, compiler: Compiler) -> Training:
    """Sequence parallel on pairs of ranks, FSDP over the pairs, and `block.compile()`."""
    return train(*sharded_both_ways(world, compiler))


def sharded_both_ways(world: World, compiler: Compiler) -> tuple[Llama, int]:
    """Return such a model, and the rank of this process among those with other data."""
    mesh = init_device_mesh("cpu", (world.ranks // 2, 2), mesh_dim_names=("data", "tensor"))
    model = make_sequence_parallel(world.llama(), mesh["tensor"])
    for block in model.blocks:
        compiler.compile_in_place(block)
    return shard(model, mesh["data"]), mesh.get_local_rank("data")


def pipeline(
    world: World, compiler: Compiler, schedule: Callable[..., ScheduleGPipe | Schedule1F1B]
) -> Training:
    """One stage on each rank, and a block in each stage."""
    model = new_llama(world.ranks)
    first, last = world.rank == 0, world.rank == world.ranks - 1
    ends = [model.embedding] if first else []
    parts: Iterable[nn.Module] = [*ends, model.blocks[world.rank]]
    parts = [*parts, model.norm, model.out] if last else parts
    module = nn.Sequential(*parts)
    stage = PipelineStage(compiler.compile(module), world.rank, world.ranks, torch.device("cpu"))
    steps = schedule(stage, n_microbatches=world.ranks, loss_fn=cross_entropy)

    def step(number: int) -> Tensor:
        tokens, target = draw_tokens(number, rank=0)
        losses: list[Tensor] = []
        arguments = (tokens,) if first else ()
        steps.step(*arguments, target=target if last else None, losses=losses if last else None)
        total = torch.stack(losses).mean().detach() if last else torch.zeros(())
        dist.broadcast(total, world.ranks - 1)
        return total

    return Training(list(module.parameters()), step)


def checkpoints(world: World, compiler: Compiler, kind: str) -> Training:
    """Blocks in place whose activations are recomputed, under FSDP."""
    model = world.llama()
    for k, block in enumerate(model.blocks):
        model.blocks[k] = Checkpointed(block, kind)
        compiler.compile_in_place(model.blocks[k])
    return train(shard(model, world.mesh()), world.rank)


ROWS: dict[str, Row] = {
    "DDP, compiled around": ddp,
    "DDP, compiled inside": ddp_inside,
    "DDP, in place, accumulated": ddp_accumulated,
    "FSDP2, whole": fsdp,
    "FSDP2, blocks in place": fsdp_blocks,
    "FSDP2, bfloat16, kept": fsdp_bf16,
    "FSDP2, accumulated": fsdp_accumulated,
    "FSDP2, offloaded": fsdp_offload,
    "tensor parallel": tensor_parallel,
    "sequence parallel": sequence_parallel,
    "loss parallel": loss_parallel_logits,
    "FSDP2 and tensor parallel": two_dimensional,
    "pipeline, GPipe": partial(pipeline, schedule=ScheduleGPipe),
    "pipeline, 1F1B": partial(pipeline, schedule=Schedule1F1B),
    "FSDP2, checkpoints": partial(checkpoints, kind="nonreentrant"),
    "FSDP2, reentrant checkpoints": partial(checkpoints, kind="reentrant"),
    "FSDP2, selective checkpoints": partial(checkpoints, kind="selective"),
}
