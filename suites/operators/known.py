"""Known differences of operators from eager, each with its reason.

A difference that torch.compile shows with eager's operators, too, needs no row: the suite sees it.
"""

from collections.abc import Mapping
from fnmatch import fnmatch

KNOWN_DIFFERENCES: Mapping[str, str] = {
    "native_dropout_backward/*int*/*": "eager promotes to float, its own meta kernel does not",
    "native_dropout_backward/bool/*": "eager promotes to float, its own meta kernel does not",
    "atanh/bfloat16/*": "gradients next to the pole at 1: eager rounds on the way, we do not",
}


def known_reason(case: str) -> str | None:
    """Return why a case may differ from eager; None if it may not."""
    return next((why for name, why in KNOWN_DIFFERENCES.items() if fnmatch(case, name)), None)
