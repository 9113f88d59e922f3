"""Run a program in eager, in float64 and compiled with given options, and compare them."""

import contextlib
import functools
import random
import shutil
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.fx import GraphModule

import tofuse
from suites.fuzz.call import Function, call, call_in_double
from suites.fuzz.compare import (
    Fault,
    Outcome,
    find_differences,
    nearly_same,
    plain,
    same_bits,
    too_far,
)
from suites.fuzz.guard_pages import GuardPages
from suites.fuzz.program import (
    Option,
    Program,
    coarsest_eps,
    function_source,
    load_function,
    make_arguments,
)
from tofuse.capture.pre_autograd.replace_functions import replace_functions
from tofuse.errors import CaptureError, UnsupportedError
from tofuse.torch_internals.autograd_compiler import aot_autograd, aot_function

JITTERS = 24  # runs of the referee with rounding errors
SPREAD = 4.0  # how much farther than these our result may be
# The backward recomputes a value from an argument that is written after a graph break; eager saved
# the value. Autograd finds it.
OVERWRITTEN = "modified by an inplace operation"
REFUSALS = (CaptureError, UnsupportedError)  # tofuse says that it cannot capture the program

BASES: tuple[dict[str, Option], ...] = (
    {},
    {"dynamic": True},
    {"dynamic": True},
    {"dynamic": False},
    {"capture": "trace"},
    {"capture": "trace"},
    {"precision": "eager"},
    {"dynamic": True, "precision": "eager"},
    {"memory_budget": 0},
    {"memory_budget": 0.5},
    {"executors": ("aten",)},
    {"fuel": 2},
    {"tune": "measure"},
    {"dynamic": True, "specialize": False},
    {"specialize": False},
)
# Options that change no bit of any result.
EXACT: tuple[dict[str, Option], ...] = ({"pool_bytes": 0}, {"verify": True}, {"strict": True})


@dataclass(frozen=True)
class Variant:
    """How a program is compiled and called."""

    options: tuple[tuple[str, Option], ...] = ()
    exact: tuple[tuple[str, Option], ...] = ()  # compiled with these too, and compared bit for bit
    canaries: str = ""  # "end" or "start": memory lies against a page without access
    threads: int = 1

    def __str__(self) -> str:
        words = [f"{name}={value!r}" for name, value in (*self.options, *self.exact)]
        words += [f"canaries={self.canaries}"] if self.canaries else []
        words += [f"threads={self.threads}"] if self.threads > 1 else []
        return ", ".join(words) or "no option"


def variants(seed: int, count: int, canaries: str = "") -> list[Variant]:
    """Return the variants in which a seed's program runs; `canaries` "some" is a share of them."""
    rng = random.Random(f"variants {seed}")
    found = []
    for _ in range(count):
        base = tuple(rng.choice(BASES).items())
        exact = tuple(rng.choice(EXACT).items()) if rng.random() < 0.2 else ()
        exact = () if ("tune", "measure") in base else exact  # times decide
        guard = rng.choice(("end", "end", "start"))
        wanted = rng.random() < 0.3 if canaries == "some" else bool(canaries)
        if canaries in ("end", "start"):
            guard = canaries
        threads = 2 if rng.random() < 0.1 else 1
        found.append(Variant(base, exact, guard if wanted else "", threads))
    return found


def check(program: Program, variant: Variant) -> Fault | None:
    """Return what is wrong with a program compiled so, or None; raise one of REFUSALS."""
    torch._dynamo.reset()
    folder = tempfile.mkdtemp(prefix="tofuse-fuzz-")
    guard = GuardPages(variant.canaries) if variant.canaries else None
    undo = guard.install() if guard else None
    options = {"cache_dir": folder, **dict(variant.options)}
    if guard:
        options["pool_bytes"] = 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _check(program, variant, options, guard)
    finally:
        if undo:
            undo()
        shutil.rmtree(folder, ignore_errors=True)


def _traced_by_torch(function: Function, *arguments: Tensor) -> tuple[object, ...]:
    return tuple(aot_function(function, lambda graph, _: graph)(*arguments))  # it has no guards


def _check(
    program: Program, variant: Variant, options: dict[str, Option], guard: GuardPages | None
) -> Fault | None:
    function = load_function(function_source(program))
    compiled = tofuse.compile(function, **options)
    exact = []
    if variant.exact:
        exact.append(tofuse.compile(function, **{**options, **dict(variant.exact)}))
    return next(find_faults(program, function, compiled, exact, guard, variant.threads), None)


def aot_eager(gm: GraphModule, inputs: Sequence[object]) -> object:
    """Run a program of Dynamo through AOTAutograd, with our functions where torch's are wrong."""
    return aot_autograd(fw_compiler=lambda graph, _: graph)(replace_functions(gm)[0], inputs)


