"""Make a random program from a seed, by running each new statement in eager for all sizes."""

import itertools
import math
import random
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from suites.fuzz.call import call, call_in_double
from suites.fuzz.program import (
    Input,
    Namespace,
    Program,
    Statement,
    function_source,
    load,
    load_function,
    make_arguments,
)
from suites.fuzz.tame import cannot_be_judged, is_tame, reads_beyond, storage_of
from suites.fuzz.templates import TABLES, templates

SIZES = (0, 1, 1, 2, 3, 3, 4, 5, 7, 8, 9, 11, 13, 16, 17, 24, 31, 32, 33, 40)
FIRST_SIZES = (2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 33)  # of the first call: neither 0 nor 1
LARGE_SIZES = (257, 512, 1000, 1031, 4096)
ROUNDED = ("rounded", "moved", "draw")  # kinds of statements
ROUNDED_WRITE = re.compile(r"\b(sin|tanh|sigmoid|exp|hypot|renorm|cumsum)_\(|torch\.sin\(.*out=")
MOST_ELEMENTS = 6000
MOST_ELEMENTS_OF_LARGE = 300_000
FLOATS = ("torch.float32",) * 5 + ("torch.float64", "torch.bfloat16", "torch.float16")
INTEGERS = ("torch.int64", "torch.int64", "torch.int32", "torch.uint8", "torch.int16")
SCALARS = ("2", "3", "-1", "0.5", "-1.7", "2.25", "True", "0.1")
SCOPES = (
    *("torch.no_grad()", 'torch.autocast("cpu", dtype=torch.bfloat16)') * 2,
    *("tofuse.fuse()", "tofuse.no_fuse()", "torch.enable_grad()"),
)
PLACE = re.compile(r"\{(\w)(!?)\}")
TRIES = 12  # of a statement that eager refuses


