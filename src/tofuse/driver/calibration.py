"""Measure this machine with our own kernels: what memory, arithmetic, launches and threads cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tofuse.backends.llvm.load import host_target
from tofuse.config import Config, Option, make_config
from tofuse.cost.host import host
from tofuse.cost.library import MMAP_THRESHOLD
from tofuse.cost.machine import Machine
from tofuse.cost.machine_source import assumed_machine, store_machine
from tofuse.driver.compile_graph import compile_text
from tofuse.ir.graph.parse import parse_graph
from tofuse.runtime.launch import thread_count
from tofuse.runtime.sample_inputs import sample_tensors
from tofuse.runtime.timing import fastest_us, torch_threads

ROWS, LENGTH = 256, 2048  # of kernels that stay in the nearest cache: one row of 8 KB, read again
POINTS = ROWS * LENGTH
SHORT = 64  # elements of a short row
FLAT = 1 << 15  # elements of a kernel in the next cache
LEAST_NS = 0.003  # an access that hides behind arithmetic is not quite free
SIDE = 256  # of the matrices of a product
BUDGET_S = 0.012  # for each of about thirty measurements
SHARED_BUDGET_S = 0.06  # for those that need all threads at once


def calibrate(**options: Option) -> Machine:
    """Measure what kernels cost here, in about a second, and keep it on disk.

    From then on the predictions of this process and of later ones use it, for this processor and
    number of threads; calling it again measures again. Decisions about fusion do not depend on
    it. Options as of `tofuse.compile`, of which `cache_dir` matters.
    """
    machine = measure()
    store_machine(machine, host_target(thread_count()), make_config(options))
    return machine


def measure() -> Machine:
    """This machine, measured now."""
    target = host_target(thread_count())
    base = replace(assumed_machine(target, Config()), name=host().name)
    threads = target.threads
    with torch_threads(1):
        base = _calls(base)
        base = replace(base, ns=_arithmetic(base))
        base = _rows(base)
        base = _memory(base, 1)
    if threads == 1:
        return replace(base, shared_rate=base.l3_rate, memory_rate=base.core_rate)
    return _threads(_memory(base, threads))


def _time(text: str, seconds: float = BUDGET_S) -> float:
    """Microseconds of the graph's kernel, called from Python on tensors like its inputs."""
    run = compile_text(text, make_config({"strict": True}))
    inputs = sample_tensors(parse_graph(text).inputs, {})
    return fastest_us(lambda: run([*inputs]), seconds)


def _calls(base: Machine) -> Machine:
    launch = _time("graph(x: f32[16]) {\n  v = neg(x) : f32[16]\n  return v\n}")
    call = _time(_call("aten.neg.default", "$0", "16"))
    product = _time(_call("aten.mm.default", "$0, $0", f"{SIDE},{SIDE}"))
    flops = 2 * SIDE**3 / max(1.0, product - call) / 1e3
    return replace(base, launch_us=launch, call_us=call, flops=flops)


def _call(target: str, args: str, shape: str) -> str:
    attrs = f"target='{target}', args='{args}', shape=({shape},), dtype=f32"
    kind = f"f32[{shape}]"
    return f"graph(x: {kind}) {{\n  v = opaque(x, {attrs}) : {kind}\n  return v\n}}"


def _arithmetic(base: Machine) -> Mapping[str, float]:
    """ns an element of each class, as the difference to a kernel without it."""
    plain = _rate(_row_sum(""), base)
    steps = ("maximum", "add", "minimum", "mul", "sub", "maximum", "mul", "add")
    names = ["p", *(f"c{k}" for k in range(len(steps)))]
    chain = "\n".join(
        f"  {names[k + 1]} = {op}({names[k]}, {'q' if k % 2 else 'r'}) : F"
        for k, op in enumerate(steps)
    )
    chained = (_rate(_row_sum(chain, names[-1]), base) - plain) / len(steps)
    # a chain shows latency, a lone product and sum throughput; programs are in between
    cheap = max(1e-3, (chained + 3 * plain / 2) / 4)
    many, one = (_rate(_loads(count), base) for count in (8, 1))
    load = max(LEAST_NS, (many - one) / 7 - cheap)
    ns = dict(base.ns) | {"cheap": cheap, "load": load}
    for kind, (lines, last) in _PROBES.items():
        ops = lines.count("=")
        ns[kind] = max(cheap, (_rate(_row_sum(lines, last), base) - plain) / ops)
    ns["gather"] = max(cheap, _rate(_GATHER, base) - plain)
    ns["strided"] = max(cheap, _rate(_STRIDED, base, FLAT) - cheap)
    ns["random"] = max(cheap, _rate(_RANDOM, base, FLAT) - load)
    return ns


def _rate(text: str, base: Machine, points: int = POINTS) -> float:
    """ns a point of what a kernel takes beside its launch."""
    return (_time(text) - base.launch_us) * 1e3 / points


