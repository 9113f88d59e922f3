"""The cache of guarded code on disk, which skips Dynamo in later processes."""

from __future__ import annotations

import base64
import logging
import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FunctionType, MethodType

from tofuse.cache.programs import source_digest
from tofuse.capture.dynamo.guarded_code import GuardedCode
from tofuse.capture.dynamo.overlap_guard import OverlapGuard
from tofuse.capture.dynamo.references import code_digest
from tofuse.config import Config
from tofuse.cost.machine_source import store_of
from tofuse.torch_internals.dynamo_guards import capture_settings

KIND = "code"
MAX_CODES = 8  # of one function: the last ones
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredProgram:
    """A program on disk.

    `identity` is its key, without the options. `torch_state` and `calls` are what its fingerprint
    was made of. Eager runs the pickled `graph` for some calls: those that `overlaps` accepts, and
    others.
    """

    identity: tuple[str, ...]
    torch_state: str
    calls: tuple[str, ...]
    graph: bytes
    overlaps: OverlapGuard | None


StoredCode = tuple[GuardedCode, StoredProgram]


def load_codes(function: FunctionType, config: Config) -> list[StoredCode]:
    """Return what is kept of a function, the newest first."""
    store, key = store_of(config), _key(function, config)
    text = store.get(KIND, key)
    if text is None:
        return []
    with suppress(Exception):  # a damaged or incompatible entry
        codes: list[StoredCode] = pickle.loads(base64.b64decode(text))
        log.debug("loaded from disk: %s", store.path(KIND, key))
        return codes
    store.drop(KIND, key)
    return []


def store_code(function: FunctionType, stored: StoredCode, config: Config) -> None:
    """Keep guarded code of a function."""
    kind = stored[0].kind_of_call
    others = [x for x in load_codes(function, config) if x[0].kind_of_call != kind]
    try:
        content = pickle.dumps([stored, *others][:MAX_CODES])
    except Exception:
        return  # it holds objects that cannot be pickled
    text = base64.b64encode(content).decode("ascii")
    store_of(config).put(KIND, _key(function, config), text)


def _key(function: FunctionType, config: Config) -> Sequence[str]:
    """Return the store's key: the function's name and code, and all that capture depends on."""
    settings = (repr(config), capture_settings(), sys.version)
    return (source_digest(), *settings, *_identity(function))


def _identity(function: FunctionType) -> Iterator[str]:
    """Yield names and digests of a function; for a wrapper of ours, those of its method."""
    yield f"{function.__module__}.{function.__qualname__} {code_digest(function.__code__)}"
    for cell in function.__closure__ or ():  # see `with_unique_code`
        method = cell.cell_contents
        if isinstance(method, MethodType) and isinstance(method.__func__, FunctionType):
            yield from _identity(method.__func__)
            owner = type(method.__self__)
            yield f"{owner.__module__}.{owner.__qualname__}"
