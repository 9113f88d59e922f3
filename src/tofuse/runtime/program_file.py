"""The file of an exported program: a safetensors file whose metadata describes the program.

It holds tensors (weights, constants, machine code as bytes) and one text, the manifest, in JSON:
plans as text, kernels, inputs, results and digests. Reading it executes nothing.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Union

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tofuse.errors import ProgramFileError, first_line
from tofuse.ir.code_image import CodeImage
from tofuse.ir.dims import parse_dim
from tofuse.ir.parse_plan import parse_plan
from tofuse.ir.plan import Plan
from tofuse.ir.runtime_kind import InferenceRuntime, RuntimeKind, TrainingRuntime
from tofuse.runtime.gemm_launch import GemmCode
from tofuse.runtime.launch import KernelCode

FORMAT = 1
MANIFEST, DIGEST = "tofuse", "tofuse_sha256"  # names in the metadata
Json = Union[None, bool, int, float, str, Sequence["Json"], Mapping[str, "Json"]]  # noqa: UP007  (run time)
Constant = Union[None, bool, int, float, str]  # noqa: UP007


@dataclass(frozen=True)
class TensorInput:
    """A tensor argument; `shape` has a number or the name of a symbol for each size."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    requires_grad: bool


@dataclass(frozen=True)
class ConstantInput:
    """An argument that must have this value."""

    name: str
    value: Constant


@dataclass(frozen=True)
class StateTensor:
    """A parameter or buffer of the module; tied ones have the same `key` among the tensors.

    `used`: the program takes the tensor as an argument.
    """

    name: str
    key: str
    strides: tuple[int, ...]
    is_parameter: bool
    requires_grad: bool
    persistent: bool
    used: bool


@dataclass(frozen=True)
class ResultIndex:
    """A result of the program, by its position among the results of the graph."""

    index: int


@dataclass(frozen=True)
class ExportedGraph:
    """A compiled graph: its plan, its kernels, and the keys of its constants' tensors."""

    plan: Plan
    kernels: tuple[KernelCode | GemmCode, ...]
    constants: tuple[str, ...]


@dataclass(frozen=True)
class ExportedCode:
    """The forward, and the backward if there is one, with machine code for one processor."""

    graphs: tuple[ExportedGraph, ...]
    image: CodeImage


@dataclass(frozen=True)
class ProgramFile:
    """An exported program.

    `input_tree` and `output_tree` are the structures of arguments and results, as text, and
    `keywords` the names of the arguments that were given by name, in this order. `sizes` are
    the least and the largest value of each symbol, None for no limit. `driver` is the digest of the
    code that runs launch groups. `torch` is the release that exported the program.
    """

    name: str
    torch: str
    input_tree: str
    keywords: tuple[str, ...]
    output_tree: str
    inputs: tuple[TensorInput | ConstantInput, ...]
    state: tuple[StateTensor, ...]
    results: tuple[ResultIndex | Constant, ...]
    sizes: Mapping[str, tuple[int, int | None]]
    kind: RuntimeKind
    driver: str
    code: Mapping[str, ExportedCode]  # by the processor's name


