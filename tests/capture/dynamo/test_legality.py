"""Programs of nothing but views are PyTorch's own calls."""

import pytest
import torch
from torch import Tensor

import tofuse
from tofuse.capture.dynamo import backend

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
VIEWS = {
    "view": lambda x: x.view(4, 4),
    "turned": lambda x: x.t()[1:],
    "several": lambda x: (x.split(1), x.detach().real, x.unsqueeze(0).expand(3, -1, -1)),
    "itself": lambda x: (x, x.reshape(-1), x.contiguous().float()),
    "size": lambda x: (x.view(-1, x.shape[0]), x.shape[1]),
}
OTHERS = {
    "computed": lambda x: (x.view(4, 4), x + 1),
    "copied": lambda x: x.t().contiguous().view(-1),
    "written": lambda x: x.view(-1).mul_(2),
    "fresh": lambda x: (x.t(), torch.zeros(2)),
    "unread": lambda x: (x.sin(), x.view(-1))[1],
}


@pytest.fixture
def found(monkeypatch):
    answers = []
    asked = backend.only_views

    def ask(gm):
        answers.append(asked(gm))
        return answers[-1]

    monkeypatch.setattr(backend, "only_views", ask)
    return answers


def tensors(made: object) -> list[Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(made) if isinstance(t, Tensor)]


def gradient(made: list[Tensor], x: Tensor) -> Tensor:
    squares = [t.square().sum() for t in made if t.requires_grad]
    return torch.autograd.grad(torch.stack(squares).sum(), x)[0]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", [*VIEWS, *OTHERS])
def test_as_eager(name, grad, dynamic, found):
    f = (VIEWS | OTHERS)[name]
    grad = grad and name != "written"  # a leaf that wants a gradient is not
    compiled = tofuse.compile(f, strict=True, dynamic=dynamic)
    for _ in range(2):
        x = torch.randn(2, 8, requires_grad=grad)
        again = x.detach().clone().requires_grad_(grad)
        got, wanted = tensors(compiled(x)), tensors(f(again))
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride() and a.requires_grad == b.requires_grad
            shared = b.data_ptr() - again.data_ptr() == a.data_ptr() - x.data_ptr()
            assert (a._base is x) == (b._base is again) and (shared or name in OTHERS)
        if any(t.requires_grad for t in got):
            torch.testing.assert_close(gradient(got, x), gradient(wanted, again))
    assert all(found) == (name in VIEWS) if found else name in OTHERS


def test_what_is_written_afterwards_is_seen():
    compiled = tofuse.compile(lambda x: x.t()[1:])
    x = torch.zeros(2, 3)
    compiled(x).add_(1)
    assert x.tolist() == [[0, 1, 1], [0, 1, 1]]
    with torch.no_grad():
        compiled(x)[0, 0] = 5
    assert x[0, 1] == 5
