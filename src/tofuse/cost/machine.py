"""Machine: what memory, arithmetic, launches and threads cost, as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace

from tofuse.errors import ParseError

# ns for one float32 element on one thread, in vectors, operands in the nearest cache; measured on
# an AVX-512 server core, see docs/measurements.md
DEFAULT_NS: Mapping[str, float] = {
    "load": 0.005,  # and store, from the nearest cache
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
    "gather": 0.24,  # an address that is itself a value
    "strided": 0.27,  # an access whose neighbours in the vector lie apart
}
VECTOR_LANES = 16  # of the machine that the defaults were measured on
SMALLEST_POOLED = 256 * 1024  # bytes; below, malloc recycles its own memory without new pages


@dataclass(frozen=True)
class Machine:
    """Rates are bytes a nanosecond (GB/s) of reading and writing together.

    `l2_rate`, `l3_rate` and `core_rate` are one thread's, from its L2 cache, from the shared cache
    and from memory; `memory_rate` and `shared_rate` are all threads' together.
    """

    name: str = "default"
    threads: int = 1
    lanes: int = 16
    l2_bytes: int = 1 << 20  # of one core
    l3_bytes: int = 32 << 20  # of all
    l2_rate: float = 150.0
    l3_rate: float = 110.0
    shared_rate: float = 110.0
    core_rate: float = 50.0
    memory_rate: float = 50.0
    launch_us: float = 2.0  # a kernel's call from Python, its result allocated
    parallel_us: float = 2.0  # waking the other threads and waiting for them
    row_ns: float = 2.0  # entering a loop
    fold_ns: float = 4.0  # bringing one reduction's vectors together at the end of a loop
    call_us: float = 2.0  # one of PyTorch's operators
    fresh_rate: float = 3.0  # writing to memory that the system maps at the first touch
    flops: float = 100.0  # of a matrix product, one thread, operations a nanosecond
    ns: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_NS))

    def cost(self, kind: str) -> float:
        """ns of one float32 element of an op class on one thread."""
        return self.ns[kind]

    def __str__(self) -> str:
        return show_machine(self)


def default_machine(
    threads: int, lanes: int, l2_bytes: int = 1 << 20, l3_bytes: int = 32 << 20
) -> Machine:
    """What to assume without measurement: a function of the processor's shape alone.

    Narrower vectors take proportionally longer; memory is shared by at most eight threads' worth.
    """
    narrow = VECTOR_LANES / max(1, lanes)
    base = Machine()
    return replace(
        base,
        threads=threads,
        lanes=lanes,
        l2_bytes=l2_bytes,
        l3_bytes=l3_bytes,
        shared_rate=base.l3_rate * threads,
        memory_rate=base.core_rate * min(8.0, threads),
        flops=base.flops / narrow,
        ns={k: v * (1 if k in ("gather", "strided") else narrow) for k, v in DEFAULT_NS.items()},
    )


def gpu_machine() -> Machine:
    """What to assume of a GPU, an H200's rates: one memory, and arithmetic that hides behind it."""
    return replace(
        Machine(),
        name="gpu",
        l2_bytes=0,
        l3_bytes=0,
        core_rate=4300.0,
        memory_rate=4300.0,
        launch_us=4.0,
        call_us=4.0,
        fresh_rate=4300.0,
        flops=50_000.0,
        ns={k: v / 250 for k, v in DEFAULT_NS.items()},
    )


_GPU = gpu_machine()


def machine_on(device: str, machine: Machine) -> Machine:
    """The costs on a device: those given on the CPU, assumed ones elsewhere."""
    return machine if device == "cpu" else _GPU


def show_machine(machine: Machine) -> str:
    """JSON text; `parse_machine` reads it back."""
    return json.dumps(asdict(machine), indent=1)


def parse_machine(text: str) -> Machine:
    """Read what `show_machine` wrote; raises ParseError, naming what is missing or no number."""
    try:
        found = json.loads(text)
    except ValueError as e:
        raise ParseError(f"this is not a machine's JSON: {e}") from e
    if not isinstance(found, dict):
        raise ParseError("a machine's JSON is an object with one entry for each cost")
    base = Machine()
    names = {f.name for f in fields(Machine)}
    if set(found) != names:
        odd = ", ".join(sorted(set(found) ^ names))
        raise ParseError(f"a machine's JSON lacks, or should not have: {odd}")
    if not isinstance(found["name"], str) or not isinstance(found["ns"], dict):
        raise ParseError("a machine's name is text and its ns an object")
    if set(found["ns"]) != set(DEFAULT_NS):
        raise ParseError(f"a machine's ns has exactly {', '.join(DEFAULT_NS)}")
    for name in names - {"name", "ns"}:
        whole = isinstance(getattr(base, name), int)
        found[name] = _number(found[name], name, whole)
    ns = {k: _number(found["ns"][k], f"ns of {k}", False) for k in DEFAULT_NS}
    return Machine(**{**found, "ns": ns})


def _number(value: object, name: str, whole: bool) -> float:
    """A positive number; raises ParseError for anything else."""
    right = isinstance(value, int) if whole else isinstance(value, (int, float))
    if not right or isinstance(value, bool) or not 0 < float(str(value)) < 1e18:
        raise ParseError(f"a machine's {name} is a positive number, not {value!r}")
    assert isinstance(value, (int, float))
    return value