def save_program(path: Path, program: ProgramFile, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a program and its tensors; the file replaces another one at once.

    Raises OSError if it cannot be written.
    """
    stored = {key: t.detach().cpu().contiguous().clone() for key, t in tensors.items()}
    for processor, code in program.code.items():
        stored[_code_key(processor)] = torch.frombuffer(
            bytearray(code.image.code) or bytearray(1), dtype=torch.uint8
        )
    manifest = manifest_of(program)
    manifest["sha256"] = {key: _digest(t) for key, t in stored.items()}
    text = json.dumps(manifest)
    metadata = {MANIFEST: text, DIGEST: hashlib.sha256(text.encode()).hexdigest()}
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{path.name}.") as folder:
        temporary = Path(folder, path.name)
        save_file(stored, temporary, metadata)
        temporary.replace(path)


def read_program(path: Path) -> tuple[ProgramFile, dict[str, torch.Tensor]]:
    """Return a program and its tensors.

    Raises ProgramFileError if the file is no exported program, is of another format, or damaged;
    OSError if it cannot be read.
    """
    path.stat()  # raises FileNotFoundError, with the name
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            text = metadata.get(MANIFEST)
            if text is None:
                raise ProgramFileError(f"{path} is not a program exported by tofuse")
            if hashlib.sha256(text.encode()).hexdigest() != metadata.get(DIGEST):
                raise ProgramFileError(f"{path} is damaged: its description changed")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ProgramFileError(f"{path} is not a program exported by tofuse: {error}") from error
    try:
        manifest = json.loads(text)
        if manifest["format"] != FORMAT:
            raise ProgramFileError(
                f"{path} has format {manifest['format']}, and this tofuse reads format {FORMAT}; "
                "export the program again"
            )
        for key in {*tensors, *manifest["sha256"]}:
            if key not in tensors or _digest(tensors[key]) != manifest["sha256"].get(key):
                raise ProgramFileError(f"{path} is damaged: the content of {key!r} changed")
        return _from_json(manifest, tensors), tensors
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ProgramFileError(f"{path} is of another tofuse: {first_line(error)}") from error


def _code_key(processor: str) -> str:
    return f"tofuse.code.{processor}"


def _digest(tensor: torch.Tensor) -> str:
    """Return the SHA-256 of a tensor's bytes."""
    flat = tensor.reshape(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0)
    return hashlib.sha256(flat.numpy().data).hexdigest()


def manifest_of(program: ProgramFile) -> dict[str, Json]:
    """Return the description of a program as JSON, without digests."""
    code: dict[str, Json] = {
        name: {
            "graphs": [_graph_json(g) for g in found.graphs],
            "entries": dict(found.image.entries),
            "slots": dict(found.image.slots),
            "bytes": len(found.image.code),
        }
        for name, found in program.code.items()
    }
    results: list[Json] = [
        {"index": r.index} if isinstance(r, ResultIndex) else {"value": r} for r in program.results
    ]
    return {
        "format": FORMAT,
        **{name: getattr(program, name) for name in PLAIN_FIELDS},
        "keywords": list(program.keywords),
        "inputs": [asdict(x) for x in program.inputs],
        "state": [asdict(x) for x in program.state],
        "results": results,
        "kind": {"name": type(program.kind).__name__, **asdict(program.kind)},
        "code": code,
    }


def _graph_json(graph: ExportedGraph) -> Json:
    kernels = [_kernel_json(k) for k in graph.kernels]
    return {"plan": repr(graph.plan), "kernels": kernels, "constants": list(graph.constants)}


def _kernel_json(kernel: KernelCode | GemmCode) -> dict[str, Json]:
    values = {f.name: getattr(kernel, f.name) for f in fields(kernel)}
    if isinstance(kernel, GemmCode):
        sizes = {name: str(d) for name, d in kernel.sizes.items()}
        return {**values, "sizes": sizes, "offsets": [str(d) for d in kernel.offsets]}
    return {
        **values,
        "workspace_bytes": str(kernel.workspace_bytes),
        "elements": str(kernel.elements),
    }


def _from_json(manifest: Mapping, tensors: Mapping[str, torch.Tensor]) -> ProgramFile:  # type: ignore[type-arg]  # JSON
    """Return the program of a manifest."""
    inputs = [
        TensorInput(**{**x, "shape": tuple(x["shape"])}) if "dtype" in x else ConstantInput(**x)
        for x in manifest["inputs"]
    ]
    code = {}
    for name, found in manifest["code"].items():
        content = tensors[_code_key(name)].numpy().tobytes()[: found["bytes"]]
        image = CodeImage(content, found["entries"], found["slots"])
        code[name] = ExportedCode(tuple(map(_graph_from_json, found["graphs"])), image)
    return ProgramFile(
        **{name: manifest[name] for name in PLAIN_FIELDS if name != "sizes"},
        sizes={symbol: tuple(limits) for symbol, limits in manifest["sizes"].items()},
        inputs=tuple(inputs),
        keywords=tuple(manifest["keywords"]),
        state=tuple(
            StateTensor(**{**x, "strides": tuple(x["strides"])}) for x in manifest["state"]
        ),
        results=tuple(
            ResultIndex(r["index"]) if "index" in r else r["value"] for r in manifest["results"]
        ),
        kind=_kind_from_json(manifest["kind"]),
        code=code,
    )


def _kind_from_json(found: Mapping) -> RuntimeKind:  # type: ignore[type-arg]  # JSON
    kind = InferenceRuntime if found["name"] == InferenceRuntime.__name__ else TrainingRuntime
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items() if k != "name"}
    return kind(**values)  # type: ignore[arg-type]  # JSON


def _graph_from_json(found: Mapping) -> ExportedGraph:  # type: ignore[type-arg]  # JSON
    kernels = map(_kernel_from_json, found["kernels"])
    return ExportedGraph(parse_plan(found["plan"]), tuple(kernels), tuple(found["constants"]))


def _kernel_from_json(found: Mapping) -> KernelCode | GemmCode:  # type: ignore[type-arg]  # JSON
    if "driver" in found:
        return GemmCode(
            found["driver"],
            {word: (key, name) for word, (key, name) in found["functions"].items()},
            tuple(found["word_names"]),
            {name: parse_dim(text) for name, text in found["sizes"].items()},
            tuple(map(parse_dim, found["offsets"])),
        )
    return KernelCode(
        **{
            **found,
            "parts": tuple((name, parallel) for name, parallel in found["parts"]),
            "symbols": tuple(found["symbols"]),
            "workspace_bytes": parse_dim(found["workspace_bytes"]),
            "elements": parse_dim(found["elements"]),
        }
    )


PLAIN_FIELDS = ("name", "torch", "input_tree", "output_tree", "sizes", "driver")
