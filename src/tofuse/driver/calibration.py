"""Calibrate the machine model: measure memory, arithmetic, launches and threads with kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tofuse.backends.cpu.llvm.load import host_target
from tofuse.backends.cpu.runtime.cpu_timing import fastest_us
from tofuse.backends.cpu.runtime.launch import thread_count
from tofuse.config import Config, Option, make_config
from tofuse.cost.host import host
from tofuse.cost.machine import MMAP_THRESHOLD, Machine
from tofuse.cost.machine_source import assumed_machine, store_machine
from tofuse.driver.compile_graph import compile_text
from tofuse.ir.parse_graph import parse_graph
from tofuse.runtime.sample_inputs import sample_tensors
from tofuse.runtime.timing import torch_threads

ROWS, LENGTH = 256, 2048  # of kernels that stay in L1: every iteration reads one row of 8 KB
POINTS = ROWS * LENGTH
SHORT_ROW = 64  # elements
L2_POINTS = 1 << 15  # elements of a kernel that stays in L2
MIN_LOAD_NS = 0.003  # of a load that overlaps with arithmetic
MATRIX_SIZE = 256  # rows and columns of the operands of the matrix product
BUDGET_S = 0.012  # seconds for each of about thirty measurements
SHARED_BUDGET_S = 0.06  # seconds for each measurement with all threads


def calibrate(**options: Option) -> Machine:
    """Measure the costs of this machine in about a second, store them on disk and return them.

    Predicted times then use them, in this process and in later ones, for this processor and number
    of threads. A second call measures again. Fusion decisions do not depend on them. The options
    are those of `tofuse.compile`; only `cache_dir` has an effect.
    """
    machine = measure()
    store_machine(machine, host_target(thread_count()), make_config(options))
    return machine


def measure() -> Machine:
    """Return the measured costs of this machine."""
    target = host_target(thread_count())
    base = replace(assumed_machine(target, Config()), name=host().name)
    threads = target.threads
    with torch_threads(1):
        base = _measure_calls(base)
        base = replace(base, ns=_measure_arithmetic(base))
        base = _measure_short_rows(base)
        base = _measure_bandwidth(base, 1)
    if threads == 1:
        return replace(base, shared_rate=base.l3_rate, memory_rate=base.core_rate)
    return _measure_threads(_measure_bandwidth(base, threads))


def _kernel_us(text: str, seconds: float = BUDGET_S) -> float:
    """Return the microseconds of a call of the graph from Python, with sample inputs."""
    run = compile_text(text, make_config({"strict": True})).run
    inputs = sample_tensors(parse_graph(text).inputs)
    return fastest_us(lambda: run([*inputs]), seconds)


def _measure_calls(base: Machine) -> Machine:
    launch = _kernel_us(_op_text("neg(x)", "16"))
    call = _kernel_us(_call_text("aten.neg.default", "$0", "16"))
    shape = f"{MATRIX_SIZE},{MATRIX_SIZE}"
    rates = []
    for dtype in ("f32", "bf16"):
        product = _kernel_us(_call_text("aten.mm.default", "$0, $0", shape, dtype))
        rates.append(2 * MATRIX_SIZE**3 / max(1.0, product - call) / 1e3)
    flops, half_flops = rates
    return replace(base, launch_us=launch, call_us=call, flops=flops, half_flops=half_flops)


def _call_text(target: str, args: str, shape: str, dtype: str = "f32") -> str:
    attrs = f"target='{target}', args='{args}', shape=({shape},), dtype={dtype}"
    return _op_text(f"opaque(x, {attrs})", shape, dtype)


def _op_text(op: str, shape: str, dtype: str = "f32") -> str:
    kind = f"{dtype}[{shape}]"
    return f"graph(x: {kind}) {{\n  v = {op} : {kind}\n  return v\n}}"


def _measure_arithmetic(base: Machine) -> Mapping[str, float]:
    """Return the ns per element of each class of ops: the difference to a kernel without the op."""
    plain = _ns_per_point(_row_sum_text(""), base)
    steps = ("maximum", "add", "minimum", "mul", "sub", "maximum", "mul", "add")
    names = ["p", *(f"c{k}" for k in range(len(steps)))]
    chain = "\n".join(
        f"  {names[k + 1]} = {op}({names[k]}, {'q' if k % 2 else 'r'}) : F"
        for k, op in enumerate(steps)
    )
    chained = (_ns_per_point(_row_sum_text(chain, names[-1]), base) - plain) / len(steps)
    # a chain measures latency; one product and sum measure throughput; programs are in between
    cheap = max(1e-3, (chained + 3 * plain / 2) / 4)
    eight, one = (_ns_per_point(_loads_text(count), base) for count in (8, 1))
    load = max(MIN_LOAD_NS, (eight - one) / 7 - cheap)
    ns = dict(base.ns) | {"cheap": cheap, "load": load}
    for kind, op in _PROBES.items():
        ns[kind] = max(cheap, _ns_per_point(_row_sum_text(f"  c = {op} : F", "c"), base) - plain)
    ns["gather"] = max(cheap, _ns_per_point(_GATHER, base) - plain)
    ns["strided"] = max(cheap, _ns_per_point(_STRIDED, base, L2_POINTS) - cheap)
    ns["random"] = max(cheap, _ns_per_point(_RANDOM, base, L2_POINTS) - load)
    return ns


def _ns_per_point(text: str, base: Machine, points: int = POINTS) -> float:
    """Return the ns of a kernel per point, or per row, without its launch."""
    return (_kernel_us(text) - base.launch_us) * 1e3 / points


def _loads_text(count: int) -> str:
    """Return the text of row sums over the sum of `count` broadcast tensors."""
    length, rows = SHORT_ROW * 8, POINTS // (SHORT_ROW * 8)
    names = [f"x{k}" for k in range(count)]
    lines = [
        f"  m{k} = broadcast(x{k}, shape=({rows}, {length}), dims=(1,)) : F" for k in range(count)
    ]
    lines += [f"  a{k} = add({'p' if k == 0 else f'a{k - 1}'}, m{k}) : F" for k in range(count)]
    return _row_sum_text("\n".join(lines), f"a{count - 1}", length, inputs=names)


def _row_sum_text(
    lines: str,
    last: str = "p",
    length: int = LENGTH,
    second_result: str = "",
    inputs: Sequence[str] = (),
) -> str:
    """Return the text of row sums of `lines`, applied to a row in cache times a number per row.

    Such a kernel is bound by arithmetic.
    """
    rows = POINTS // length
    parameters = "".join(f", {name}: f32[{length}]" for name in inputs)
    text = f"""graph(x: f32[{length}], w: f32[{rows}]{parameters}) {{
  q = broadcast(x, shape=({rows}, {length}), dims=(1,)) : F
  r = broadcast(w, shape=({rows}, {length}), dims=(0,)) : F
  p = mul(q, r) : F
{lines}
  s = sum({last}, dims=(1,), dtype=f32) : f32[{rows}]
{second_result}
  return s{", t" if second_result else ""}
}}"""
    return text.replace(": F", f": f32[{rows},{length}]").replace("\n\n", "\n")


def _measure_short_rows(base: Machine) -> Machine:
    """Measure the cost of entering a loop and of finishing a reduction, with short rows."""
    rows = POINTS // SHORT_ROW
    largest = f"  t = amax(p, dims=(1,), dtype=f32) : f32[{rows}]"
    one = _ns_per_point(_row_sum_text("", length=SHORT_ROW), base, rows)
    two = _ns_per_point(_row_sum_text("", length=SHORT_ROW, second_result=largest), base, rows)
    plain = _ns_per_point(_row_sum_text(""), base)
    fold = max(1.0, two - one - SHORT_ROW * base.ns["cheap"])
    return replace(base, fold_ns=fold, row_ns=max(1.0, one - fold - SHORT_ROW * plain))


def _measure_bandwidth(base: Machine, threads: int) -> Machine:
    """Measure the bytes per ns of copies that fit in each cache, and of one that does not."""

    def rate(nbytes: float) -> float:
        elements = int(nbytes) // 8 // 4096 * 4096
        text = _op_text("neg(x)", str(elements))
        us = _kernel_us(text, BUDGET_S if threads == 1 else SHARED_BUDGET_S)
        return 8 * elements / max(0.1, us - base.launch_us) / 1e3

    l3 = rate(min(base.l3_bytes * 0.4, 12e6 * max(1, threads // 2)))
    memory = rate(min(max(base.l3_bytes * 3, 64e6), 384e6))
    if threads > 1:  # at least the rates of one thread, in case of noise
        memory = max(memory, base.core_rate)
        return replace(base, shared_rate=max(l3, base.l3_rate), memory_rate=memory)
    fresh = _first_touch_rate(replace(base, core_rate=memory))
    return replace(
        base, l2_rate=rate(base.l2_bytes * 0.5), l3_rate=l3, core_rate=memory, fresh_rate=fresh
    )


def _first_touch_rate(base: Machine) -> float:
    """Return the bytes per ns of page faults in results that PyTorch allocates."""
    nbytes = 2 * MMAP_THRESHOLD
    us = _kernel_us(_call_text("aten.clone.default", "$0", str(nbytes // 4)), SHARED_BUDGET_S)
    copy_us = 2 * nbytes / base.core_rate / 1e3
    return nbytes / max(1.0, us - base.call_us - copy_us) / 1e3


def _measure_threads(base: Machine) -> Machine:
    """Measure the cost of waking the threads: a kernel's time beyond its share of the work."""
    text = _row_sum_text(f"  c = {_PROBES['exp']} : F", "c")
    with torch_threads(1):
        single = _kernel_us(text) - base.launch_us
    parallel = _kernel_us(text, SHARED_BUDGET_S) - base.launch_us
    return replace(base, parallel_us=min(50.0, max(0.3, parallel - single / base.threads)))


