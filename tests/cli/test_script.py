"""Scripts, names in them, arguments and options of the command line."""

import pytest
import torch

from tofuse.cli.script import UsageError, load_target, parse_options

SCRIPT = """
import dataclasses
import torch

@dataclasses.dataclass
class Pair:
    first: int

def loss(x, scale=2.0):
    return (x * scale).sum()

class Net(torch.nn.Module):
    def forward(self, x):
        return x + 1

class Wide(torch.nn.Module):
    def __init__(self, width):
        super().__init__()

def anything(*args, **kwargs):
    return args, kwargs

model = Net()
SIZE = 3

def inputs():
    return torch.ones(SIZE)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "target_script.py"
    path.write_text(SCRIPT)
    return str(path)


def test_a_function_with_the_inputs_of_the_script(script):
    target = load_target(f"{script}:loss", None)
    assert target.name == "loss"
    assert target.call(*target.args) == 6


def test_arguments_are_python_with_the_names_of_the_script(script):
    target = load_target(f"{script}:loss", "torch.ones(SIZE + 1), 3.0")
    assert target.call(*target.args) == 12
    (x,) = load_target(f"{script}:loss", "torch.ones(2)").args
    assert isinstance(x, torch.Tensor) and x.shape == (2,)


@pytest.mark.parametrize(
    ("text", "args", "kwargs"),
    [
        ("1, 2.0", (1, 2.0), {}),
        ("(1, 2.0)", (1, 2.0), {}),
        ("[1, 2.0]", ([1, 2.0],), {}),
        (" 1 ", (1,), {}),
        ("()", (), {}),
        ("1, scale=3.0", (1,), {"scale": 3.0}),
        ("x=SIZE, scale=3.0,", (), {"x": 3, "scale": 3.0}),
        ("*[1, 2]", (1, 2), {}),
        ("1, **dict(scale=SIZE)", (1,), {"scale": 3}),
        ("SIZE == 3, scale='a=b'", (True,), {"scale": "a=b"}),
        ("(lambda x=1: x)()", (1,), {}),
    ],
)
def test_arguments_and_keywords(script, text, args, kwargs):
    target = load_target(f"{script}:anything", text)
    assert (target.args, target.kwargs) == (args, kwargs)
    assert target.call(*target.args, **target.kwargs) == (args, kwargs)


def test_without_a_name_it_is_the_model(script):
    assert type(load_target(script, None).call).__name__ == "Net"


def test_a_class_of_modules_is_made(script):
    call = load_target(f"{script}:Net", None).call
    assert isinstance(call, torch.nn.Module)


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        (":los", None, "has no 'los'; did you mean 'loss'\\?"),
        (":absent", None, "has no 'absent'; name one of"),
        (":SIZE", None, "'SIZE' of .* is a int, not a function"),
        (":Wide", None, "'Wide' of .* needs arguments to be made: width"),
        (":loss", "torch.ones(", "--args .*: SyntaxError"),
        (":loss", "torch.ones(2), scael=2.0", "do not fit 'loss': .* argument 'scael'"),
        (":loss", "1, x=2", "do not fit 'loss': multiple values for argument 'x'"),
        (":loss", "scale=2.0", "do not fit 'loss': missing a required argument: 'x'"),
        (":loss", "1, 2, 3", "do not fit 'loss': too many positional"),
        (":Net", "y=2", "do not fit 'Net': missing a required argument: 'x'"),
        (":loss", "x=", "--args 'x=': SyntaxError"),
        (":loss", "nothing", "--args 'nothing': NameError: name 'nothing' is not defined"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(script, name, args, message):
    with pytest.raises(UsageError, match=message):
        load_target(script + name, args)


def test_missing_inputs_are_one_sentence(tmp_path):
    path = tmp_path / "without_inputs.py"
    path.write_text("def model(x, y=1):\n    return x\n")
    with pytest.raises(UsageError, match="has no 'inputs' for 'model': give --args"):
        load_target(str(path), None)


def test_a_file_that_is_no_script(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("")
    with pytest.raises(UsageError, match="is not a Python script"):
        load_target(str(path), None)
    with pytest.raises(UsageError, match="there is no script"):
        load_target(str(tmp_path), None)


def test_options_are_literals_or_text():
    pairs = ["dynamic=True", "fuel=3", "memory-budget=0.5", "tune=measure", "executors=llvm,aten"]
    assert parse_options(pairs) == {
        "dynamic": True, "fuel": 3, "memory_budget": 0.5, "tune": "measure",
        "executors": ("llvm", "aten"),
    }  # fmt: skip
    for pair, message in (
        ("strict", "write -o strict=VALUE"),
        ("precison=eager", "did you mean 'precision'"),
        ("measure=True", "no option 'measure'"),
    ):
        with pytest.raises(UsageError, match=message):
            parse_options([pair])
