"""Programs that tracing rejects with a clear error; guards on grad mode; layouts that change."""

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_structure

import tofuse
from tofuse.errors import CaptureError


def test_grad_mode_is_guarded_without_gradients():
    f = tofuse.compile(lambda x: x * (2 if torch.is_grad_enabled() else 3), capture="trace")
    x = torch.ones(1)
    for _ in range(2):
        assert f(x) == 2
        with torch.no_grad():
            assert f(x) == 3
        assert f(x=x) == 2


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x.requires_grad_() ** 3).sum(),
        lambda x: torch.autograd.grad((x.requires_grad_() ** 3).sum(), x)[0],
    ],
)
def test_change_of_requires_grad_is_an_error(program):
    with pytest.raises(CaptureError, match="requires_grad_ before it"):
        tofuse.compile(program, capture="trace")(torch.ones(3))
    assert tofuse.compile(program)(torch.ones(3)).sum() == program(torch.ones(3)).sum()


@pytest.mark.parametrize("result", [lambda x: x, lambda x: x[0]])
def test_memory_of_a_written_argument_that_another_shares_is_not_returned(result):
    """AOTAutograd loses the offset of the view; Dynamo's programs run in eager."""
    program = lambda x, y: (result(x.add_(1)), y * 2)  # noqa: E731
    storages = [torch.arange(6.0) for _ in range(3)]
    arguments = [(s[1:3], s[1:2]) for s in storages]
    with pytest.raises(CaptureError, match="that another argument shares"):
        tofuse.compile(program, capture="trace")(*arguments[0])
    assert storages[0].equal(torch.arange(6.0))
    got, expected = tofuse.compile(program)(*arguments[1]), program(*arguments[2])
    torch.testing.assert_close(got, expected)
    assert storages[1].equal(storages[2])


def test_a_failure_inside_aotautograd_is_a_capture_error():
    def program(x, y, z):
        y[0] = 1
        x = x * 2
        return x[0].view_as(x[0]), x.t(), z.sum()

    a, x = torch.randn(5, 3), torch.randn(8, requires_grad=True)
    with pytest.raises(CaptureError, match=r"AOTAutograd rejects; .*: list index out of range"):
        tofuse.compile(program, capture="trace")(x, a, a.view(-1))


def return_twice(x):
    y = x.sin()
    view = y.view(-1)
    return y, {"again": y, "argument": x}, view, 3, view, x


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_a_tensor_that_is_returned_twice_is_one(capture, requires_grad):
    x = torch.randn(3, 4, requires_grad=requires_grad)
    compiled = tofuse.compile(return_twice, capture=capture)
    expected = identities([x, *tree_leaves(return_twice(x))])
    for _ in range(2):
        results = tree_leaves(compiled(x))
        assert identities([x, *results]) == expected
        if requires_grad:
            results[0].sum().backward(retain_graph=True)
            results[3].sum().backward()
            torch.testing.assert_close(x.grad, 2 * x.detach().cos())
            x.grad = None


def identities(values):
    return [next(k for k, other in enumerate(values) if other is value) for value in values]


def test_nested_results_keep_their_structure():
    x = torch.randn(3)
    for program in (
        lambda x: (x.sin(), [x.cos()]),
        lambda x: ((x.sin(),),),
        lambda x: ({"loss": x.sin()},),
        lambda x: (x.sin(), None),
    ):
        compiled = tofuse.compile(program, capture="trace")
        for _ in range(3):
            assert tree_structure(compiled(x)) == tree_structure(program(x))


@pytest.mark.parametrize("rows, columns", [(31, 1), (1, 1), (1, 5), (0, 7)])
def test_returned_views_have_eagers_strides_in_extents_of_one(rows, columns):
    def program(x, z):
        return (x, [x.sin(), {"k": x.t()}]), (z * x.sum()).real

    transposed, strided = lambda t: t.t().clone().t(), lambda t: torch.stack([t, t], -1)[..., 0]
    for layout in (torch.clone, transposed, strided):
        x, z = layout(torch.randn(rows, columns)), torch.randn(rows, columns, dtype=torch.complex64)
        compiled = tofuse.compile(program, capture="trace")
        got, expected = compiled(x, z), program(x, z)
        found = [[t.stride() for t in torch.utils._pytree.tree_leaves(r)] for r in (got, expected)]
        assert found[0] == found[1]


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_a_result_returned_twice_beside_a_view_of_all_of_it(capture):
    def program(x):
        y = x * 2
        written = y.tril_()
        return y.movedim(1, -1), written, y, y.view(3, 3)

    first, written, same, last = tofuse.compile(program, capture=capture)(torch.randn(3, 3))
    assert written is same and first is not written and last is not written
    assert {t.data_ptr() for t in (first, written, last)} == {written.data_ptr()}


def squeezes(x, w):
    x.squeeze_()
    return x[None], x.unsqueeze(1), x


def transposes(x, w):
    x.t_()
    return x.t(), (x.t() * w).sum(), x.reshape(-1)


def squeezes_and_multiplies(x, w):
    x.squeeze_()
    y = x[None]
    return y, y * w


@pytest.mark.parametrize("capture", ["trace", "dynamo"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [squeezes, transposes, squeezes_and_multiplies])
def test_views_of_an_argument_whose_layout_changes(program, grad, capture):
    """A view that undoes the change has the layout that the argument had, but is not the argument.

    The two were one tensor, whose layout AOTAutograd changed.
    """
    torch.compiler.reset()
    values = torch.arange(3.0)[None], torch.rand(1, 3)
    (x, w), (y, v) = ((a.clone(), b.clone().requires_grad_(grad)) for a, b in (values, values))
    expected, found = program(x, w), tofuse.compile(program, capture=capture)(y, v)
    assert [r is y for r in found] == [r is x for r in expected]
    for e, f in zip((*expected, x), (*found, y), strict=True):
        assert (e.shape, e.stride()) == (f.shape, f.stride())
        torch.testing.assert_close(e, f)
