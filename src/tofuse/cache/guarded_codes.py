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
from tofuse.capture.dynamo.graph_breaks import WRAPPER_FILE
from tofuse.capture.dynamo.guarded_code import GuardedCode
from tofuse.capture.dynamo.overlap_guard import OverlapGuard
from tofuse.capture.dynamo.references import code_digest
from tofuse.config import Config
from tofuse.disk_store import store_of
from tofuse.torch_internals.dynamo_guards import capture_settings

KIND = "capture"
MAX_CODES = 8  # of one function: the last ones
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredProgram:
    """A program on disk.

    `identity` is its key, without the options. `torch_state` and `calls` are parts of its
    fingerprint. `graph` is the pickled FX graph. PyTorch runs it if `overlaps` accepts a call, if a
    mode must see the operators, and for second derivatives.
    """

    identity: tuple[str, ...]
    torch_state: str
    calls: tuple[str, ...]
    graph: bytes
    overlaps: OverlapGuard | None


StoredCode = tuple[GuardedCode, StoredProgram]


def load_codes(function: FunctionType, config: Config) -> list[StoredCode]:
    """Return the guarded codes of a function that are on disk, the newest first."""
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


def store_code(function: FunctionType, stored: StoredCode, config: Config) -> bool:
    """Write guarded code of a function to disk, beside the others; return whether it is there."""
    kind = stored[0].accepted_calls
    others = [x for x in load_codes(function, config) if x[0].accepted_calls != kind]
    content = pickle.dumps([stored, *others][:MAX_CODES])
    text = base64.b64encode(content).decode("ascii")
    return store_of(config).put(KIND, _key(function, config), text)


def _key(function: FunctionType, config: Config) -> Sequence[str]:
    """Return the store's key: the function's name and code, and all that capture depends on."""
    settings = (repr(config), capture_settings(), sys.version)
    return (source_digest(), *settings, *_identity(function))


def _identity(function: FunctionType) -> Iterator[str]:
    """Yield the name and digest of a function, and the method that a wrapper of ours calls."""
    yield f"{function.__module__}.{function.__qualname__} {code_digest(function.__code__)}"
    if function.__code__.co_filename != WRAPPER_FILE:
        return
    for cell in function.__closure__ or ():
        method = cell.cell_contents
        if isinstance(method, MethodType):
            owner = type(method.__self__)
            yield f"{owner.__module__}.{owner.__qualname__} {method.__func__.__qualname__}"
