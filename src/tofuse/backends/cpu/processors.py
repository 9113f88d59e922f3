"""The processor levels that code is generated for, and what each has."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass

from tofuse.ir.schedule import Target

X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"


@dataclass(frozen=True)
class Processor:
    """A level of an instruction set.

    `triple`, `cpu` and `features` are LLVM's names for code that runs on any processor of the
    level, `host_feature` its name for what this processor must have; "" if each of the architecture
    runs it. `capability` is PyTorch's name
    (`torch.backends.cpu.get_cpu_capability`), None if programs are not exported for the level.
    `lanes` are the floats of a vector register, `registers` the number of these registers.
    `saturating_casts`: casts of floats out of an integer's range saturate. `fma`: it has fused
    multiply-adds.
    """

    name: str
    triple: str
    cpu: str
    features: str
    host_feature: str
    capability: str | None
    lanes: int
    registers: int
    avx512: bool = False
    saturating_casts: bool = False
    fma: bool = True

    @property
    def is_arm(self) -> bool:
        return self.triple == ARM

    def target(self, threads: int, fast_gemm: bool = False) -> Target:
        """Return the target of code generation."""
        return Target(
            self.lanes,
            threads,
            avx512=self.avx512,
            fast_gemm=fast_gemm,
            native_lanes=max(4, self.lanes),
            registers=self.registers,
            fma=self.fma,
            saturating_casts=self.saturating_casts,
        )


# The best first. A new level begins as a row here; what it has beyond vectors is a field that
# `Target` hands to the emitters, as `avx512`. No two rows may have one capability.
LEVELS = (
    Processor(
        "avx512", X86, "x86-64-v4", "-prefer-256-bit", "avx512f", "AVX512", 16, 32, avx512=True
    ),
    Processor("avx2", X86, "x86-64-v3", "", "avx2", "AVX2", 8, 16),
    Processor("neon", ARM, "generic", "", "", "DEFAULT", 4, 32, saturating_casts=True),
    Processor("sse2", X86, "x86-64", "", "sse2", None, 4, 16, fma=False),
)
SCALAR = Processor("scalar", "", "generic", "", "", None, 1, 16, fma=False)  # without vectors
PROCESSORS: Mapping[str, Processor] = {p.name: p for p in LEVELS if p.capability is not None}


def is_arm() -> bool:
    """Return whether this is an ARM processor."""
    return platform.machine().lower() in ("aarch64", "arm64")


def level_of(features: Mapping[str, bool], arm: bool) -> Processor:
    """Return the level of a processor with these features, by LLVM's names."""
    own = (p for p in LEVELS if p.is_arm == arm)
    return next((p for p in own if not p.host_feature or features.get(p.host_feature)), SCALAR)


def exported_levels(arm: bool) -> tuple[str, ...]:
    """Return the levels of an architecture for which programs are exported, the best first."""
    return tuple(p.name for p in PROCESSORS.values() if p.is_arm == arm)


def running_levels(capability: str, arm: bool) -> tuple[str, ...]:
    """Return the levels whose exported code runs on a processor, the best first.

    `capability` is PyTorch's name of what the processor has.
    """
    names = exported_levels(arm)
    capabilities = [PROCESSORS[name].capability for name in names]
    if arm and capability not in capabilities:
        capability = "DEFAULT"  # every ARM processor has it
    return names[capabilities.index(capability) :] if capability in capabilities else ()
