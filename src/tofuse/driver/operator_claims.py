"""Claim the operators that capture must not decompose."""

from __future__ import annotations

from tofuse.backends.llvm.load import CODE
from tofuse.capture.lower.executor_claims import ClaimPredicate, claim_nothing
from tofuse.config import Config
from tofuse.executors import executors_of
from tofuse.ir.executor import KERNELS, Request
from tofuse.runtime.launch import find_vector_library


def claims_of(config: Config) -> ClaimPredicate:
    """Return whether a call is claimed.

    Executors before our kernels claim their operators. An operator whose function the vector
    library does not export is claimed on the CPU, because PyTorch has to run it.
    """
    executors = executors_of(config)
    missing = frozenset(
        f"aten.{f}.default" for f in CODE.bind_vector_library(find_vector_library())
    )

    def claims(request: Request) -> bool:
        is_missing = request.target in missing and all(t.device == "cpu" for t in request.inputs)
        return is_missing or executors.claims(request)

    kernels_first = executors.allows_kernels and not executors.preceding(KERNELS)
    return claim_nothing if kernels_first and not missing else claims
