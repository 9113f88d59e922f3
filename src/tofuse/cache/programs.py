"""The cache of compiled programs on disk, which skips compilation in later processes."""

from __future__ import annotations

import base64
import functools
import hashlib
import logging
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from importlib.util import MAGIC_NUMBER

from tofuse.backends.cpu.llvm.load import host_target
from tofuse.backends.cpu.llvm.machine_code import host_features
from tofuse.backends.cpu.runtime.launch import thread_count
from tofuse.cache.artifact import Artifact
from tofuse.capture.aot.tangent_layouts import TangentLayouts
from tofuse.config import PACKAGE, Config
from tofuse.cost.machine_source import assumed_machine
from tofuse.disk_store import store_of
from tofuse.ir.runtime_kind import InferenceRuntime, RuntimeKind, TrainingRuntime
from tofuse.runtime.execute import CompiledPlan
from tofuse.torch_internals.size_guards import Guards

KIND = "program"
DECISION = "decision"
CACHEABLE = frozenset(
    (
        *("dynamic", "fullgraph", "precision", "strict", "pool_bytes", "memory_budget"),
        *("cache_dir", "freeze", "hand_back", "specialize"),
    )
)
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decision:
    """Whether eager runs a program, and why."""

    in_eager: bool
    why: str

    @property
    def text(self) -> str:
        who = "eager runs" if self.in_eager else "compiled code runs"
        return f"{who} calls of this kind: {self.why}"


@dataclass(frozen=True, eq=False)
class LoadedProgram:
    """A program from disk: its forward, and its backward if it has one.

    It is right where `guards` hold on the symbolic sizes.
    """

    kind: RuntimeKind
    guards: Guards
    graphs: Sequence[tuple[CompiledPlan, Artifact]]


def store_program(
    identity: Sequence[str],
    kind: RuntimeKind,
    guards: Guards,
    graphs: Sequence[tuple[Artifact | None, TangentLayouts | None]],
    config: Config,
) -> None:
    """Store a program: its forward, and its backward if it has one, with its tangents.

    `guards` are those on symbolic sizes after tracing.

    Only programs that consist of data are stored: CPU kernels and calls of PyTorch's operators.
    """
    artifacts: list[Artifact] = []
    for artifact, tangents in graphs:
        if artifact is None:
            return
        if tangents is not None:
            strides, layouts = dict(tangents.strides), pickle.dumps(tangents)
            artifact = replace(artifact, tangent_strides=strides, tangent_layouts=layouts)
        artifacts.append(artifact)
    try:
        content = pickle.dumps((kind, guards, artifacts))
    except Exception:
        return  # it holds objects that cannot be pickled
    text = base64.b64encode(content).decode("ascii")
    store_of(config).put(KIND, _key(identity, config), text)


def load_program(identity: Sequence[str], config: Config) -> LoadedProgram | None:
    """Return a stored program; None if there is none, or if it cannot be loaded."""
    store, key = store_of(config), _key(identity, config)
    text = store.get(KIND, key)
    if text is None:
        log.debug("not on disk: %s", store.path(KIND, key))
        return None
    log.debug("loaded from disk: %s", store.path(KIND, key))
    try:
        kind, guards, artifacts = pickle.loads(base64.b64decode(text))
        assert isinstance(kind, (InferenceRuntime, TrainingRuntime))
        assert all(isinstance(artifact, Artifact) for artifact in artifacts)
        graphs = [(artifact.load(config), artifact) for artifact in artifacts]
        return LoadedProgram(kind, guards, graphs)
    except Exception:  # a damaged or incompatible entry
        store.drop(KIND, key)
        return None


def load_decision(identity: Sequence[str], config: Config) -> Decision | None:
    """Return the decision on a program; None if there was none before."""
    text = store_of(config).get(DECISION, _key(identity, config))
    who, separator, why = (text or "").partition(": ")
    return Decision(who == "eager", why) if separator else None


def store_decision(identity: Sequence[str], decision: Decision, config: Config) -> None:
    """Store the decision on a program."""
    text = f"{'eager' if decision.in_eager else 'compiled'}: {decision.why}"
    store_of(config).put(DECISION, _key(identity, config), text)


def _key(identity: Sequence[str], config: Config) -> tuple[str, ...]:
    """Return the store's key: everything that compilation depends on, and the fingerprint."""
    target = host_target(thread_count())
    environment = (repr(config), repr(target), host_features(), MAGIC_NUMBER.hex())
    costs = repr(assumed_machine(target, config))
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()
    return (source_digest(), *environment, costs, digest)


def uncacheable_options(config: Config) -> list[str]:
    """Return the names of the options that prevent keeping programs on disk.

    Such options show, verify or measure programs, or choose the capture, costs or executors.
    """
    return [
        f.name
        for f in fields(Config)
        if f.compare and f.name not in CACHEABLE and getattr(config, f.name) != f.default
    ]


def is_cacheable(config: Config) -> bool:
    """Return whether programs with these options are kept on disk."""
    return not uncacheable_options(config)


@functools.cache
def source_digest() -> str:
    """Return a digest of tofuse's source code."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
