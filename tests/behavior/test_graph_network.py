"""A layer of a graph network: gathers, sums by node, updates in place, unused results."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class MessagePassing(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(2 * width, width), nn.GRUCell(width, width)
        self.readout, self.other = nn.Linear(width, 3), nn.Linear(width, 5)

    def forward(self, h: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        messages = F.relu(self.message(torch.cat([h[source], h[target]], -1)))
        ones = torch.ones_like(target, dtype=h.dtype)
        count = torch.zeros(len(h), dtype=h.dtype).scatter_add(0, target, ones).clamp(min=1)
        h = self.update(torch.zeros_like(h).index_add(0, target, messages) / count[:, None], h)
        index = target[:, None].expand_as(messages)
        largest = torch.full_like(h, -1e9).scatter_reduce(0, index, messages, "amax")
        marked = h.clone()
        marked[target[:3]] = 0.5
        few = source[:5]
        marked = torch.index_put(marked, (few,), h[:1].expand(len(few), -1), accumulate=True)
        return self.readout(marked), self.other(h), largest.clamp(min=0), h.softmax(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("used", [(0,), (1, 2), (0, 1, 2, 3)], ids=str)
@pytest.mark.parametrize(("nodes", "edges"), [(1000, 5003), (1, 7), (4000, 1), (3000, 0)])
def test_training_is_as_eager(nodes, edges, used, dtype):
    network = MessagePassing(97).to(dtype)
    compiled = tofuse.compile(network)
    rtol = 2e-4 if dtype == torch.float32 else 1e-7
    for _ in range(3):
        h = torch.randn(nodes, 97, dtype=dtype, requires_grad=True)
        source, target = torch.randint(nodes, (2, edges))
        found = []
        for run in (network, compiled):
            results = run(h, source, target)
            loss = sum((results[k] ** 2).mean() for k in used)
            inputs = [h, *network.parameters()]
            found.append((results, torch.autograd.grad(loss, inputs, materialize_grads=True)))
        torch.testing.assert_close(found[0], found[1], rtol=rtol, atol=rtol / 20)
