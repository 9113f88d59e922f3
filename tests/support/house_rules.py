"""Checks of the house rules: each takes a file's syntax tree and names what breaks the rule."""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

FILE_LINES = 400
FUNCTION_LINES = 60
INIT_LINES = 40


@dataclass(frozen=True)
class Source:
    """A file of the package; `path` is relative to the package's folder, as in `ir/types.py`."""

    path: PurePosixPath
    text: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @property
    def module(self) -> str:
        """The dotted name without `tofuse`: `ir.types` for `ir/types.py`, `ir` for its package."""
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)

    @property
    def package(self) -> tuple[str, ...]:
        """The package that relative imports start from."""
        return ("tofuse", *self.path.parent.parts)


def read(folder: Path) -> list[Source]:
    """Every Python file below `folder`."""
    return [
        Source(PurePosixPath(path.relative_to(folder).as_posix()), path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("*.py"))
    ]


Check = Callable[[Source], Iterator[str]]


def import_law(source: Source) -> Iterator[str]:
    """A room imports only from rooms further down in `ROOMS`, and a stage from no other stage."""
    own = room_of(source.module)
    if own is None:
        yield f"{source.path}: no room of the import law contains it"
        return
    for line, name in imports(source):
        if name.split(".")[0] != "tofuse":
            continue
        target = room_of(name.removeprefix("tofuse").removeprefix(".") or "__init__")
        if target is None:
            yield f"{source.path}:{line}: imports {name}, which is in no room"
        elif target != own and not may_import(own, target):
            yield f"{source.path}:{line}: {own} may not import {target}"


def room_of(module: str) -> str | None:
    """The innermost room that contains a module, given relative to `tofuse`."""
    parts = module.split(".")
    prefixes = (".".join(parts[:k]) for k in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in HEIGHT), None)


def may_import(own: str, target: str) -> bool:
    stage, other = own.split(".")[0], target.split(".")[0]
    if stage in STAGES and other in STAGES and stage != other and (own, target) not in DOORS:
        return False
    return HEIGHT[own] > HEIGHT[target]


def third_party_fences(source: Source) -> Iterator[str]:
    """torch, llvmlite and triton are imported only where the design allows."""
    path = str(source.path)
    for line, name in imports(source):
        fence = FENCES.get(name.split(".")[0])
        if fence is not None and not path.startswith(fence):
            yield f"{path}:{line}: {name} may not be imported here"


def no_lazy_imports(source: Source) -> Iterator[str]:
    """No import inside a function, but for the two device libraries."""
    for function in functions(source.tree):
        for node in ast.walk(function):
            for line, name in imports_of(node, source):
                if name.split(".")[0] not in LAZY:
                    yield f"{source.path}:{line}: {name} is imported inside {function.name}"


def environment_only_in_config(source: Source) -> Iterator[str]:
    """Only config.py reads the environment."""
    if str(source.path) == "config.py":
        return
    for node in ast.walk(source.tree):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr="environ" | "environb" | "getenv"):
                yield f"{source.path}:{node.lineno}: os.{node.attr} belongs in config.py"
            case ast.ImportFrom(module="os", names=names):
                for alias in names:
                    if alias.name in ("environ", "environb", "getenv"):
                        yield f"{source.path}:{node.lineno}: os.{alias.name} belongs in config.py"


def steering_numbers_in_cost(source: Source) -> Iterator[str]:
    """A number that steers a decision stands in `cost`, unless `LIMITS` says what else it is."""
    if source.module.split(".")[0] not in STEERED:
        return
    for node in source.tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not _is_number(node.value):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
        places = {f"{source.path}:{n}": n for n in names if n.isupper()}
        for name in (n for place, n in places.items() if not place.startswith(tuple(LIMITS))):
            yield f"{source.path}:{node.lineno}: {name} belongs in cost/thresholds.py"


