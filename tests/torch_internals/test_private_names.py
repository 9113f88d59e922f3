"""Without any private name of torch, tofuse imports, and programs give eager's results."""

import subprocess
import sys

import pytest

import tofuse
import tofuse.public  # looks all names up
from tofuse.torch_internals.private_names import (
    EVERYTHING,
    TRACING,
    PrivateName,
    essential,
    has_attribute,
    missing_notes,
    private,
    private_names,
    stand_in,
    takes,
    unsupported_capture,
)

FOUND = [n for n in private_names() if n.found]
ESSENTIAL = [n.name for n in FOUND if n.lost in (EVERYTHING, TRACING)]
OTHERS = [n.name for n in FOUND if n.lost not in (EVERYTHING, TRACING)]


@pytest.mark.parametrize("half", range(2))
def test_programs_give_eagers_results_without_a_name(half, request):
    """Each process lacks many names; with --full, there is a process for each name."""
    groups = [ESSENTIAL[half::2], OTHERS[half::4], OTHERS[half + 2 :: 4]]
    processes = [",".join(group) for group in groups]
    if request.config.getoption("--full"):
        processes = [*ESSENTIAL, *OTHERS][half::2]
    command = [sys.executable, "-m", "tests.support.run_without", *processes]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


IMPORT_UNDER_MODES = """
import os, torch
from torch._subclasses.fake_tensor import FakeTensorMode

modes = [FakeTensorMode(), torch.autocast("cpu"), torch.device("meta"), torch.inference_mode()]
for mode in [*modes, torch.autograd.forward_ad.dual_level()]:
    child = os.fork()
    if not child:
        with mode:
            import tofuse.public
            from tofuse.torch_internals.storage_owners import COUNTS_SHOW_OWNERS
            from tofuse.torch_internals.private_names import missing_notes
        os._exit(not COUNTS_SHOW_OWNERS or len(missing_notes()))
    assert os.waitpid(child, 0)[1] == 0, mode
"""


def test_names_are_found_under_the_modes_of_the_importing_program():
    command = [sys.executable, "-c", IMPORT_UNDER_MODES]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_this_torch_has_every_name():
    assert missing_notes() == []
    assert unsupported_capture("dynamo") is unsupported_capture("trace") is None


@pytest.fixture
def table(monkeypatch):
    """An empty table of names."""
    names: dict[str, PrivateName] = {}
    monkeypatch.setattr("tofuse.torch_internals.private_names._names", names)
    return names


def test_a_name_is_missing_if_it_is_not_there_or_fails_its_check(table):
    assert private("torch._none", "name", "speed", 1) == 1
    assert private("torch", "_none.name", "speed", 2) == 2
    assert private("torch", "add", "speed", None, lambda f: False) is None
    assert private("torch", "add", "speed", None, lambda f: [][0]) is None
    assert not any(n.found for n in table.values())
    assert missing_notes()[0] == "this release of torch has no torch._none.name: speed"
    assert private("functools", "reduce", "speed", None) is not None
    assert not has_attribute(1, "_none", "speed") and has_attribute(1, "real", "speed")


def test_programs_are_not_captured_without_an_essential_name(table):
    essential("torch._none", "function", "Error")
    assert "torch._none.function, no torch._none.Error" in str(unsupported_capture("dynamo"))


def test_stand_ins_are_classes_whose_calls_raise():
    error = stand_in("torch._none.Error")
    assert not isinstance(ValueError(), error)
    assert getattr(error, "MEMBER") == "MEMBER"  # noqa: B009  (for the type checker)
    with pytest.raises(tofuse.UnsupportedError, match=r"torch\._none\.Error"):
        error()


def test_tracing_needs_more_names(table):
    essential("torch._none", "function", lost=TRACING)
    assert unsupported_capture("dynamo") is None and unsupported_capture("trace")


def test_takes_checks_the_parameters():
    assert takes("a", "b")(lambda b, *, a, c: None)
    assert not takes("a", "b")(lambda a: None) and not takes()(1)