def _loads(count: int) -> str:
    """Sums over short rows of so many tensors added up."""
    length, rows = SHORT * 8, POINTS // (SHORT * 8)
    names = [f"x{k}" for k in range(count)]
    lines = [
        f"  m{k} = broadcast(x{k}, shape=({rows}, {length}), dims=(1,)) : F" for k in range(count)
    ]
    lines += [f"  a{k} = add({'p' if k == 0 else f'a{k - 1}'}, m{k}) : F" for k in range(count)]
    return _row_sum("\n".join(lines), f"a{count - 1}", length, inputs=names)


def _row_sum(
    lines: str,
    last: str = "p",
    length: int = LENGTH,
    more: str = "",
    inputs: Sequence[str] = (),
) -> str:
    """Sums over a row in cache, times a number a row: all there is to it is arithmetic."""
    rows = POINTS // length
    given = "".join(f", {name}: f32[{length}]" for name in inputs)
    text = f"""graph(x: f32[{length}], w: f32[{rows}]{given}) {{
  q = broadcast(x, shape=({rows}, {length}), dims=(1,)) : F
  r = broadcast(w, shape=({rows}, {length}), dims=(0,)) : F
  p = mul(q, r) : F
{lines}
  s = sum({last}, dims=(1,), dtype=f32) : f32[{rows}]
{more}
  return s{", t" if more else ""}
}}"""
    return text.replace(": F", f": f32[{rows},{length}]").replace("\n\n", "\n")


def _rows(base: Machine) -> Machine:
    """The price of entering a loop, and of a reduction's end, from short rows."""
    rows = POINTS // SHORT
    largest = f"  t = amax(p, dims=(1,), dtype=f32) : f32[{rows}]"
    one = (_time(_row_sum("", length=SHORT)) - base.launch_us) * 1e3 / rows
    two = (_time(_row_sum("", length=SHORT, more=largest)) - base.launch_us) * 1e3 / rows
    plain = _rate(_row_sum(""), base)
    fold = max(1.0, two - one - SHORT * base.ns["cheap"])
    return replace(base, fold_ns=fold, row_ns=max(1.0, one - fold - SHORT * plain))


def _memory(base: Machine, threads: int) -> Machine:
    """Bytes a nanosecond of copies that fit each cache, and of one that fits none."""

    def rate(nbytes: float) -> float:
        elements = int(nbytes) // 8 // 4096 * 4096
        kind = f"f32[{elements}]"
        text = f"graph(x: {kind}) {{\n  v = neg(x) : {kind}\n  return v\n}}"
        took = _time(text, BUDGET_S if threads == 1 else SHARED_BUDGET_S)
        return 8 * elements / max(0.1, took - base.launch_us) / 1e3

    l3 = rate(min(base.l3_bytes * 0.4, 12e6 * max(1, threads // 2)))
    memory = rate(min(max(base.l3_bytes * 3, 64e6), 384e6))
    if threads > 1:  # together no slower than one alone, whatever disturbed the measurement
        together = max(memory, base.core_rate)
        return replace(base, shared_rate=max(l3, base.l3_rate), memory_rate=together)
    fresh = _fresh_rate(replace(base, core_rate=memory))
    return replace(
        base, l2_rate=rate(base.l2_bytes * 0.5), l3_rate=l3, core_rate=memory, fresh_rate=fresh
    )


def _fresh_rate(base: Machine) -> float:
    """Bytes a nanosecond of results that PyTorch allocates itself, beyond writing them."""
    nbytes = 2 * MMAP_THRESHOLD
    took = _time(_call("aten.clone.default", "$0", str(nbytes // 4)), SHARED_BUDGET_S)
    moving = 2 * nbytes / base.core_rate / 1e3
    return nbytes / max(1.0, took - base.call_us - moving) / 1e3


def _threads(base: Machine) -> Machine:
    """What waking the threads costs: a kernel's time beyond its share of the work."""
    text = _row_sum(*_PROBES["exp"])
    with torch_threads(1):
        alone = _time(text) - base.launch_us
    together = _time(text, SHARED_BUDGET_S) - base.launch_us
    return replace(base, parallel_us=min(50.0, max(0.3, together - alone / base.threads)))


_F = f"f32[{ROWS},{LENGTH}]"
_PROBES: dict[str, tuple[str, str]] = {
    "divide": ("  c = div(q, p) : F", "c"),
    "exp": ("  c = exp(p) : F", "c"),
    "tanh": ("  c = tanh(p) : F", "c"),
    "sin": ("  c = sin(p) : F", "c"),
    "erf": ("  c = erf(p) : F", "c"),
    "pow": ("  c = pow(q, p) : F", "c"),
    "gamma": ("  c = lgamma(p) : F", "c"),
    "remainder": ("  c = fmod(q, p) : F", "c"),
}
_RANDOM = f"""graph(z: i64[2]) {{
  c = uniform(z, shape=({FLAT},), stream=0, dtype=f32) : f32[{FLAT}]
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
_STRIDED = f"""graph(x: f32[{FLAT // LENGTH},{4 * LENGTH}]) {{
  y = slice(x, shape=({FLAT // LENGTH}, {LENGTH}), start=(0, 0), step=(1, 4), dtype=f32) : S
  s = sum(y, dims=(0, 1), dtype=f32) : f32[]
  return s
}}""".replace(": S", f": f32[{FLAT // LENGTH},{LENGTH}]")