def _is_number(value: ast.expr | None) -> bool:
    """Whether an expression computes a number, or some, from constants."""
    if isinstance(value, ast.Tuple):
        return bool(value.elts) and all(map(_is_number, value.elts))
    if isinstance(value, ast.BinOp):
        return any(isinstance(n, ast.Constant) and _is_number(n) for n in ast.walk(value))
    if isinstance(value, ast.UnaryOp):
        return _is_number(value.operand)
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def honest_types(source: Source) -> Iterator[str]:
    """No `Any`, no `hasattr`, no `dict[str, object]`."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Name(id="Any") | ast.Attribute(attr="Any", value=ast.Name(id="typing" | "t")):
                yield f"{source.path}:{node.lineno}: Any"
            case ast.ImportFrom(module="typing" | "typing_extensions", names=names):
                if any(alias.name == "Any" for alias in names):
                    yield f"{source.path}:{node.lineno}: imports Any"
            case ast.Name(id="hasattr"):
                yield f"{source.path}:{node.lineno}: hasattr"
            case ast.Subscript(
                value=ast.Name(id="dict" | "Dict"),
                slice=ast.Tuple(elts=[ast.Name(id="str"), ast.Name(id="object")]),
            ):
                yield f"{source.path}:{node.lineno}: dict[str, object]"


def torch_internals_alone(source: Source) -> Iterator[str]:
    """Only torch_internals names what is private in torch; operators of aten are public."""
    if source.path.parts[0] == "torch_internals":
        return
    tree, path = source.tree, source.path
    for line, name in imports(source):
        if name.startswith("torch.") and is_private(name):
            yield f"{path}:{line}: imports {name}"
    roots = {
        alias.asname or alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        or (isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "torch")
        for alias in node.names
        if isinstance(node, ast.ImportFrom) or alias.name.split(".")[0] == "torch"
    }
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=attribute):
                name = ast.unparse(node)
                of_torch = name.split(".")[0] in roots and not name.startswith("torch.ops.")
                ours = name == f"self.{attribute}"
                if (attribute in TORCH_ATTRIBUTES and not ours) or (
                    of_torch and is_private(attribute)
                ):
                    yield f"{path}:{node.lineno}: {name}"
            case ast.Call(func=ast.Name(id="getattr" | "setattr" | "attrgetter"), args=args):
                for arg in args:
                    if isinstance(arg, ast.Constant) and arg.value in TORCH_ATTRIBUTES:
                        yield f"{path}:{node.lineno}: {arg.value}"


def is_private(name: str) -> bool:
    """Whether a part of a dotted name has a leading underscore; `__name__` has two."""
    return any(part[:1] == "_" != part[1:2] for part in name.split("."))


def sizes(source: Source) -> Iterator[str]:
    """A file, a package's __init__ and a function each fit their limit."""
    limit = INIT_LINES if source.path.name == "__init__.py" else FILE_LINES
    lines = len(source.text.splitlines())
    if lines > limit:
        yield f"{source.path}: {lines} lines, limit {limit}"
    for function in functions(source.tree):
        assert function.end_lineno is not None
        length = function.end_lineno - function.lineno + 1
        if length > FUNCTION_LINES:
            yield (
                f"{source.path}:{function.lineno}: {function.name} has {length} lines, "
                f"limit {FUNCTION_LINES}"
            )


