"""Compiled programs kept on disk: what was compiled once starts as fast as it is captured."""

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
Layouts = Mapping[int, tuple[int, ...]]
ArtifactTable = WeakKeyDictionary[CompiledPlan, tuple[Artifact, TangentLayouts | None]]


@dataclass(frozen=True)
class ProgramCache:
    """Programs by what identifies them, from process to process.

    `compile` compiles a backward for gradients that lie otherwise. Only what is wholly data is
    kept: kernels and PyTorch's operators, on the CPU.
    """

    config: Config
    compile: Callable[[Config, TangentLayouts, CompiledPlan, Layouts], CompiledPlan]
    recorded: ArtifactTable = field(default_factory=WeakKeyDictionary)

    def fingerprint(self, gm: GraphModule, inputs: Sequence[object]) -> tuple[str, ...] | None:
        """The name of a program; None where a part of it has none."""
        return fingerprint(gm, inputs)

    def record(
        self, run: CompiledPlan, recorded: Artifact | None, given: TangentLayouts | None
    ) -> None:
        """Note what a run is made of; `given` are the gradients of a backward."""
        if recorded is not None:
            self.recorded[run] = recorded, given if given is not None and given.expected else None

    def store(
        self, identity: Sequence[str], form: RuntimeKind, runs: Sequence[BoxedFunction]
    ) -> None:
        """Keep a program: its forward, and its backward if it has one."""
        found = [self.recorded.get(run) for run in runs]  # type: ignore[arg-type]  # as they were made
        if any(part is None for part in found):
            return
        try:
            parts = [_whole(*part) for part in found if part is not None]
            content = pickle.dumps((form, parts))
        except Exception:
            return  # it holds what only this process has
        text = base64.b64encode(content).decode("ascii")
        store_of(self.config).put(KIND, self._key(identity), text)

    def load(self, identity: Sequence[str]) -> tuple[RuntimeKind, list[BoxedFunction]] | None:
        """A program that was kept."""
        store, key = store_of(self.config), self._key(identity)
        text = store.get(KIND, key)
        if text is None:
            return None
        try:
            form, parts = pickle.loads(base64.b64decode(text))
            assert isinstance(form, RuntimeKind) and all(
                isinstance(part, Artifact) for part in parts
            )
            runs = [self._load(part) for part in parts]
            return form, runs  # type: ignore[return-value]  # tensors, no sizes
        except Exception:  # whatever it is, it is no program
            store.drop(KIND, key)
            return None

    def _load(self, part: Artifact) -> CompiledPlan:
        run = part.load(self.config)
        if part.expected is None:
            return run

        def compile_laid(layouts: Layouts) -> CompiledPlan:
            return self.compile(self.config, pickle.loads(part.others), run, layouts)

        return StrideSpecializer(run, part.expected, compile_laid)

    def _key(self, identity: Sequence[str]) -> tuple[str, ...]:
        """With all that our own decisions depend on; the program itself by its digest."""
        target = host_target(thread_count())
        ours = (repr(self.config), repr(target), host_features())
        costs = repr(assumed_machine(target, self.config))
        return (source_digest(), *ours, costs, hashlib.sha256(repr(identity).encode()).hexdigest())


def _whole(recorded: Artifact, given: TangentLayouts | None) -> Artifact:
    """With how it is compiled for gradients that lie otherwise."""
    if given is None:
        return recorded
    return replace(recorded, expected=dict(given.expected), others=pickle.dumps(given))


def program_cache(
    config: Config,
    compile_laid: Callable[[Config, TangentLayouts, CompiledPlan, Layouts], CompiledPlan],
) -> ProgramCache | None:
    """None where what is compiled is looked at, checked or measured, or runs elsewhere."""
    usual = Config()
    same = replace(
        usual,
        dynamic=config.dynamic,
        fullgraph=config.fullgraph,
        precision=config.precision,
        strict=config.strict,
        pool_bytes=config.pool_bytes,
        memory_budget=config.memory_budget,
        cache_dir=config.cache_dir,
    )
    return ProgramCache(config, compile_laid) if config == same else None


@functools.cache
def source_digest() -> str:
    """What stands for this release of tofuse, changed by hand or not."""
    found = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()
