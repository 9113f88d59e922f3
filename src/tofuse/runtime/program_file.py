"""The file of an exported program: a safetensors file whose metadata describe the program.

It holds tensors (weights, constants, machine code as bytes) and one text, the manifest, in JSON:
plans as text, kernels, inputs, results and digests. Reading it executes nothing.
"""

from __future__ import annotations

import functools
import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Union

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tofuse.backends.cpu.runtime.gemm_launch import GemmCode
from tofuse.backends.cpu.runtime.launch import KernelCode
from tofuse.errors import ProgramFileError, first_line
from tofuse.ir.code_image import CodeImage
from tofuse.ir.dims import SymDim
from tofuse.ir.line_reader import END, LineReader
from tofuse.ir.parse_plan import parse_plan
from tofuse.ir.plan import Plan
from tofuse.ir.runtime_kind import RuntimeKind
from tofuse.runtime.typed_json import Json, TextForm, TextForms, from_json, to_json

FORMAT = 2
MANIFEST, DIGEST = "tofuse", "tofuse_sha256"  # names in the metadata
CODE_PREFIX = (
    "tofuse.code."  # before the digest of machine code, the key of its bytes among the tensors
)
Sizes = Mapping[str, tuple[int, Union[int, None]]]  # noqa: UP007
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

    `of_size_one` are the programs of calls in which some sizes are 1, the most first. Of their
    inputs, only shapes differ.
    """

    name: str
    torch: str
    input_tree: str
    keywords: tuple[str, ...]
    output_tree: str
    inputs: tuple[TensorInput | ConstantInput, ...]
    state: tuple[StateTensor, ...]
    results: tuple[ResultIndex | Constant, ...]
    sizes: Sizes
    kind: RuntimeKind
    driver: str
    code: Mapping[str, ExportedCode]  # by the processor's name
    of_size_one: tuple[ProgramFile, ...] = ()

    @property
    def used(self) -> tuple[StateTensor, ...]:
        """The state that the program takes as its first arguments."""
        return tuple(x for x in self.state if x.used)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the file: its type, and the digest of its bytes."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True)
class _Manifest:
    """What the metadata say: the program, and the tensors by key."""

    format: int
    program: ProgramFile
    tensors: Mapping[str, StoredTensor]


def save_program(path: Path, program: ProgramFile, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a program and its tensors; the file replaces another one at once.

    Raises OSError if it cannot be written.
    """
    stored = {key: t.detach().cpu().contiguous().clone() for key, t in tensors.items()}
    text, codes = program_text(program, stored)
    stored |= {key: code_tensor(content) for key, content in codes.items()}
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
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ProgramFileError(f"{path} is not a program exported by tofuse: {error}") from error
    text = metadata.get(MANIFEST)
    if text is None:
        raise ProgramFileError(f"{path} is not a program exported by tofuse")
    if hashlib.sha256(text.encode()).hexdigest() != metadata.get(DIGEST):
        raise ProgramFileError(f"{path} is damaged: its description changed")
    try:
        return program_of_text(text, tensors), tensors
    except ProgramFileError as error:
        raise ProgramFileError(f"{path} {error}") from error


def program_text(
    program: ProgramFile, tensors: Mapping[str, torch.Tensor]
) -> tuple[str, dict[str, bytes]]:
    """Return the description of a program as text, and its machine code by key."""
    stored = {key: _stored(t) for key, t in tensors.items()}
    code: dict[str, bytes] = {}
    signed = _signed(program, stored, code)
    stored |= {key: _stored(code_tensor(content)) for key, content in code.items()}
    return json.dumps(to_json(_Manifest(FORMAT, signed, stored), TEXT_FORMS)), code


def _signed(
    program: ProgramFile, tensors: Mapping[str, StoredTensor], code: dict[str, bytes]
) -> ProgramFile:
    """Return the program with signatures at the end of its machine code, which `code` receives."""
    described, signed = program_json(program), {}
    for name, c in program.code.items():
        content = c.image.code + _signature(described, name, tensors)
        signed[name] = replace(c, image=replace(c.image, code=content))
        code[_code_key(content)] = content
    others = tuple(_signed(p, tensors, code) for p in program.of_size_one)
    return replace(program, code=signed, of_size_one=others)


