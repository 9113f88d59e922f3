"""Graphs of any number of ops for the graph passes."""

from tofuse.ir.graph import Graph
from tofuse.ir.parse_graph import parse_graph

ROWS, WIDTH = 8, 32  # of a branch


def chain(size: int) -> Graph:
    """Elementwise ops with a symbolic size, each reading the previous one."""
    lines, last = ["graph(x: f32[64,s0], y: f32[64,s0]) {"], "x"
    for k in range(size):
        kind = ("add", "mul", "sub", "neg", "div", "tanh")[k % 6]
        arguments = last if k % 6 in (3, 5) else f"{last}, {'y' if k % 2 else '0.5'}"
        lines.append(f"  v{k} = {kind}({arguments}) : f32[64,s0]")
        last = f"v{k}"
    return parse_graph("\n".join([*lines, f"  return {last}", "}"]))


def ladder(size: int) -> Graph:
    """a, b = a + b, a * b"""
    lines, a, b = ["graph(x: f32[64], y: f32[64]) {"], "x", "y"
    for k in range(size // 2):
        lines.append(f"  a{k} = add({a}, {b}) : f32[64]")
        lines.append(f"  b{k} = mul({a}, {b}) : f32[64]")
        a, b = f"a{k}", f"b{k}"
    return parse_graph("\n".join([*lines, f"  return {a}, {b}", "}"]))


def reshapes(size: int) -> Graph:
    """Reshapes back and forth, which cancel."""
    lines, last = ["graph(x: f32[8,8]) {"], "x"
    for k in range(size):
        shape, text = ((8, 8), "f32[8,8]") if k % 2 else ((64,), "f32[64]")
        lines.append(f"  v{k} = reshape({last}, shape={shape}) : {text}")
        last = f"v{k}"
    return parse_graph("\n".join([*lines, f"  return {last}", "}"]))


def branches(size: int) -> Graph:
    """Isomorphic branches of 14 ops each on slices of a vector."""
    return split_stack(size // 14)


def norm(lines: list[str], n: str, shape: tuple[int, ...]) -> str:
    """Append lines for a layer norm of the last dimension of `n` and a tanh; return the result."""
    last, wide, thin = len(shape) - 1, type_text(shape), type_text(shape[:-1])
    over = f"dims=({last},), dtype=f32"
    spread = f"shape={shape}, dims={tuple(range(last))}"
    lines += [
        f"  s_{n} = sum({n}, {over}) : {thin}",
        f"  m_{n} = div(s_{n}, {float(shape[-1])}) : {thin}",
        f"  b_{n} = broadcast(m_{n}, {spread}) : {wide}",
        f"  d_{n} = sub({n}, b_{n}) : {wide}",
        f"  q_{n} = mul(d_{n}, d_{n}) : {wide}",
        f"  t_{n} = sum(q_{n}, {over}) : {thin}",
        f"  v_{n} = div(t_{n}, {float(shape[-1])}) : {thin}",
        f"  r_{n} = rsqrt(v_{n}) : {thin}",
        f"  c_{n} = broadcast(r_{n}, {spread}) : {wide}",
        f"  y_{n} = mul(d_{n}, c_{n}) : {wide}",
        f"  z_{n} = tanh(y_{n}) : {wide}",
    ]
    return f"z_{n}"


def type_text(shape: tuple[int, ...]) -> str:
    return f"f32[{','.join(map(str, shape))}]"


def project(lines: list[str], name: str, count: int) -> Graph:
    rows = count * ROWS
    flat, out = type_text((rows, WIDTH)), type_text((count, ROWS, 1))
    lines += [
        f"  f = reshape({name}, shape=({rows}, {WIDTH})) : {flat}",
        f"  w = permute(weight, dims=(1, 0)) : f32[{WIDTH},1]",
        f"  p = opaque(bias, f, w, target='aten.addmm.default', args='$0, $1, $2') : f32[{rows},1]",
        f"  u = reshape(p, shape=({count}, {ROWS}, 1)) : {out}",
        f"  o = maximum(u, 0.0) : {out}",
    ]
    head = f"graph(x: f32[{count * ROWS * WIDTH}], weight: f32[1,{WIDTH}], bias: f32[1]) {{"
    return parse_graph("\n".join([head, *lines, "  return o", "}"]))


def split_stack(count: int) -> Graph:
    """Seed 0: split a vector, normalize each slice, stack them, project."""
    lines: list[str] = []
    size = ROWS * WIDTH
    for k in range(count):
        lines.append(
            f"  s{k} = slice(x, start=({k * size},), step=(1,), shape=({size},), dtype=f32)"
            f" : f32[{size}]"
        )
        lines.append(
            f"  p{k} = reshape(s{k}, shape=({ROWS}, {WIDTH})) : {type_text((ROWS, WIDTH))}"
        )
        done = norm(lines, f"p{k}", (ROWS, WIDTH))
        stacked = type_text((1, ROWS, WIDTH))
        lines.append(f"  e{k} = reshape({done}, shape=(1, {ROWS}, {WIDTH})) : {stacked}")
    slices = ", ".join(f"e{k}" for k in range(count))
    lines.append(f"  all = cat({slices}, dim=0) : {type_text((count, ROWS, WIDTH))}")
    return project(lines, "all", count)


def batched(count: int) -> Graph:
    """The same computation on one three-dimensional view."""
    shape = (count, ROWS, WIDTH)
    lines = [f"  slices = reshape(x, shape={shape}) : {type_text(shape)}"]
    return project(lines, norm(lines, "slices", shape), count)


PASS_GRAPHS = (chain, ladder, reshapes, branches)
