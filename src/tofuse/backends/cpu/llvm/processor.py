"""The processors that code can be generated for without being on one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import llvmlite.binding as llvm

from tofuse.ir.schedule import Target


@dataclass(frozen=True)
class Processor:
    """A level of an instruction set, by LLVM's names; `lanes` are floats of a vector register."""

    name: str
    triple: str
    cpu: str
    features: str
    lanes: int

    def target(self, threads: int) -> Target:
        """Return the target of code generation."""
        return Target(
            self.lanes,
            threads,
            avx512=self.lanes == 16,
            native_lanes=self.lanes,
            saturating_casts=self.triple == _ARM,
        )

    def machine(self) -> llvm.TargetMachine:
        """Return LLVM's target machine for position-independent code."""
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        return llvm.Target.from_triple(self.triple).create_target_machine(
            cpu=self.cpu, features=self.features, opt=3, reloc="pic", codemodel="small"
        )


_X86, _ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
PROCESSORS: Mapping[str, Processor] = {
    p.name: p
    for p in (
        Processor("avx2", _X86, "x86-64-v3", "", 8),
        Processor("avx512", _X86, "x86-64-v4", "-prefer-256-bit", 16),
        Processor("neon", _ARM, "generic", "", 4),
    )
}
