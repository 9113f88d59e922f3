"""The exception classes. Every error that tofuse raises on purpose is a TofuseError."""

import difflib
from collections.abc import Iterable


class TofuseError(Exception):
    """The base class. A message says what is wrong, where, and what to do."""


class OptionError(TofuseError, ValueError):
    """An unknown option, or an invalid value of an option."""


class UnsupportedError(TofuseError):
    """Something that the torch version or the platform does not support."""


class CaptureError(TofuseError):
    """A program that cannot be captured as a Graph; it falls back to PyTorch."""


class VerifyError(TofuseError):
    """An IR that violates its invariants, or a result that differs from the reference."""


class ParseError(TofuseError, ValueError):
    """Text that is not the printed form of an IR."""


class CompileError(TofuseError):
    """A kernel that a backend cannot compile."""


class ProgramFileError(TofuseError):
    """A file that is no exported program, is damaged, or does not suit this machine."""


class InputError(TofuseError, TypeError, ValueError):
    """Arguments that do not fit an exported program."""


class DefinitionError(TofuseError, RuntimeError):
    """A FusionDefinition that is not well formed, or inputs that do not match it."""


class IndexOutOfRangeError(TofuseError, IndexError, RuntimeError):
    """An index in a tensor is out of range: IndexError or RuntimeError in eager, by operator."""


class TofuseWarning(UserWarning):
    """The category of all warnings of tofuse."""


def message_of(error: Exception) -> str:
    """Return the whole message of an error; the name of its type if it has none."""
    return str(error).strip() or type(error).__name__


def first_line(error: Exception) -> str:
    """Return the first line of an error's message; the name of its type if it has none."""
    return message_of(error).splitlines()[0]


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return `; did you mean 'x'?` for the known name that is nearest; else `otherwise`."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else otherwise