def torch_has(program: Program, variant: Variant, fault: Fault) -> bool:
    """Return whether torch's own capture, without a compiler, has the same fault.

    Dynamo by itself is tried, too: AOTAutograd can fail before its fault shows. Arguments lie in
    memory as the variant says: between guard pages, they are no views of each other for autograd.
    """
    guard = GuardPages(variant.canaries) if variant.canaries else None
    function = load_function(function_source(program))
    dynamic = True if ("dynamic", True) in variant.options else None
    captures = [torch.compile(function, backend=b, dynamic=dynamic) for b in (aot_eager, "eager")]
    if ("capture", "trace") in variant.options:
        captures = [functools.partial(_traced_by_torch, function)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for captured in captures:
            torch._dynamo.reset()
            found = find_faults(program, function, captured, [], guard, variant.threads)
            with contextlib.suppress(*REFUSALS):
                if any(f.same_as(fault) for f in found):
                    return True
    return False


def find_faults(
    program: Program,
    function: Function,
    compiled: Function,
    exact: Sequence[Function],
    guard: GuardPages | None,
    threads: int,
) -> Iterator[Fault]:
    """Yield what differs between a function and its compiled form, in calls of each size."""
    prepare = guard.copies if guard else None
    try:
        eager = [call(program, function, sizes, prepare) for sizes in program.sizes]
    except RuntimeError as error:
        if guard is None or "not resizable" not in str(error):
            raise
        raise UnsupportedError("memory between guard pages cannot grow") from error
    for sizes, expected in zip(program.sizes, eager, strict=True):
        try:
            ours = call(program, compiled, sizes, prepare)
            again = [call(program, f, sizes, prepare) for f in (compiled, *exact)]
            again += in_threads(program, compiled, sizes, threads)
        except REFUSALS:
            raise
        except Exception as error:
            if OVERWRITTEN in str(error):
                raise UnsupportedError("its backward recomputes from what is written") from error
            yield error_fault(error, sizes)
            continue
        faults = list(find_differences(ours, expected))
        faults += find_wrong_numbers(program, sizes, ours, expected)
        if not faults:
            same_sums = guard is None and threads == 1
            faults += find_changes(ours, again, coarsest_eps(program), same_sums)
        for fault in faults:
            detail = f"{fault.detail} (sizes {list(sizes)})"
            yield replace(fault, detail=detail, sizes=tuple(sizes))


def error_fault(error: Exception, sizes: Sequence[int]) -> Fault:
    first: BaseException = error
    while (inner := getattr(first, "inner_exception", first.__cause__)) is not None:
        first = inner  # the same in torch's own capture
    text = " ".join(str(first).split()).split(" from user code")[0]
    cause = type(first).__name__
    detail = f"{cause}: {text[:400]} (sizes {list(sizes)})"
    return Fault(f"error {cause}: {text[:50]}", detail, sizes=tuple(sizes))


def in_threads(
    program: Program, compiled: Function, sizes: Sequence[int], count: int
) -> list[Outcome]:
    """Call a compiled program in several threads at once, without random numbers."""
    if count == 1 or program.draws:
        return []
    outcomes: list[Outcome] = []
    errors: list[BaseException] = []
    made = [make_arguments(program, sizes) for _ in range(count)]

    def work(k: int) -> None:
        try:
            arguments, _ = made[k]
            results = compiled(*arguments)
            assert isinstance(results, tuple)
            outcomes.append(Outcome(list(results), arguments, []))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return outcomes


def find_changes(
    ours: Outcome, others: Sequence[Outcome], eps: float, same_sums: bool
) -> Iterator[Fault]:
    """Yield the differences between two calls that must give the same bits.

    Without `same_sums`, memory is aligned differently, and PyTorch's library sums in another order.
    Gradients may do so, too: strides of gradients that recur get a backward of their own.
    """
    for other in others:
        for (name, x), (_, y) in zip(ours.tensors(), other.tensors(), strict=False):
            if name.startswith("gradient") and not other.gradients:
                continue
            exactly = same_sums and not name.startswith("gradient")
            if not same_bits(x, y) and (exactly or not nearly_same(x, y, eps)):
                yield Fault("another call", f"{name} changes from call to call", name)


def find_wrong_numbers(
    program: Program, sizes: Sequence[int], ours: Outcome, eager: Outcome
) -> Iterator[Fault]:
    """Yield tensors with a number that is farther from float64 than eager's."""
    if program.draws:
        return
    pairs = list(zip(ours.tensors(), eager.tensors(), strict=True))
    unequal = [k for k, ((_, x), (_, e)) in enumerate(pairs) if not same_bits(x, e)]
    if not unequal:
        return
    referee = call_in_double(program, sizes).tensors()
    shaken: list[Outcome] = []
    for k in unequal:
        (name, x), (_, e) = pairs[k]
        r = referee[k][1]
        if x is None or e is None or r is None or not r.shape == x.shape == e.shape:
            continue
        gradient = name.startswith("gradient")
        if not too_far(x, e, r, gradient=gradient):
            continue
        shaken = shaken or [call_in_double(program, sizes, jitter=j + 1) for j in range(JITTERS)]
        moved = [plain(y).double() for o in shaken if (y := o.tensors()[k][1]) is not None]
        around = plain(r).double()
        spread = torch.stack([(y - around).abs() for y in moved]).amax(0) * SPREAD
        if text := too_far(x, e, r, spread, gradient=gradient):
            kind = name.split()[0]
            yield Fault(f"wrong {kind}", f"{name}: {text}", name)
