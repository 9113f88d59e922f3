"""Run an ATen graph op by op through PyTorch, as straight-line Python."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import Argument

from tofuse.torch_internals.operators import OpOverload, without_python

Run = Callable[[list[object]], list[torch.Tensor]]


def eager_graph_callable(gm: GraphModule, boxed: Collection[Node] = ()) -> Run:
    """Return a callable that runs a whole ATen graph op by op; it takes its arguments in one list.

    The calls `boxed` take their arguments in one list, too, and empty it. Each tensor is freed
    after its last use. Gradients are converted to the layouts that were traced: views of them may
    be illegal otherwise.
    """
    placeholders = gm.graph.find_nodes(op="placeholder")
    tangents = [
        (k, strides)
        for k, n in enumerate(placeholders)
        if str(n.target).startswith("tangents_")
        if (strides := _static_strides(n.meta.get("val"))) is not None
    ]
    run = _compile(gm, frozenset(boxed))
    if not tangents:
        return run

    def run_with_layouts(args: list[object]) -> list[torch.Tensor]:
        for k, strides in tangents:
            args[k] = _in_strides(args[k], strides)
        return run(args)

    return run_with_layouts


def _static_strides(traced: object) -> tuple[int, ...] | None:
    """Return the strides of a traced tensor of static sizes."""
    if not isinstance(traced, torch.Tensor) or traced.layout is not torch.strided:
        return None
    is_static = all(isinstance(n, int) for n in (*traced.shape, *traced.stride()))
    return traced.stride() if is_static else None


def _in_strides(x: object, strides: tuple[int, ...]) -> object:
    """Return a tensor with the given strides; a copy if it has others."""
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or x.stride() == strides:
        return x
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


def _compile(gm: GraphModule, boxed: frozenset[Node]) -> Run:
    nodes = list(gm.graph.nodes)
    names = {n: f"v{k}" for k, n in enumerate(nodes)}
    bound: list[object] = []

    def bind(value: object) -> str:
        bound.append(value)
        return f"c{len(bound) - 1}"

    def text(argument: Argument) -> str:
        match argument:
            case Node():
                return names[argument]
            case list() | tuple():
                return f"[{', '.join(map(text, argument))}]"
            case bool() | int() | None:
                return repr(argument)
            case slice():
                return (
                    f"slice({text(argument.start)}, {text(argument.stop)}, {text(argument.step)})"
                )
            case _:
                return bind(argument)

    lines = ["def run(args):"]
    arguments = [n for n in nodes if n.op == "placeholder"]
    if arguments:
        lines.append(f"{', '.join(names[n] for n in arguments)}, = args")
    lines.append("args.clear()")
    dead = _last_uses(nodes)
    for n in nodes:
        free = [f"del {', '.join(names[m] for m in dead[n])}"] if dead[n] else []
        match n.op:
            case "output":
                lines.append(f"return {text(n.args[0])}")
            case "get_attr":
                lines.append(f"{names[n]} = {bind(operator.attrgetter(str(n.target))(gm))}")
            case "call_function" if n.target is operator.getitem:
                lines += [f"{names[n]} = {text(n.args[0])}[{text(n.args[1])}]", *free]
            case "call_function" if n in boxed:
                lines += [f"box = {text(n.args)}", *free, f"{names[n]} = {bind(n.target)}(box)"]
            case "call_function":
                target = n.target
                call = without_python(target) if isinstance(target, OpOverload) else target
                values = [*map(text, n.args), *(f"{k}={text(a)}" for k, a in n.kwargs.items())]
                lines += [f"{names[n]} = {bind(call)}({', '.join(values)})", *free]
    namespace = {f"c{k}": value for k, value in enumerate(bound)}
    exec(compile("\n    ".join(lines), "<tofuse eager>", "exec"), namespace)
    return namespace["run"]  # type: ignore[return-value]  # what `lines` define


def _last_uses(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    """Return, by node, the values that it reads last; its own value if no other node reads it."""
    seen: set[Node] = set()
    dead: dict[Node, list[Node]] = {}
    for n in reversed(list(nodes)):
        read = {} if n.op == "placeholder" else dict.fromkeys(n.all_input_nodes)
        dead[n] = [m for m in read if m not in seen]
        if n not in seen and n.op == "call_function":
            dead[n].append(n)
        seen.update(read)
    return dead
