"""Random programs of autograd Functions whose forward and backward write into tensors."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch.autograd import Function


@torch.library.custom_op("tofuse_test::bump", mutates_args={"x"})
def bump(x: torch.Tensor) -> None:
    x.add_(1)


@torch.library.custom_op("tofuse_test::record", mutates_args={"into"})
def record(x: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
    into.mul_(0.5).add_(x.detach().abs().max())
    return x * 2


@record.register_fake
def _(x, into):
    return torch.empty_like(x)


def add_first(x, into):
    into[0].add_(1)


def add_view(x, into):
    into.view(-1)[1:].mul_(0.5)


WRITES = (
    lambda x, into: into.add_(1),
    lambda x, into: into.mul_(0.5),
    lambda x, into: into.copy_(x.detach().abs()),
    lambda x, into: into.add_(x.detach().sum() * 0.1),
    add_first,
    add_view,
    lambda x, into: bump(into),
    lambda x, into: record(x, into),
    lambda x, into: into.fill_(0.25),
)
FORWARDS = (
    lambda x, c: x.clone(),
    lambda x, c: x.sin(),
    lambda x, c: x * 2 + c,
    lambda x, c: record(x, c),
    lambda x, c: torch.tanh(x) * c.sum(),
)
KEPT = ("nothing", "attribute", "attribute", "saved", "view")


@dataclass(frozen=True)
class Spec:
    """One autograd Function: `before` are writes in the forward, `after` in the backward.

    Writes go to the argument, or to the intermediate if it is kept.
    """

    forward: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    kept: str
    reads: bool  # the gradient reads what the backward has written
    writes_intermediate: bool
    saves_input: bool


def random_spec(rng: random.Random) -> Spec:
    writes = lambda chance: tuple(  # noqa: E731
        rng.randrange(len(WRITES)) for _ in range(2) if rng.random() < chance
    )
    kept, after = rng.choice(KEPT), writes(0.5)
    return Spec(
        rng.randrange(len(FORWARDS)),
        writes(0.12),
        after,
        kept,
        # Dynamo does not save, and so not check, what the backward does not read
        (kept == "saved" and not after) or rng.random() < 0.4,
        rng.random() < 0.08,
        rng.random() < 0.5,
    )


def make_function(spec: Spec) -> type[Function]:
    """The Function of a spec: it takes a value, and a tensor to write into."""

    class Effect(Function):
        @staticmethod
        def forward(ctx, x, c):
            for k in spec.before:
                WRITES[k](x, c)
            y = FORWARDS[spec.forward](x, c)
            saved = []
            if spec.saves_input:
                saved.append(x)
            if spec.kept == "saved":
                saved.append(c)
            elif spec.kept == "attribute":
                ctx.c = c
            elif spec.kept == "view":
                ctx.c = c.view(-1)
            if spec.writes_intermediate:
                ctx.intermediate = x * 3
            ctx.save_for_backward(*saved)
            return y

        @staticmethod
        def backward(ctx, g):
            saved = list(ctx.saved_tensors)
            x = saved.pop(0) if spec.saves_input else g
            c = saved.pop() if spec.kept == "saved" else None
            if spec.kept in ("attribute", "view"):
                c = ctx.c
            out = g * x.cos() if spec.saves_input else g * 2
            if spec.writes_intermediate:
                ctx.intermediate.add_(1)
                out = out * ctx.intermediate
            if c is not None:
                for k in spec.after:
                    WRITES[k](x, c)
                if spec.reads:
                    out = out + c
            return out, None

    return Effect


@dataclass(frozen=True)
class Program:
    """A program of one to three Functions, and how it is called."""

    seed: int
    specs: tuple[Spec, ...]
    functions: tuple[type[Function], ...]
    targets: tuple[int, ...]  # the tensor that each writes into
    chained: tuple[bool, ...]  # whether each takes the last result
    between: tuple[int, ...]
    results: int
    module: bool
    plan: str

    def run(self, v, w, c, d, buffer):
        written, value, values = (c, d, buffer), v * w, []
        for function, target, chained, between in zip(
            self.functions, self.targets, self.chained, self.between, strict=True
        ):
            x = value if chained else v * 2
            value = function.apply(x, written[target])
            if between == 1:
                value = value.sin() * w
            elif between == 2:
                value = value * written[target]
            elif between == 3:
                with torch.no_grad():
                    written[target].add_(1)
            elif between == 4:
                value = value + written[target].sum()
            values.append(value)
        if self.results == 0:
            return (sum(values),)
        if self.results == 1:
            return (values[-1],)
        if self.results == 2:
            return tuple(values)
        return values[-1], values[0].detach() * 2


PLANS = ("once", "once", "twice", "never", "no grad", "two calls", "first", "create")


def random_program(seed: int) -> Program:
    rng = random.Random(seed)
    plan, count = rng.choice(PLANS), rng.choice((1, 1, 2, 3))
    specs = [random_spec(rng) for _ in range(count)]
    targets = [rng.randrange(3) for _ in specs]
    between = [rng.choice((0, 0, 0, 1, 2, 3, 4)) for _ in specs]
    if plan == "two calls":
        # a graph has the values that its own forward has left, where eager has the memory
        kept = {
            target for spec, target in zip(specs, targets, strict=True) if spec.kept != "nothing"
        }
        for k, target in enumerate(targets):
            if target in kept:
                specs[k] = replace(specs[k], before=(), forward=specs[k].forward % 3)
                between[k] %= 3
    return Program(
        seed,
        tuple(specs),
        tuple(map(make_function, specs)),
        tuple(targets),
        tuple(rng.random() < 0.7 for _ in specs),
        tuple(between),
        rng.randrange(4),
        rng.random() < 0.4,
        plan,
    )


class Module(torch.nn.Module):
    """The program with its second factor as a parameter and its third tensor as a buffer."""

    buffer: torch.Tensor

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 4))
        self.register_buffer("buffer", torch.linspace(1, 2, 4))

    def forward(self, v, c, d):
        return self.program.run(v, self.weight, c, d, self.buffer)


@dataclass
class Trace:
    """What a caller sees after each stage: tensors, or the error that ends the stages."""

    stages: list[tuple[str, list[torch.Tensor | None]]] = field(default_factory=list)
    error: str = ""

    def matches(self, other: "Trace") -> bool:
        if self.error != other.error or len(self.stages) != len(other.stages):
            return False
        return all(
            a[0] == b[0] and all(map(_close, a[1], b[1]))
            for a, b in zip(self.stages, other.stages, strict=True)
        )


def _close(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


def observe(program: Program, compile: Callable | None) -> Trace:
    """Run the stages of a program, compiled if `compile` is there."""
    torch.manual_seed(0)
    v = torch.linspace(-1, 1, 4, requires_grad=True)
    c, d = torch.linspace(0, 1, 4), torch.linspace(1, 0, 4)
    module = Module(program)
    w = module.weight
    if program.module:
        run = module if compile is None else compile(module)
        call = lambda: run(v, c, d)  # noqa: E731
    else:
        run = program.run if compile is None else compile(program.run)
        call = lambda: run(v, w, c, d, module.buffer)  # noqa: E731
    trace = Trace()

    def see(stage: str, *more: torch.Tensor | None) -> None:
        seen = [*more, v.grad, w.grad, c, d, module.buffer]
        trace.stages.append((stage, [None if t is None else t.detach().clone() for t in seen]))

    try:
        _run_stages(program.plan, call, (v, w), see)
    except RuntimeError:
        trace.error = "RuntimeError"
    return trace


def _run_stages(plan: str, call, leaves, see) -> None:
    loss = lambda results: sum(r.sum() for r in results if r.requires_grad)  # noqa: E731
    if plan == "no grad":
        with torch.no_grad():
            see("forward", *call())
        return
    results = call()
    see("forward", *results)
    if plan == "never":
        return
    if plan == "first":
        results[0].sum().backward()
        see("backward")
    elif plan == "two calls":
        again = call()
        see("second forward", *again)
        loss(results).backward()
        see("backward")
        loss(again).backward()
        see("second backward")
    elif plan == "create":
        gradients = torch.autograd.grad(loss(results), leaves, create_graph=True, allow_unused=True)
        see("gradients", *gradients)
    else:
        loss(results).backward(retain_graph=plan == "twice")
        see("backward")
        if plan == "twice":
            loss(results).backward()
            see("second backward")
