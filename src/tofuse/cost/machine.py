"""Machine: the cost of memory, arithmetic, launches and threads as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace

from tofuse.errors import ParseError

# ns per float32 element on one thread, vectorized, with operands in L1; measured on an AVX-512
# server core in docs/measurements.md
DEFAULT_NS: Mapping[str, float] = {
    "load": 0.005,  # and store, in L1
    "cheap": 0.0095,  # add, mul, compare, where, convert
    "divide": 0.03,  # div, sqrt, reciprocal
    "exp": 0.12,  # exp, log, sigmoid
    "tanh": 0.11,  # tanh, sinh, cosh
    "sin": 0.12,  # sin, cos
    "erf": 0.25,  # erf, tan, the inverse functions
    "pow": 1.0,  # pow, atan2, hypot, erfc
    "gamma": 4.0,  # lgamma
    "remainder": 0.15,  # fmod, division of integers by a constant
    "random": 0.37,  # a number of Philox-4x32-10
    "gather": 0.24,  # a load with a computed index
    "strided": 0.27,  # a load or store with a stride along the vector
}
VECTOR_LANES = 16  # of the core that DEFAULT_NS was measured on
CACHE_LINE = 64  # bytes, of all processors that we compile for, and of their widest vectors
L1_LINES = 512  # cache lines of an L1 cache of 32 KB
SMALLEST_POOLED = 256 * 1024  # bytes; malloc reuses smaller blocks without new pages
MMAP_THRESHOLD = 32 << 20  # bytes from which glibc's malloc maps new pages for each allocation


@dataclass(frozen=True)
class Machine:
    """Rates are bytes per nanosecond (GB/s) of reads and writes together.

    `l2_rate`, `l3_rate` and `core_rate` are per thread, from its L2 cache, the shared L3 cache and
    memory. `memory_rate` and `shared_rate` are the limits of memory and L3 for all threads.
    """

    name: str = "default"
    threads: int = 1
    lanes: int = 16
    l2_bytes: int = 1 << 20  # per core
    l3_bytes: int = 32 << 20  # shared
    l2_rate: float = 150.0
    l3_rate: float = 110.0
    shared_rate: float = 110.0
    core_rate: float = 50.0
    memory_rate: float = 50.0
    launch_us: float = 2.0  # a kernel's call from Python, with the allocation of its result
    parallel_us: float = 2.0  # waking the other threads and the barrier
    row_ns: float = 2.0  # entering a loop
    fold_ns: float = 4.0  # the horizontal reduction of a vector accumulator
    call_us: float = 2.0  # a call of a PyTorch operator
    fresh_rate: float = 3.0  # the first write to new pages, with page faults
    flops: float = 100.0  # of a matrix product, operations per nanosecond and thread
    half_flops: float = 100.0  # in half precision, for which a processor may have units
    ns: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_NS))  # by op class

    def __str__(self) -> str:
        """Return JSON text, which `parse_machine` accepts."""
        return json.dumps(asdict(self), indent=1)


def default_machine(
    threads: int, lanes: int, l2_bytes: int = 1 << 20, l3_bytes: int = 32 << 20
) -> Machine:
    """Return the assumed costs of a processor that has not been measured.

    Arithmetic is inversely proportional to the lanes. Memory bandwidth scales up to eight threads.
    """
    slowdown = VECTOR_LANES / max(1, lanes)
    base = Machine()
    return replace(
        base,
        threads=threads,
        lanes=lanes,
        l2_bytes=l2_bytes,
        l3_bytes=l3_bytes,
        shared_rate=base.l3_rate * threads,
        memory_rate=base.core_rate * min(8.0, threads),
        flops=base.flops / slowdown,
        half_flops=base.half_flops / slowdown,
        ns={k: v * (1 if k in ("gather", "strided") else slowdown) for k, v in DEFAULT_NS.items()},
    )


def parse_machine(text: str) -> Machine:
    """Parse the `str` of a machine. Raises ParseError for missing or malformed entries."""
    try:
        entries = json.loads(text)
    except ValueError as e:
        raise ParseError(f"this is not the JSON text of a machine: {e}") from e
    if not isinstance(entries, dict):
        raise ParseError("the JSON text of a machine must be an object with one entry per cost")
    base = Machine()
    names = {f.name for f in fields(Machine)}
    if set(entries) != names:
        differing = ", ".join(sorted(set(entries) ^ names))
        raise ParseError(f"missing or unknown entries in the JSON text of a machine: {differing}")
    if not isinstance(entries["name"], str) or not isinstance(entries["ns"], dict):
        raise ParseError("a machine's name must be a string and its ns an object")
    if set(entries["ns"]) != set(DEFAULT_NS):
        raise ParseError(f"a machine's ns must have exactly the entries {', '.join(DEFAULT_NS)}")
    for name in names - {"name", "ns"}:
        integral = isinstance(getattr(base, name), int)
        entries[name] = _positive_number(entries[name], name, integral)
    ns = {k: _positive_number(entries["ns"][k], f"ns of {k}", False) for k in DEFAULT_NS}
    return Machine(**{**entries, "ns": ns})


def _positive_number(value: object, name: str, integral: bool) -> float:
    """Return a positive number; raises ParseError for anything else."""
    valid = isinstance(value, int) if integral else isinstance(value, (int, float))
    if not valid or isinstance(value, bool) or not 0 < float(str(value)) < 1e18:
        raise ParseError(f"a machine's {name} must be a positive number, not {value!r}")
    assert isinstance(value, (int, float))
    return value
