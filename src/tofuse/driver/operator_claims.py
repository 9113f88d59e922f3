"""Which calls capture keeps whole: an executor claims them, or the vector library lacks them."""

from __future__ import annotations

from tofuse.backends.llvm.load import bind_vector_library
from tofuse.capture.lower.executor_claims import ClaimPredicate, claim_nothing
from tofuse.config import Config
from tofuse.executors import executors_of
from tofuse.ir.executor import KERNELS, Request
from tofuse.runtime.launch import find_vector_library


def claims_of(config: Config) -> ClaimPredicate:
    """The calls that stay whole: for executors before our kernels, or as we lack a function."""
    executors = executors_of(config)
    missing = frozenset(f"aten.{f}.default" for f in bind_vector_library(find_vector_library()))

    def claims(request: Request) -> bool:
        lacking = request.target in missing and all(t.device == "cpu" for t in request.inputs)
        return lacking or executors.claims(request)

    plain = executors.allows_kernels and not executors.preceding(KERNELS)
    return claim_nothing if plain and not missing else claims