@dataclass
class Generator:
    """A program under construction: its namespace after eager ran it, for each tuple of sizes."""

    rng: random.Random
    seed: int
    inputs: list[Input] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    sizes: list[tuple[int, ...]] = field(default_factory=list)
    shadows: list[Namespace] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    inexact: set[str] = field(default_factory=set)
    gradients: bool = True
    draws: bool = False
    large: bool = False

    def program(self) -> Program:
        """Return a whole program that eager runs, forward and backward."""
        rng = self.rng
        self.large = rng.random() < 0.1
        self.choose_sizes()
        while not self.inputs:
            self.choose_inputs()
        self.rebuild()
        length = rng.choice((4, 8, 12, 16, 16, 20, 24, 30))
        allow_draws = rng.random() < 0.1
        scope: tuple[str, ...] = ()
        for _ in range(length):
            if rng.random() < 0.15:
                scope = () if scope else (rng.choice(SCOPES),)
                if scope and rng.random() < 0.1:
                    scope += (rng.choice(SCOPES),)
            for _ in range(TRIES):
                if self.add_statement(scope, allow_draws):
                    break
        return self.finish()

    def choose_sizes(self) -> None:
        rng, count = self.rng, self.rng.choice((1, 2, 3))
        first = [rng.choice(FIRST_SIZES) for _ in range(count)]
        if self.large:
            first[0] = rng.choice(LARGE_SIZES)
        self.sizes = [tuple(first)]
        for _ in range(rng.choice((0, 1, 2, 2))):
            self.sizes.append(tuple(rng.choice(SIZES) for _ in range(count)))

    def choose_inputs(self) -> None:
        for _ in range(self.rng.choice((1, 2, 2, 3, 3, 4))):
            name = f"x{len(self.inputs)}"
            plain = [x for x in self.inputs if not x.mode]
            if plain and self.rng.random() < 0.12:
                self.add_input(Input(name, self.alias_of(self.rng.choice(plain).name)))
            else:
                self.add_input(self.new_input(name))

    def add_input(self, x: Input) -> None:
        """Take an input that eager can make for all sizes."""
        self.inputs.append(x)
        try:
            for sizes in self.sizes:
                make_arguments(self.as_program(), sizes)
        except (RuntimeError, IndexError):
            self.inputs.pop()

    def elements(self, dims: list[str]) -> int:
        """Return the elements of a tensor for the largest sizes; some layouts add a little."""
        by_size = [{f"s{k}": n for k, n in enumerate(sizes)} for sizes in self.sizes]
        return max(math.prod(names[d] if d in names else int(d) for d in dims) for names in by_size)

    @property
    def most_elements(self) -> int:
        return MOST_ELEMENTS_OF_LARGE if self.large else MOST_ELEMENTS

    def alias_of(self, other: str) -> str:
        choices = ("{}", "{}", "{}[1:]", "{}.mT", "{}[::2]", "{}.view(-1)", "{}[:1]", "{}.detach()")
        return self.rng.choice(choices).format(other)

    def new_input(self, name: str) -> Input:
        rng = self.rng
        dims: list[str] = []
        names = [f"s{k}" for k in range(len(self.sizes[0]))]
        for _ in range(rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))):
            dim = rng.choice((*names * 2, "1", "2", "3", "8"))
            if self.elements([*dims, dim]) < self.most_elements:
                dims.append(dim)
        kind = rng.choices(("float", "int", "bool", "complex"), (16, 3, 2, 1))[0]
        text = self.with_layout(lambda d: self.values(kind, d), dims)
        mode = rng.choice(("", "", "leaf", "leaf", "nonleaf")) if kind == "float" else ""
        mode = mode if self.gradients else ""
        return Input(name, text, mode)

    def values(self, kind: str, dims: list[str]) -> str:
        rng, shape = self.rng, "".join(f"{d}, " for d in dims)
        match kind:
            case "float":
                dtype = rng.choice(FLOATS)
                suffix = "" if dtype == "torch.float32" else f".to({dtype})"
                if rng.random() < 0.05:
                    return f"torch.randint(-2, 3, ({shape})){suffix or '.float()'}"
                return f"torch.randn(({shape})){suffix}"
            case "int":
                return (
                    f"torch.randint({rng.choice((0, -5))}, 9, ({shape})).to({rng.choice(INTEGERS)})"
                )
            case "bool":
                return f"torch.rand(({shape})) > 0.5"
        return f"torch.randn(({shape}), dtype=torch.complex64)"

    def with_layout(self, make: "Maker", dims: list[str]) -> str:
        """Return the text of a tensor that is contiguous, or not, or has gaps, or overlaps."""
        choice = self.rng.random()
        if not dims or choice < 0.6:
            return make(dims)
        if choice < 0.7:
            return f"({make(dims[::-1])}).permute({', '.join(map(str, range(len(dims))[::-1]))})"
        if choice < 0.78:
            return f"({make([*dims[:-1], f'2 * {dims[-1]}'])})[..., ::2]"
        if choice < 0.86:
            return f"({make([f'{dims[0]} + 1', *dims[1:]])})[1:]"
        if choice < 0.92:
            return f"({make([*dims[:-1], f'{dims[-1]} + 3'])})[..., :-3]"
        k = self.rng.randrange(len(dims))
        return f"({make([*dims[:k], '1', *dims[k + 1 :]])}).expand({', '.join(dims)})"

    def rebuild(self) -> None:
        """Run all statements anew: the last one may have written before it failed."""
        self.shadows = []
        program = self.as_program()
        for sizes in self.sizes:
            arguments, _ = make_arguments(program, sizes)
            shadow = load("", **dict(zip([x.name for x in self.inputs], arguments, strict=True)))
            for s in self.statements:
                run_statement(s, shadow)
            self.shadows.append(shadow)
        if not self.names:
            self.names = [x.name for x in self.inputs]

    def as_program(self) -> Program:
        results = (self.inputs[0].name,)
        return Program(
            self.seed, tuple(self.inputs), tuple(self.statements), results, tuple(self.sizes)
        )

    def tensor(self, name: str) -> Tensor:
        x = self.shadows[0][name]
        assert isinstance(x, Tensor)
        return x

    def add_statement(self, scope: tuple[str, ...], allow_draws: bool) -> bool:
        kind, _, table = self.rng.choices(TABLES, [share for _, share, _ in TABLES])[0]
        if kind == "draw" and not allow_draws:
            return False
        if kind == "view" and "torch.no_grad()" in scope:  # of a leaf, it requires a gradient
            return False
        filled = self.fill(self.rng.choice(PARTS[table]))
        if filled is None:
            return False
        text, operands, target = filled
        writes = kind == "write" or re.search(r"\w_\(|\] = |out=| [-+*|]= ", text) is not None
        fresh = not re.search(r"^\w+(\[.*\])? [-+*|]?= ", text)
        result = f"v{len(self.statements)}"
        s = Statement(f"{result} = {text}" if fresh else text, scope)
        if not self.try_statement(s):
            if writes:
                self.rebuild()
            return False
        rounded = kind in ROUNDED or bool(ROUNDED_WRITE.search(text) or self.inexact & {*operands})
        self.record(s, rounded, target if writes else None)
        self.draws |= kind == "draw"
        return True

    def record(self, s: Statement, rounded: bool, target: str | None) -> None:
        """Take a statement that ran into the program; it may write `target`."""
        others = {storage_of(self.tensor(n)) for n in self.names}
        if s.result and storage_of(self.tensor(s.result)) not in others:
            rounded, target = rounded or target is not None, None  # `x.sum().add_(1)` writes no x
        if target is not None and rounded:
            written = self.tensor(target)
            at = storage_of(written)
            self.inexact |= {n for n in self.names if storage_of(self.tensor(n)) == at}
            if written.is_floating_point() or written.is_complex():
                operands = self.coarsest(s.reads)
                s = replace(s, rounds=str(written.dtype), operands=operands, written=target)
        if (name := s.result) is not None:
            x = self.tensor(name)
            if rounded and (x.is_floating_point() or x.is_complex()):
                self.inexact.add(name)
                if storage_of(x) not in others:
                    s = replace(s, rounds=str(x.dtype), operands=self.coarsest(s.reads))
            self.names.append(name)
        self.statements.append(s)

    def coarsest(self, names: tuple[str, ...]) -> str:
        """Return the floating-point dtype with the largest rounding errors among tensors; or ""."""
        dtypes = [x.dtype for n in names if (x := self.tensor(n)).is_floating_point()]
        return str(max(dtypes, key=lambda d: torch.finfo(d).eps)) if dtypes else ""

    def try_statement(self, s: Statement) -> bool:
        """Run a statement for all sizes; return whether eager accepts it and numbers stay tame."""
        for shadow in self.shadows:
            if reads_beyond(s, shadow):
                return False
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                try:
                    run_statement(s, shadow)
                except Exception:
                    return False
            given = [shadow[i.name] for i in self.inputs]
            if cannot_be_judged(s, shadow, given):
                return False
            names = [s.result] if s.result else s.reads[:1]
            for x in (shadow.get(n) for n in names):
                if not isinstance(x, Tensor) or x.numel() > self.most_elements:
                    return False
                if not is_tame(x):
                    return False
        return True

    def fill(self, template: str) -> tuple[str, list[str], str | None] | None:
        """Return a template with names and numbers, its operands, and the tensor it writes."""
        chosen: dict[str, str] = {}
        lower = [m[1] + m[2] for m in PLACE.finditer(template) if m[1] in "fibnac"]
        base = self.pick(lower[0] if lower else "a")
        if base is None:
            return None
        if lower:
            chosen[lower[0][0]] = base
        operands = [base]
        rank = self.tensor(base).dim()

        def place(match: re.Match[str]) -> str:
            letter, mark = match[1], match[2]
            if letter in chosen:
                return chosen[letter]
            text = self.number(letter, rank)
            if text is None:
                name = self.pick(letter + mark, base)
                if name is None:
                    raise LookupError
                operands.append(name)
                text = name
            if not letter.isupper():
                chosen[letter] = text
            return text

        try:
            text = PLACE.sub(place, template)
        except LookupError:
            return None
        target = chosen["g"] if "out=" in template else base
        return text, operands, target

    def number(self, letter: str, rank: int) -> str | None:
        """Return the text of a placeholder that is no tensor; None for a tensor's."""
        rng = self.rng
        match letter:
            case "d" | "e":
                return str(rng.randrange(-rank, rank) if rank and rng.random() < 0.9 else 0)
            case "k":
                return str(rng.choice((0, 1, 2, 3, -1)))
            case "r":
                return str(rng.choice((0, 1, 2)))
            case "s":
                return rng.choice(SCALARS)
            case "p":
                return rng.choice(("0.3", "1.5", "2.0", "3", "0.7"))
            case "t":
                return rng.choice(FLOATS)
            case "T":
                return rng.choice(FLOATS + INTEGERS)
        return None

    def pick(self, letter: str, base: str | None = None) -> str | None:
        """Return a tensor of a letter's kind; of upper case, one that broadcasts with the base."""
        kind = letter[0].lower()
        names = [n for n in self.names if KINDS[kind](self.tensor(n))]
        if letter.endswith("!"):
            names = [n for n in names if n not in self.inexact]
        if base is not None and letter[0].isupper():
            names = [n for n in names if self.broadcasts(n, base)]
        if base is not None and letter[0] == "j":
            names = [n for n in names if self.tensor(n).dim() == self.tensor(base).dim()]
        if not names:
            return None
        return self.rng.choice(names[-5:] if self.rng.random() < 0.6 else names)

    def broadcasts(self, name: str, base: str) -> bool:
        pairs = zip(
            reversed(self.tensor(name).shape), reversed(self.tensor(base).shape), strict=False
        )
        return all(1 in (m, n) or m == n for m, n in pairs)

    def finish(self) -> Program:
        """Choose results: what nothing reads, and sometimes something else."""
        rng = self.rng
        read = {n for s in self.statements for n in s.reads}
        unread = [n for n in self.names if n not in read] or self.names
        results = rng.sample(unread, min(len(unread), 8))
        results += [rng.choice(self.names) for _ in range(rng.choice((0, 0, 1, 2)))]
        tangents = rng.choice(("dense", "dense", "expanded", "transposed"))
        program = self.as_program()
        return replace(program, results=tuple(results), draws=self.draws, tangents=tangents)


