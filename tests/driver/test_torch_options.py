"""Modes and options of `torch.compile` with the backend "tofuse"."""

import warnings

import pytest
import torch

import tofuse
from tofuse.config import MODES, make_config
from tofuse.driver.torch_options import own_options
from tofuse.errors import OptionError, TofuseWarning

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def program(x):
    return x.sin() * x + x.sum()


@pytest.mark.parametrize("mode", MODES)
def test_modes_of_torch(mode):
    x = torch.randn(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for compiled in (
            torch.compile(program, backend="tofuse", mode=mode),
            tofuse.compile(program, mode=mode),
        ):
            torch.testing.assert_close(compiled(x), program(x))
    assert make_config({"mode": mode}).tune == ("measure" if "autotune" in mode else "off")
    assert make_config({"mode": mode, "tune": "off"}).tune == "off"


def test_an_unknown_mode_names_the_nearest():
    with pytest.raises(OptionError, match="did you mean 'max-autotune'"):
        tofuse.compile(program, mode="max_autotune")


def test_options_of_inductor_are_ignored_with_one_warning():
    options = {"epilogue_fusion": True, "shape-padding": True, "strict": True}
    with pytest.warns(TofuseWarning, match="ignores .*: 'epilogue_fusion', 'shape-padding'$"):
        assert own_options(options, None) == {"strict": True}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert own_options(options, "default") == {"strict": True, "mode": "default"}
    compiled = torch.compile(program, backend="tofuse", options={**options})
    torch.testing.assert_close(compiled(x := torch.randn(5)), program(x))


@pytest.mark.parametrize("name", ["max_autotune", "max-autotune", "coordinate_descent_tuning"])
def test_options_of_tuning_measure(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert own_options({name: True}, None) == {"tune": "measure"}
        assert own_options({name: False}, None) == {}
        assert own_options({name: True, "tune": "off"}, None) == {"tune": "off"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epilog_fusion": True}, "tofuse has no option 'epilog_fusion'"),
        ({"stritc": True}, "did you mean 'strict'"),
        ({"dynamic": True}, "torch.compile captures the program"),
        ({"recompile_limit": 3}, "torch.compile captures the program"),
    ],
    ids=str,
)
def test_words_that_nobody_knows_are_errors(options, message):
    with pytest.raises(Exception, match=message):
        torch.compile(program, backend="tofuse", options=options)(torch.randn(5))


def test_only_compile_takes_the_option(tmp_path):
    with pytest.raises(Exception, match="background is for"):
        torch.compile(torch.sin, backend="tofuse", options={"background": True})(torch.ones(3))
    with pytest.raises(OptionError, match="export takes"):
        tofuse.export(torch.sin, (torch.ones(3),), tmp_path / "sin", background=True)
