"""A wrong program raises eager's error, with the user's line; else torch's, whole."""

import traceback
import warnings
from typing import Any

import pytest
import torch
from torch._dynamo.exc import TorchDynamoException

import tofuse

A, B = torch.randn(3, 4), torch.randn(3, 5)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(5, 3)

    def forward(self, x):
        return self.linear(x).sum()


def nested(x, y):
    return matmul(x.sin(), y) + 1


def matmul(x, y):
    return x @ y


# the line of each lambda is the line that is wrong
WRONG: dict[str, tuple[Any, ...]] = {
    "shapes of a product": (lambda x, y: (x + 1) @ y, A, B),
    "shapes of a sum": (lambda x, y: (x * 2) + y, A, B),
    "sizes of a concat": (lambda x, y: torch.cat([x, y]), A, B),
    "size of a view": (lambda x, y: (x * 2).view(7), A, B),
    "devices": (lambda x, y: (x * 2) + y, A, A.to("meta")),
    "dtype of an index": (lambda x, y: x[y], A, torch.ones(2)),
    "dtype of a lookup": (lambda x, y: torch.nn.functional.embedding(x, y), A, B),
    "dimension": (lambda x, y: x.sum(dim=5) + y, A, B),
    "type of an operand": (lambda x, y: x + "a", A, B),
    "a missing argument": (lambda x, y: torch.softmax(x), A, B),  # type: ignore[call-arg]
    "a missing attribute": (lambda x, y: x.absent + y, A, B),
    "a missing name": (lambda x, y: x + absent, A, B),  # type: ignore[name-defined]  # noqa: F821
    "in a callee": (nested, A, B),
    "in a module": (Layer(), A),
    "in a functional": (lambda x, y: torch.nn.functional.linear(x, y), A, B),
}
EAGER_ERRORS: dict[str, dict[str, Any]] = {
    "default": {},
    "dynamic": {"dynamic": True},
    "symbolic backward": {"dynamic": True, "precision": "eager"},
    "hand back": {"hand_back": True},
    "verify": {"verify": True},
    "trace": {"capture": "trace"},
    "background": {"background": True},
}
TORCH_ERRORS = {"fullgraph": {"fullgraph": True}, "strict": {"strict": True}}


def error_of(function, args):
    with pytest.raises(Exception) as caught:
        function(*args)
    return caught.value


def user_frames(error):
    """Return the frames of this file, without those that call the compiled function."""
    frames = traceback.extract_tb(error.__traceback__)
    return [(f.name, f.lineno) for f in frames if f.filename == __file__ and f.name != "error_of"]


def check_eager_error(error, function, args):
    expected = error_of(function, args)
    assert type(error) is type(expected) and str(error) == str(expected)
    assert user_frames(error) == user_frames(expected)
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    assert text.count("Traceback") == 1, text


@pytest.mark.parametrize("options", EAGER_ERRORS)
@pytest.mark.parametrize("name", WRONG)
def test_the_error_is_that_of_eager(name, options, fresh_dynamo):
    function, *args = WRONG[name]
    compiled = tofuse.compile(function, **EAGER_ERRORS[options])
    for _ in range(2):
        check_eager_error(error_of(compiled, args), function, args)


@pytest.mark.parametrize("name", WRONG)
def test_explain_raises_it_too(name, fresh_dynamo):
    function, *args = WRONG[name]
    check_eager_error(error_of(tofuse.explain(function), args), function, args)


@pytest.mark.parametrize("name", WRONG)
def test_a_call_of_other_sizes_is_wrong(name, fresh_dynamo):
    """Wrong calls do not disturb right ones."""
    function, *args = WRONG["shapes of a sum"]
    compiled = tofuse.compile(function)
    for _ in range(2):
        torch.testing.assert_close(compiled(A, A), function(A, A))
        check_eager_error(error_of(compiled, args), function, args)


@pytest.mark.parametrize("options", TORCH_ERRORS)
@pytest.mark.parametrize("name", WRONG)
def test_torch_names_the_line(name, options, fresh_dynamo):
    """Nothing runs in eager: torch's whole message has the user's line, without Dynamo's frames."""
    function, *args = WRONG[name]
    error = error_of(tofuse.compile(function, **TORCH_ERRORS[options]), args)
    frames = traceback.extract_tb(error.__traceback__)
    assert not any("convert_frame" in f.filename for f in frames)
    if "from user code:" not in str(error):
        return check_eager_error(error, function, args)  # of a function that Dynamo skips
    wrong = user_frames(error_of(function, args))[-1][1]
    assert f'{__file__}", line {wrong}' in str(error)
    return None


def test_after_a_graph_break_the_error_has_the_frames_of_the_user(fresh_dynamo):
    ran = []

    def program(x, y):
        z = x + 1
        ran.append(1)
        torch._dynamo.graph_break()
        return z @ y

    error = error_of(tofuse.compile(program), (A, B))
    assert ran == [1], "nothing runs twice"
    frames = traceback.extract_tb(error.__traceback__)
    assert not any("convert_frame" in f.filename for f in frames)
    assert "return z @ y" in str(error)


def test_what_eager_can_run_is_run_with_a_warning(fresh_dynamo):
    """A program that fails on fake tensors only, here because an operator predicts wrongly."""
    with torch.library._scoped_library("tofuse_wrong_programs", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        library.impl("twice", lambda x: torch.empty(2) @ torch.empty(3), "Meta")

        def program(x):
            try:
                return torch.ops.tofuse_wrong_programs.twice(x) + 1
            finally:
                calls.append(1)

        calls: list[int] = []
        compiled = tofuse.compile(program, hand_back=True)
        with pytest.warns(tofuse.TofuseWarning, match="Dynamo cannot trace it"):
            torch.testing.assert_close(compiled(A), A * 2 + 1)
        with warnings.catch_warnings():  # a call of this kind is handed back
            warnings.simplefilter("error")
            torch.testing.assert_close(compiled(A), A * 2 + 1)
        assert len(calls) == 2
        with pytest.warns(tofuse.TofuseWarning, match="Dynamo cannot trace it"):
            report = tofuse.explain(program)(A)
        assert "Dynamo cannot trace it" in str(report)
        for options in TORCH_ERRORS.values():
            assert isinstance(
                error_of(tofuse.compile(program, **options), (A,)), TorchDynamoException
            )