def code_tensor(content: bytes) -> torch.Tensor:
    """Return machine code as a tensor of the file."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def program_of_text(text: str, tensors: Mapping[str, torch.Tensor]) -> ProgramFile:
    """Return the program of `program_text`; raise ProgramFileError if something does not fit."""

    def read_code(key: str) -> bytes:
        return tensors[key].numpy().tobytes()

    plans = TextForm(repr, functools.cache(parse_plan))  # most are the same for all processors
    forms = {**TEXT_FORMS, Plan: plans, bytes: TextForm(_code_key, read_code)}
    try:
        parsed = json.loads(text)
        found = parsed.get("format") if isinstance(parsed, dict) else None
        if found != FORMAT:
            raise ProgramFileError(
                f"has format {found}, and this tofuse reads {FORMAT}; export the program again"
            )
        manifest = from_json(_Manifest, parsed, forms)
    except (ValueError, RecursionError) as error:
        raise ProgramFileError(f"has a wrong description: {first_line(error)}") from error
    for key in {*tensors, *manifest.tensors}:
        if key not in tensors or _stored(tensors[key]) != manifest.tensors.get(key):
            raise ProgramFileError(f"is damaged: the content of {key!r} changed")
    return _checked(manifest.program, parsed["program"], manifest.tensors)


def _checked(
    program: ProgramFile, described: Mapping[str, Json], tensors: Mapping[str, StoredTensor]
) -> ProgramFile:
    """Return the program without signatures; raise ProgramFileError if one is another's."""
    code = {}
    for name, c in program.code.items():
        content, signature = c.image.code[:-SIGNATURE_BYTES], c.image.code[-SIGNATURE_BYTES:]
        if _signature(described, name, tensors) != signature:
            raise ProgramFileError(f"describes another program than its {name} code is of")
        code[name] = replace(c, image=replace(c.image, code=content))
    pairs = zip(program.of_size_one, described["of_size_one"], strict=True)  # type: ignore[arg-type]
    others = tuple(_checked(p, d, tensors) for p, d in pairs)  # type: ignore[arg-type]  # JSON
    return replace(program, code=code, of_size_one=others)


def program_json(program: ProgramFile) -> Json:
    """Return the description of a program as JSON, without tensors."""
    return to_json(program, TEXT_FORMS)


def _signature(described: Json, processor: str, tensors: Mapping[str, StoredTensor]) -> bytes:
    """Return the digest of all that machine code relies on, which its bytes end with.

    As the mangled names of a linker, it ties code to the types that it was compiled for: nothing
    else says how many bytes a kernel reads of an argument.
    """
    assert isinstance(described, dict)
    code = described["code"][processor]
    bare = {**code, "image": {**code["image"], "code": ""}}  # whose key contains this digest
    types = {k: [t.dtype, *t.shape] for k, t in tensors.items() if not k.startswith(CODE_PREFIX)}
    others = {"name": "", "torch": "", "of_size_one": []}
    parts = [{**described, **others, "code": bare}, processor, types]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).digest()


def _code_key(code: bytes) -> str:
    return f"{CODE_PREFIX}{hashlib.sha256(code).hexdigest()}"


def _stored(tensor: torch.Tensor) -> StoredTensor:
    """Return the type of a tensor, and the digest of its bytes."""
    flat = tensor.reshape(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0)
    digest = hashlib.sha256(flat.numpy().data).hexdigest()
    return StoredTensor(str(tensor.dtype), tuple(tensor.shape), digest)


def _read_dim(text: str) -> object:
    line = LineReader(1, text)
    size = line.dim()
    line.expect(END)
    return size


def _unreadable(text: str) -> object:
    raise ValueError("machine code stands among the tensors")


SIGNATURE_BYTES = hashlib.sha256().digest_size
TEXT_FORMS: TextForms = {
    Plan: TextForm(repr, parse_plan),
    SymDim: TextForm(repr, _read_dim),
    bytes: TextForm(_code_key, _unreadable),
}
