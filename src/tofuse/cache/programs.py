"""The cache of compiled programs on disk, which skips compilation in later processes."""

from __future__ import annotations

import base64
import functools
import hashlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from torch.fx import GraphModule

from tofuse.backends.llvm.load import host_target
from tofuse.backends.llvm.machine_code import host_features
from tofuse.cache.artifact import Artifact
from tofuse.cache.fingerprint import fingerprint
from tofuse.capture.aot.boxed import BoxedFunction
from tofuse.capture.aot.handoff import RuntimeKind
from tofuse.capture.aot.tangent_layouts import TangentLayouts
from tofuse.config import PACKAGE, Config
from tofuse.cost.machine_source import assumed_machine, store_of
from tofuse.runtime.execute import CompiledPlan
from tofuse.runtime.launch import thread_count
from tofuse.runtime.specialize_strides import StrideSpecializer

KIND = "program"
TangentStrides = Mapping[int, tuple[int, ...]]  # by argument position
CompileForStrides = Callable[[Config, TangentLayouts, CompiledPlan, TangentStrides], CompiledPlan]
ArtifactTable = WeakKeyDictionary[CompiledPlan, tuple[Artifact, TangentLayouts | None]]


@dataclass(frozen=True)
class ProgramCache:
    """Compiled programs by fingerprint.

    Only programs that consist of data are stored: CPU kernels and calls of PyTorch's operators.
    `compile_for_strides` recompiles a loaded backward for tangents with other strides.
    """

    config: Config
    compile_for_strides: CompileForStrides
    artifacts: ArtifactTable = field(default_factory=WeakKeyDictionary)

    def fingerprint(self, gm: GraphModule, inputs: Sequence[object]) -> tuple[str, ...] | None:
        """Return the fingerprint of a program; None if it has none."""
        return fingerprint(gm, inputs)

    def record(
        self, run: CompiledPlan, artifact: Artifact | None, tangents: TangentLayouts | None
    ) -> None:
        """Remember the artifact of a compiled graph; `tangents` belong to a backward."""
        if artifact is not None:
            specializable = tangents is not None and bool(tangents.expected)
            self.artifacts[run] = artifact, tangents if specializable else None

    def store(
        self, identity: Sequence[str], form: RuntimeKind, runs: Sequence[BoxedFunction]
    ) -> None:
        """Store a program: its forward, and its backward if it has one."""
        found = [self.artifacts.get(run) for run in runs]  # type: ignore[arg-type]  # recorded runs
        if any(artifact is None for artifact in found):
            return
        try:
            artifacts = [_with_tangents(*artifact) for artifact in found if artifact is not None]
            content = pickle.dumps((form, artifacts))
        except Exception:
            return  # it holds objects that cannot be pickled
        text = base64.b64encode(content).decode("ascii")
        store_of(self.config).put(KIND, self._key(identity), text)

    def load(self, identity: Sequence[str]) -> tuple[RuntimeKind, list[BoxedFunction]] | None:
        """Return a stored program; None if there is none, or if it cannot be loaded."""
        store, key = store_of(self.config), self._key(identity)
        text = store.get(KIND, key)
        if text is None:
            return None
        try:
            form, artifacts = pickle.loads(base64.b64decode(text))
            assert isinstance(form, RuntimeKind)
            assert all(isinstance(artifact, Artifact) for artifact in artifacts)
            runs = [self._load(artifact) for artifact in artifacts]
            return form, runs  # type: ignore[return-value]  # results are tensors, not sizes
        except Exception:  # a damaged or incompatible entry
            store.drop(KIND, key)
            return None

    def _load(self, artifact: Artifact) -> CompiledPlan:
        run = artifact.load(self.config)
        if artifact.tangent_strides is None:
            return run

        def recompile(strides: TangentStrides) -> CompiledPlan:
            tangents = pickle.loads(artifact.tangent_layouts)
            return self.compile_for_strides(self.config, tangents, run, strides)

        return StrideSpecializer(run, artifact.tangent_strides, recompile)

    def _key(self, identity: Sequence[str]) -> tuple[str, ...]:
        """Return the store's key: everything that compilation depends on, and the fingerprint."""
        target = host_target(thread_count())
        environment = (repr(self.config), repr(target), host_features())
        costs = repr(assumed_machine(target, self.config))
        digest = hashlib.sha256(repr(identity).encode()).hexdigest()
        return (source_digest(), *environment, costs, digest)


def _with_tangents(artifact: Artifact, tangents: TangentLayouts | None) -> Artifact:
    """Add the data to recompile a backward for other tangent strides."""
    if tangents is None:
        return artifact
    strides = dict(tangents.expected)
    return replace(artifact, tangent_strides=strides, tangent_layouts=pickle.dumps(tangents))


def program_cache(config: Config, compile_for_strides: CompileForStrides) -> ProgramCache | None:
    """Return the cache for a configuration; None if an option needs every program to be compiled.

    Such options show, verify or measure programs, or choose executors.
    """
    default = Config()
    cacheable = replace(
        default,
        dynamic=config.dynamic,
        fullgraph=config.fullgraph,
        precision=config.precision,
        strict=config.strict,
        pool_bytes=config.pool_bytes,
        memory_budget=config.memory_budget,
        cache_dir=config.cache_dir,
    )
    return ProgramCache(config, compile_for_strides) if config == cacheable else None


@functools.cache
def source_digest() -> str:
    """Return a digest of tofuse's source code."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