def generate(seed: int) -> Program:
    """Return the program of a seed."""
    state, always = torch.random.get_rng_state(), torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # a statement that warns is left out, the second time as well
    try:
        for attempt in itertools.count():
            generator = Generator(random.Random(f"{seed} {attempt}"), seed, gradients=attempt < 3)
            program = generator.program()
            if runs_in_eager(program):
                return program
    finally:
        torch.random.set_rng_state(state)
        torch.set_warn_always(always)
    raise AssertionError


def runs_in_eager(program: Program) -> bool:
    """Return whether eager runs a program and its backward, and in float64, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function = load_function(function_source(program))
            for sizes in program.sizes:
                call(program, function, sizes)
                call_in_double(program, sizes)
        except (RuntimeError, IndexError, TypeError, ValueError):
            return False
    return True


def run_statement(s: Statement, namespace: Namespace) -> None:
    """Run one statement in its scopes."""
    lines = [f"{'  ' * k}with {scope}:" for k, scope in enumerate(s.scopes)]
    exec("\n".join([*lines, "  " * len(lines) + s.text]), namespace)


Maker = Callable[[list[str]], str]
INTEGER_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
KINDS: dict[str, Callable[[Tensor], bool]] = {
    "f": lambda x: x.is_floating_point(),
    "g": lambda x: x.is_floating_point(),
    "h": lambda x: x.is_floating_point(),
    "i": lambda x: x.dtype in INTEGER_DTYPES,
    "b": lambda x: x.dtype == torch.bool,
    "n": lambda x: x.is_floating_point() or x.dtype in INTEGER_DTYPES,
    "c": lambda x: x.is_complex(),
    "a": lambda x: True,
    "j": lambda x: True,
}
PARTS = {table: templates(table) for _, _, table in TABLES}
