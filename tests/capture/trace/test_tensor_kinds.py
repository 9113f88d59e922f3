"""Tensor subclasses under capture="trace": what cannot be looked into is never half traced."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_map

import tofuse
from tests.behavior.test_tensor_subclasses import Wrapped
from tofuse.errors import CaptureError


class Named(torch.Tensor):
    """A subclass without behaviour, but its own type."""


class Doubled(torch.Tensor):
    """A subclass whose sine is twice the sine."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func is torch.Tensor.sin else result


class Opaque(torch.Tensor):
    """A tensor around another one, which nothing but its own class can find."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype)

    def __init__(self, inner):
        self.wrapped = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[override]
        inside = tree_map(lambda t: getattr(t, "wrapped", t), (args, kwargs or {}))
        result = func(*inside[0], **inside[1])
        return tree_map(lambda t: Opaque(t) if isinstance(t, torch.Tensor) else t, result)


TRACEABLE = {
    "a wrapper": Wrapped,
    "a pair": lambda x: TwoTensor(x, 3 * x),
}
OTHERS = {
    "a name": lambda x: x.as_subclass(Named),
    "another function": lambda x: x.as_subclass(Doubled),
    "opaque": Opaque,
    "a wrapper of another function": lambda x: Wrapped(x.as_subclass(Doubled)),
}
PLACES = ("argument", "in a dict", "closure", "parameter", "buffer")


def program(x, w):
    return (x.sin() * w.sin() + 1).sum(-1)


class Holder(nn.Module):
    def __init__(self, w, place):
        super().__init__()
        self.w = nn.Parameter(w) if place == "parameter" else nn.Buffer(w)

    def forward(self, x):
        return program(x, self.w)


def call_with(place, w, compiler):
    """Return a function of x that computes the program on x and w, compiled."""
    if place == "argument":
        two = compiler(program)
        return lambda x: two(x, w)
    if place == "in a dict":
        of_dict = compiler(lambda x, d: program(x, d["w"]))
        return lambda x: of_dict(x, {"w": w})
    return compiler((lambda x: program(x, w)) if place == "closure" else Holder(w, place))


def plain(t):
    """Return the tensors inside a tensor, with the types around them."""
    if isinstance(t, TwoTensor):
        return [TwoTensor, *plain(t.a), *plain(t.b)]
    if isinstance(t, (Wrapped, Opaque)):
        return [type(t), *plain(t.wrapped)]
    return [type(t), t.detach().as_subclass(torch.Tensor).clone()]


def results(make, place, training, compiler):
    """Return the results of two calls, and the gradients of the argument."""
    torch.manual_seed(0)
    call, found = call_with(place, make(torch.randn(4)), compiler), []
    for _ in range(2):
        x = torch.randn(3, 4, requires_grad=training)
        result = call(x)
        if training:
            result.sum().backward()
            found += plain(x.grad)
        found += plain(result.detach())
    return found


def same(actual, expected):
    assert [t for t in actual if isinstance(t, type)] == [
        t for t in expected if isinstance(t, type)
    ]
    tensors = ([t for t in found if isinstance(t, torch.Tensor)] for found in (actual, expected))
    torch.testing.assert_close(*tensors)


def traced(function):
    return tofuse.compile(function, capture="trace")


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", TRACEABLE)
def test_tensors_around_others(kind, place, training):
    make = TRACEABLE[kind]
    expected = results(make, place, training, lambda function: function)
    same(results(make, place, training, traced), expected)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", OTHERS)
def test_what_cannot_be_looked_into(kind, place, training):
    """PyTorch runs calls with such arguments; other such tensors are an error that names them."""
    make = OTHERS[kind]
    if place in ("argument", "in a dict"):
        expected = results(make, place, training, lambda function: function)
        same(results(make, place, training, traced), expected)
        return
    name = type(make(torch.ones(1))).__name__
    with pytest.raises(CaptureError, match=rf"a {name} of shape \(4,\); .* capture='dynamo'"):
        results(make, place, training, traced)


@pytest.fixture(scope="module")
def mesh():
    """A mesh of one rank; DTensor's caches would take a second one for the first."""
    store = dist.HashStore()  # type: ignore[attr-defined]  # torch does not list it
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("place", [p for p in PLACES if p != "closure"])  # which is found once
def test_placements_are_guarded(mesh, place):
    """A DTensor with other placements, but one size and type, gets a program of its own."""
    values, x = torch.randn(4, 4), torch.randn(4, 4)
    placed = [distribute_tensor(values, mesh, [p]) for p in (Shard(0), Replicate(), Shard(1))]
    if place in ("argument", "in a dict"):
        call = traced((lambda w: w.sin() * 2) if place == "argument" else (lambda d: d["w"].sin()))
        for w in placed * 2:
            found = call(w if place == "argument" else {"w": w})
            assert found.placements == w.placements
        return
    holder = Holder(placed[0], place)
    compiled = traced(holder)
    for w in placed * 2:
        setattr(holder, "w", nn.Parameter(w) if place == "parameter" else w)  # noqa: B010  (types)
        mine = distribute_tensor(x, mesh, w.placements)
        assert compiled(mine).placements == holder(mine).placements
