"""The exception tree: every error tofuse raises on purpose is a TofuseError."""


class TofuseError(Exception):
    """Base of all errors; the message says what is wrong, where, and what to do."""


class OptionError(TofuseError, ValueError):
    """An option that does not exist, or a value it does not take."""


class UnsupportedError(TofuseError):
    """Something this installation cannot do: a torch version, a platform."""


class CaptureError(TofuseError):
    """A program that cannot be brought into a Graph; PyTorch runs it instead."""


class VerifyError(TofuseError):
    """An IR that breaks its own rules, or a result that differs from the reference."""


class ParseError(TofuseError, ValueError):
    """Text that is not the printed form of an IR."""


class CompileError(TofuseError):
    """A kernel that a backend could not compile."""


class DefinitionError(TofuseError, RuntimeError):
    """A FusionDefinition that is not well formed, or inputs that it does not take."""
