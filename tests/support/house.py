"""Checks of the house rules: each takes a file's syntax tree and names what breaks the rule."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

STAGES = frozenset(
    {"capture", "passes", "fusion", "schedule", "backends", "runtime", "report"},
)

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
    def part(self) -> str:
        """The top package or module: `ir` for `ir/types.py`, `api` for `api.py`."""
        return self.path.parts[0].removesuffix(".py")

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
    """Imports inside the package point strictly down, and never from stage to stage."""
    if source.part not in LAYER:
        yield f"{source.path}: {source.part!r} has no layer; give it one in the import law"
        return
    for line, name in imports(source):
        target = name.split(".")
        if target[0] != "tofuse":
            continue
        part = target[1] if len(target) > 1 else "__init__"
        if part == source.part and part != "__init__":
            continue
        if part not in LAYER:
            yield f"{source.path}:{line}: imports {name}, which has no layer"
        elif LAYER[part] >= LAYER[source.part]:
            yield f"{source.path}:{line}: {source.part} may not import {part}"


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


LAYER: dict[str, int] = {
    "config": 0,
    "errors": -1,
    "ir": 1,
    "cost": 2,
    "ops": 2,
    **{stage: 3 for stage in sorted(STAGES)},
    "executors": 3,
    "tuning": 4,
    "building": 4,
    "judge": 4,
    "products": 4,
    "recorded": 4,
    "assembly": 5,
    "programs": 5,
    "contest": 5,
    "pipeline": 6,
    "api": 7,
    "calibration": 7,
    "frontends": 7,
    "nvfuser": 8,
    "bisection": 8,
    "__init__": 9,
}

FENCES: dict[str, tuple[str, ...]] = {
    "torch": (
        "contest.py",
        "api.py",
        "bisection.py",
        "capture/",
        "runtime/",
        "backends/aten/",
        "backends/aten.py",
        "backends/interp/",
        "backends/interp.py",
        "frontends/",
        "ops/reference",
    ),
    "llvmlite": ("backends/llvm/", "backends/llvm.py"),
    "triton": ("backends/triton/", "backends/triton.py"),
}

LAZY = frozenset({"llvmlite", "triton"})

CHECKS: tuple[Check, ...] = (
    import_law,
    third_party_fences,
    no_lazy_imports,
    environment_only_in_config,
    honest_types,
    sizes,
    opening_sentence,
)