_F = f"f32[{ROWS},{LENGTH}]"
_PROBES = {
    "divide": "div(q, p)",
    "exp": "exp(p)",
    "tanh": "tanh(p)",
    "sin": "sin(p)",
    "erf": "erf(p)",
    "pow": "pow(q, p)",
    "gamma": "lgamma(p)",
    "remainder": "fmod(q, p)",
}
_RANDOM = f"""graph(z: i64[2]) {{
  c = uniform(z, shape=({L2_POINTS},), stream=0, dtype=f32) : f32[{L2_POINTS}]
  return c
}}"""
_GATHER = f"""graph(x: f32[{LENGTH}], k: i64[{LENGTH}], w: f32[{ROWS}]) {{
  i = broadcast(k, shape=({ROWS}, {LENGTH}), dims=(1,)) : i64[{ROWS},{LENGTH}]
  t = take(x, i, dims=(-1,), wrap=False) : {_F}
  r = broadcast(w, shape=({ROWS}, {LENGTH}), dims=(0,)) : {_F}
  p = mul(t, r) : {_F}
  s = sum(p, dims=(1,), dtype=f32) : f32[{ROWS}]
  return s
}}"""
_STRIDED = f"""graph(x: f32[{L2_POINTS // LENGTH},{4 * LENGTH}]) {{
  y = slice(x, shape=({L2_POINTS // LENGTH}, {LENGTH}), start=(0, 0), step=(1, 4), dtype=f32) : S
  s = sum(y, dims=(0, 1), dtype=f32) : f32[]
  return s
}}""".replace(": S", f": f32[{L2_POINTS // LENGTH},{LENGTH}]")