def opening_sentence(source: Source) -> Iterator[str]:
    """A file that is not empty opens with a docstring that says what it is for."""
    if source.tree.body and not ast.get_docstring(source.tree):
        yield f"{source.path}: does not say what it is for"


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything `source` imports."""
    for node in ast.walk(source.tree):
        yield from imports_of(node, source)


def imports_of(node: ast.AST, source: Source) -> Iterator[tuple[int, str]]:
    """The same for one node; `from tofuse import ir` counts as `tofuse.ir`."""
    match node:
        case ast.Import(names=names):
            for alias in names:
                yield node.lineno, alias.name
        case ast.ImportFrom(module=module, names=names, level=level):
            base = source.package[: len(source.package) - level + 1] if level else ()
            parts = [*base, *([module] if module else [])]
            for alias in names:
                yield node.lineno, ".".join([*parts, alias.name])


# From top to bottom. A room may import from the rooms of the rows below its own.
ROOMS: tuple[tuple[str, ...], ...] = (
    ("__main__",),
    ("cli", "integrations"),
    ("__init__",),
    ("public",),
    ("nvfuser",),
    ("frontends",),
    ("api",),
    ("driver",),
    ("cache",),
    ("capture.dynamo", "capture.trace"),
    ("capture.pre_autograd",),
    ("capture.aot",),
    ("capture.joint",),
    ("capture.decomp",),
    ("capture.lower",),
    ("capture.fx",),
    ("capture",),
    ("fusion.partition",),
    ("fusion",),
    ("fusion.views",),
    ("fusion.lower",),
    ("fusion.concat",),
    ("runtime",),
    ("backends.backend_of",),
    ("backends.cpu", "backends.cuda"),
    ("plan",),
    ("passes",),
    ("backends.cpu.schedule", "backends.cuda.schedule"),
    ("schedule",),
    ("backends.cpu.llvm", "backends.cuda.triton", "backends.aten", "backends.interp"),
    ("backends.cpu.runtime", "backends.cuda.runtime", "backends.cpu.processors"),
    ("backends.cpu.cost", "backends.cuda.cost"),
    ("backends",),
    ("report",),
    ("executors",),
    ("cost",),
    ("graph_partition",),
    ("analysis",),
    ("hints",),
    ("ops",),
    ("ir",),
    ("disk_store", "dispatch"),
    ("torch_internals",),
    ("config",),
    ("errors", "gc_pause"),
)
HEIGHT = {room: -k for k, row in enumerate(ROOMS) for room in row}
# A stage imports no other stage: what it needs of one comes as a parameter.
STAGES = frozenset(
    {"capture", "passes", "fusion", "schedule", "backends", "plan", "runtime", "report"},
)
# The runtime executes plans with launchers of targets. A target has its schedules.
DOORS = frozenset(
    {
        ("runtime", "backends"),
        ("runtime", "backends.cpu.processors"),
        ("runtime", "backends.cpu.runtime"),
        ("runtime", "backends.cuda.runtime"),
        ("backends.cpu", "schedule"),
        ("backends.cpu.schedule", "schedule"),
        ("backends.cuda", "schedule"),
        ("backends.cuda.schedule", "schedule"),
    }
)

FENCES: dict[str, tuple[str, ...]] = {
    "torch": (
        "api.py",
        "cli/",
        "dispatch/",
        "hints.py",
        "integrations/",
        "torch_internals/",
        "driver/",
        "cache/fingerprint.py",
        "cache/programs.py",
        "capture/",
        "runtime/",
        "backends/aten/",
        "backends/cpu/runtime/",
        "backends/cuda/",
        "backends/launcher.py",
        "backends/interp/",
        "frontends/",
        "ops/operator_names",
        "ops/indexed",
        "ops/reference",
    ),
    "llvmlite": ("backends/cpu/llvm/",),
    "networkx": ("capture/joint/mincut.py",),
    "triton": ("backends/cuda/triton/",),
}

# Private attributes of torch's tensors, operators, modules, nodes and symbols.
TORCH_ATTRIBUTE_NAMES = """
_schema _op _cdata _version _base _use_count _is_view _call_impl _compiled_call_impl _parameters
_buffers _modules _forward_hooks _forward_pre_hooks _backward_hooks _backward_pre_hooks
_dynamo_source _boxed_call _expr _current_level _impls _is_profiler_enabled _inside_ddp_forward
_run_ddp_forward
"""
TORCH_ATTRIBUTES = frozenset(TORCH_ATTRIBUTE_NAMES.split())
LAZY = frozenset({"llvmlite", "triton"})

STEERED = frozenset({"fusion", "schedule", "passes", "plan", "capture", "backends"})
# What the numbers are that steer nothing. A key is a folder, or a file and a name.
LIMITS: Mapping[str, str] = {
    "backends/cpu/llvm/matmul/pack.py:AVX512_MICROKERNEL_ROWS": "by the registers of AVX-512",
    "backends/cpu/llvm/matmul/pack.py:AMX_MICROPANEL_ROWS": "of AMX",
    "backends/cpu/llvm/matmul/tile_microkernel.py:": "of AMX",
    "backends/cpu/cost/": "costs",
    "backends/cuda/cost/": "costs",
    "backends/cpu/runtime/": "of memory and of times",
    "backends/cuda/load_tiles.py:MAX_PARAMETERS": "of CUDA",
    "backends/cuda/runtime/": "of CUDA, and of times",
    "backends/cpu/llvm/vector_math/": "coefficients and constants of formulas",
    "backends/cpu/llvm/link_image.py:": "the format of ELF files",
    "backends/cpu/llvm/tile_driver.py:": "the words of its tables",
    "backends/cpu/llvm/matmul/gemm_context.py:BIAS_IN_PLACE": "a flag",
    "backends/cpu/llvm/matmul/few_rows.py:REGISTERS": "of AVX-512",
    "backends/cpu/llvm/matmul/masked_vectors.py:LANES": "floats of an AVX-512 register",
    "backends/cpu/llvm/matmul/pack.py:WIDTH": "two registers",
    "backends/cpu/llvm/matmul/microkernel.py:A": "flags",
    "backends/cpu/llvm/random.py:KEY_WORDS": "round keys of Philox",
    "backends/cuda/triton/emit.py:SEED_NUMBERS": "parameters of a seed",
    "backends/cuda/triton/group.py:SHARED_PARAMETERS": "parameters of the error flag",
    "backends/cuda/triton/half_math.py:": "coefficients and constants of formulas",
    "backends/cuda/triton/index_space.py:MAX_INT32_INDEX": "overflow",
    "capture/dynamo/portable_guards.py:VAR": "flags",
    "capture/dynamo/dependencies.py:MAX_SURVEYS": "a bound of a loop that ends before",
    "capture/dynamo/guarded_code.py:MAX_LOGGED_CHANGES": "lines of a log",
    "capture/dynamo/lookups.py:MAX_DESCRIPTIONS": "a bound of memory",
    "capture/dynamo/lookups.py:IMMUTABLE_TYPE_FLAG": "a flag",
    "capture/dynamo/specialize_sizes.py:MAX_": "bounds of programs and of memory",
    "capture/joint/mincut.py:INFINITE": "a capacity",
    "capture/joint/partition.py:MUTATED_ARGUMENT_PRICE": "a capacity that is never cut",
    "capture/lower/rules/pooling.py:MAX_IMAGE_ELEMENTS": "overflow",
    "plan/launch_groups.py:ALIGNED_SIZE": "elements of 1 byte in the widest access",
    "backends/cpu/schedule/loop_placement.py:PHASE_LEVEL": "a level outside all loops",
    "backends/cuda/schedule/tiling_legality.py:MAX_": "of Triton, of CUDA, and of the emitted text",
    "backends/cpu/schedule/scratch.py:PHILOX_KEY_WORDS": "the size of an array",
}

CHECKS: tuple[Check, ...] = (
    import_law,
    third_party_fences,
    no_lazy_imports,
    environment_only_in_config,
    honest_types,
    steering_numbers_in_cost,
    torch_internals_alone,
    sizes,
    opening_sentence,
)
