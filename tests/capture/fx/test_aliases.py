"""The aliases and writes of FX nodes agree with eager on random programs of views and writes."""

import random

import pytest
import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx

from tofuse.analysis.alias import returns_view
from tofuse.capture.fx.aliases import base_node, shared_argument, viewed_node, written_nodes
from tofuse.ops.reference import resolve_operator

PROGRAMS, CHUNKS = 400, 4

VIEWS = (
    lambda x, n: x.transpose(0, -1) if x.dim() else torch.ops.aten.alias(x),
    lambda x, n: x[n % x.shape[0] :] if x.dim() else x.unsqueeze(0),
    lambda x, n: x.unsqueeze(n % (x.dim() + 1)),
    lambda x, n: x.flatten(),
    lambda x, n: x.reshape(-1),  # a view or a copy
    lambda x, n: x.expand(2, *x.shape)[n % 2],
    lambda x, n: x.split(2)[-1] if x.dim() else x.detach(),
    lambda x, n: x.unbind(0)[0] if x.dim() else x.view_as(x),
    lambda x, n: x.diagonal() if x.dim() > 1 else x.squeeze(),
)
WRITES = (
    lambda x, y: x.add_(1),
    lambda x, y: x.copy_(y.sum()),
    lambda x, y: x.mul_(y.mean()),
    lambda x, y: torch.sin(y.sum(), out=x) if x.dim() == 0 else x.zero_(),
    lambda x, y: x.index_fill_(0, torch.tensor([0]), 2.0) if x.dim() else x.neg_(),
)
OTHERS = (lambda x, y: x + 1, lambda x, y: x.cos(), lambda x, y: x.sum(0) if x.dim() else x * 2)


def random_function(seed: int):
    """Return a function of two tensors that makes views, writes and computes."""
    rng = random.Random(seed)
    steps = [(rng.randrange(3), rng.random(), rng.randrange(100)) for _ in range(rng.randint(1, 7))]

    def run(*tensors: torch.Tensor):
        values = [*tensors]
        for kind, place, n in steps:
            x, y = values[int(place * len(values))], values[-1]
            choices = (VIEWS, WRITES, OTHERS)[kind]
            values.append(choices[n % len(choices)](x, n if kind == 0 else y))
        return values[-2:]

    return run


class Recorder(Interpreter):
    """Runs a graph, and records the tensors of each node and the storages that its call writes."""

    def __init__(self, gm: GraphModule) -> None:
        super().__init__(gm)
        self.values: dict[Node, object] = {}
        self.written: dict[Node, set[int]] = {}

    def run_node(self, n: Node) -> object:
        live = [v for v in self.values.values() if isinstance(v, torch.Tensor)]
        before = [t._version for t in live]
        self.values[n] = super().run_node(n)
        changed = [t for t, version in zip(live, before, strict=True) if t._version != version]
        self.written[n] = {storage(t) for t in changed}
        return self.values[n]


def storage(tensor: object) -> int:
    assert isinstance(tensor, torch.Tensor)
    return tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_programs_agree_with_eager(chunk):
    for seed in range(chunk, PROGRAMS, CHUNKS):
        arguments = torch.randn(4, 2), torch.randn(3, 3)
        gm = make_fx(random_function(seed))(*(t.clone() for t in arguments))
        recorder = Recorder(gm)
        recorder.run(*arguments)
        tensors = {n: t for n, t in recorder.values.items() if isinstance(t, torch.Tensor)}
        for n in tensors:
            operand = viewed_node(n)
            if operand is not None and isinstance(recorder.values[operand], torch.Tensor):
                assert storage(tensors[n]) == storage(tensors[operand]), (seed, n)
            sharing = [m for m in tensors if storage(tensors[m]) == storage(tensors[n])]
            assert {base_node(m) for m in sharing} == {base_node(n)}, (seed, n, sharing)
            written = {storage(tensors[m]) for m in written_nodes(n)}
            assert written == recorder.written[n], (seed, n)


def test_views_of_atens_operators_are_views_of_their_first_argument():
    """The analysis of graphs relies on it."""
    targets = [str(o) for p in dir(torch.ops.aten) for o in overloads(p)]
    views = [target for target in targets if returns_view(target)]
    assert len(views) > 60
    for target in views:
        operator = resolve_operator(target)
        assert isinstance(operator, torch._ops.OpOverload)
        shared = shared_argument(operator)
        assert shared is not None and shared[0] == 0, target


def overloads(name: str) -> list[object]:
    packet = getattr(torch.ops.aten, name)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return []
    found = [getattr(packet, overload) for overload in packet.overloads()]
    return [
        o for o in found if o._schema.arguments and str(o._schema.arguments[0].type) == "Tensor"
    ]
