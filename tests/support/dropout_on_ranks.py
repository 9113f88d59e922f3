"""Scenarios on several ranks: dropout draws one mask for tensors that are whole or split."""

import math
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

import tofuse
from suites.distributed.rows import whole

WIDTH = 32


class Dropouts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(self.down(F.gelu(self.up(self.dropout(x)))))


def dropout_masks(rank, ranks):
    """Ranks that were seeded alike draw one mask for values that all of them hold."""
    model = Dropouts()
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model, init_device_mesh("cpu", (ranks,)), plan)
    masks = []
    for function in (model, tofuse.compile(model, strict=True)):
        torch.manual_seed(0)
        for _ in range(2):
            x = torch.ones(64, WIDTH, requires_grad=True)
            result = function(x)
            (slope,) = torch.autograd.grad(result.sum(), x)
            found = torch.stack([result.detach() == 0, slope == 0]).byte()
            masks.append(found)
            all_ranks = [torch.empty_like(found) for _ in range(ranks)]
            dist.all_gather(all_ranks, found)
            assert all(torch.equal(mask, found) for mask in all_ranks)
    assert all(0.4 < mask.float().mean() < 0.6 for mask in masks)
    assert not any(torch.equal(a, b) for a, b in pairwise(masks))


def dropped(x):
    return F.dropout(x.exp(), 0.4)


def dropped_in_place(x):
    y = x + 2
    F.dropout(y, p=0.4, inplace=True)
    return y


def dropped_by_rows(x):
    return torch.dropout(input=x.exp()[:, ::2], p=0.4, train=True).sin()


def dropped_in_checkpoint(x):
    return checkpoint(dropped, x, use_reentrant=False)


def dropouts_of_parts(rank, ranks):
    """Each way to write a dropout, under Dynamo and traced, also with another default dtype."""
    mesh = init_device_mesh("cpu", (ranks,))
    x = torch.linspace(-1, 1, 96).reshape(8, 12).requires_grad_()
    cases = [(f, "dynamo", torch.float32) for f in (dropped, dropped_in_place, dropped_by_rows)]
    cases += [(dropped_in_checkpoint, "dynamo", torch.float32)]
    cases += [(dropped, "trace", torch.float32), (dropped, "dynamo", torch.bfloat16)]
    for function, capture, default in cases:
        torch.compiler.reset()
        torch.set_default_dtype(default)
        try:
            compiled = tofuse.compile(function, capture=capture)
            results = []
            for y in x, distribute_tensor(x, mesh, [Shard(0)]):
                torch.manual_seed(3)
                results.append(whole(compiled(y)).detach())
            torch.testing.assert_close(*results, rtol=0, atol=0)
            assert 0.4 < results[0].count_nonzero() / results[0].numel() < 0.8
            strided = compiled(distribute_tensor(x, mesh, [Shard(0)]))
            expected = function(distribute_tensor(x, mesh, [Shard(0)]))
            assert strided.stride() == expected.stride(), function
        finally:
            torch.set_default_dtype(torch.float32)


def masks_of_parts(rank, ranks):
    """A DTensor's parts lose the elements that the whole tensor loses, in both directions."""
    line, square = init_device_mesh("cpu", (ranks,)), init_device_mesh("cpu", (1, ranks))
    cases: list[tuple[DeviceMesh, list[Placement], tuple[int, ...], torch.dtype, bool | None]] = [
        (line, [Shard(1)], (2, 8, 6), torch.float32, False),
        (line, [Shard(-1)], (3, 7), torch.float64, True),  # parts of two sizes
        (line, [Shard(0)], (1, 5), torch.bfloat16, None),  # nothing on one rank
        (square, [Replicate(), Shard(0)], (6, 4), torch.float16, True),
        (square, [Shard(0), Shard(0)], (6, 4), torch.float32, None),
    ]
    for mesh, placements, shape, dtype, dynamic in cases:
        torch.compiler.reset()
        compiled = tofuse.compile(lambda x: F.dropout(x.exp(), 0.4), strict=True, dynamic=dynamic)
        found = []
        for is_split in False, True:
            torch.manual_seed(3)
            for _ in range(2):
                x = torch.linspace(-1, 1, math.prod(shape), dtype=dtype).reshape(shape)
                x = distribute_tensor(x, mesh, placements) if is_split else x
                result = compiled(x.requires_grad_())
                (slope,) = torch.autograd.grad(result, x, torch.ones_like(result))
                found += [whole(result).detach(), whole(slope)]
        half = len(found) // 2
        assert all(map(torch.equal, found[:half], found[half:])), (placements, shape)
        assert 0 < found[0].count_nonzero() < found[0].numel()
        assert math.prod(shape) < 16 or not torch.equal(found[0], found[2])
