"""Load a function or module, and its arguments, from a script: `script.py:function`."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from tofuse.config import Option, make_config
from tofuse.errors import OptionError, did_you_mean

DEFAULT_NAME = "model"
INPUTS_NAME = "inputs"
TARGET_HELP = f"""a script and the name in it of a function, module, or class of modules that needs
 no arguments, as in train.py:loss; without a name: {DEFAULT_NAME}"""
ARGS_HELP = f"""the arguments of the call, as Python: --args "torch.randn(8, 64), scale=0.5"; the
 names of the script may be used; default: the tuple {INPUTS_NAME} of the script, or what its
 function {INPUTS_NAME}() returns"""


class UsageError(Exception):
    """Words of the command line that cannot be used: a script, a name in it, an option."""


@dataclass(frozen=True)
class Target:
    """A callable of a script, and the arguments of its call."""

    name: str
    call: Callable[..., object]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `load_target` and `parse_options` read."""
    parser.add_argument("target", metavar="SCRIPT[:NAME]", help=TARGET_HELP)
    parser.add_argument("--args", metavar="EXPRESSION", help=ARGS_HELP)
    parser.add_argument(
        "-o",
        "--option",
        dest="option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of tofuse.compile, as in -o precision=eager; may be repeated",
    )


def load_target(text: str, args: str | None) -> Target:
    """Run a script and return its callable with arguments.

    Raises UsageError if there is no such script, name, or arguments.
    """
    path, _, name = text.partition(":") if ":" in Path(text).name else (text, "", "")
    module = _load_script(Path(path))
    name = name or DEFAULT_NAME
    value = getattr(module, name, None)
    if value is None:
        known = _callables(module)
        others = f"; name one of {', '.join(known)}" if known else ""
        raise UsageError(f"{path} has no {name!r}{did_you_mean(name, known, others)}")
    if isinstance(value, type) and issubclass(value, torch.nn.Module):
        if needed := _needed_parameters(value):
            raise UsageError(f"{name!r} of {path} needs arguments to be made: {', '.join(needed)}")
        value = value()
    if not callable(value):
        raise UsageError(f"{name!r} of {path} is a {type(value).__name__}, not a function")
    if args is None and INPUTS_NAME not in vars(module) and _needed_parameters(value):
        raise UsageError(f"{path} has no {INPUTS_NAME!r} for {name!r}: give --args")
    positional, keywords = _arguments(module, args)
    if reason := _mismatch(value, positional, keywords):
        source = f"{INPUTS_NAME!r} of {path} does" if args is None else "--args do"
        raise UsageError(f"{source} not fit {name!r}: {reason}")
    return Target(name, value, positional, keywords)


def parse_options(pairs: list[str]) -> dict[str, Option]:
    """Return the options of `tofuse.compile` that `-o name=value` gives.

    Values are True, False, None, numbers, names separated by commas, or text. Raises UsageError
    for an option without a value, an unknown option, and a wrong value.
    """
    options: dict[str, Option] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"-o {pair}: write -o {pair}=VALUE")
        options[name.replace("-", "_")] = _LITERALS.get(value, _number_or_text(value))
    try:
        make_config(options)
    except OptionError as error:
        raise UsageError(str(error)) from error
    return options


def _load_script(path: Path) -> ModuleType:
    """Import a script as a module, with its folder on the path, as Python does."""
    if not path.is_file():
        raise UsageError(f"there is no script {str(path)!r}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{str(path)!r} is not a Python script: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[path.stem] = module  # pickles and dataclasses look it up
    spec.loader.exec_module(module)
    return module


def _needed_parameters(target: Callable[..., object]) -> list[str]:
    """Return the parameters without a default; of a module, those of its forward."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    signature = _signature(target)
    return [
        p.name
        for p in (() if signature is None else signature.parameters.values())
        if p.default is inspect.Parameter.empty and p.kind not in variadic
    ]


def _mismatch(
    target: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> str:
    """Return why a callable does not take these arguments; empty if it does."""
    signature = _signature(target)
    try:
        if signature is not None:
            signature.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return ""


def _signature(target: Callable[..., object]) -> inspect.Signature | None:
    """Return the parameters, of a module those of its forward; None for a function of C."""
    try:
        return inspect.signature(target.forward if isinstance(target, torch.nn.Module) else target)
    except ValueError:
        return None


def _callables(module: ModuleType) -> list[str]:
    own = vars(module).items()
    return [n for n, v in own if callable(v) and getattr(v, "__module__", "") == module.__name__]


def _arguments(
    module: ModuleType, text: str | None
) -> tuple[tuple[object, ...], Mapping[str, object]]:
    """Return the arguments that `--args` gives, or the script."""
    if text is None:
        found = getattr(module, INPUTS_NAME, ())
        return _as_tuple(found() if callable(found) else found), {}
    scope = {"torch": torch, **vars(module)}
    try:
        try:
            code = compile(text.strip(), "--args", "eval")
        except SyntaxError:  # keywords, or a `*`
            return eval(f"(lambda *args, **kwargs: (args, kwargs))({text})", scope)
        return _as_tuple(eval(code, scope)), {}
    except Exception as error:
        raise UsageError(f"--args {text!r}: {type(error).__name__}: {error}") from error


def _as_tuple(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def _number_or_text(text: str) -> Option:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return tuple(text.split(",")) if "," in text else text


_LITERALS: dict[str, Option] = {
    "True": True, "true": True, "False": False, "false": False, "None": None,
}  # fmt: skip
