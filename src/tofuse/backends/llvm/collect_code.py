"""Compile kernels for a processor, to be linked into one image instead of into this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tofuse.backends.llvm.link_image import link_image
from tofuse.backends.llvm.load import LoadedText
from tofuse.backends.llvm.machine_code import ObjectCode, compile_objects, digest
from tofuse.backends.llvm.processor import Processor
from tofuse.disk_store import Store
from tofuse.errors import CompileError
from tofuse.ir.code_image import CodeImage
from tofuse.ir.machine_function import Entry, c_function


@dataclass(eq=False)
class CollectedCode:
    """The object files of kernels for a processor, by the digest of their text.

    It has the methods of `LinkedCode`, but its functions cannot be called.
    """

    processor: Processor
    objects: dict[str, bytes] = field(default_factory=dict)

    def compile(self, texts: Sequence[str], store: Store | None, threads: int) -> None:
        """Compile modules, on several threads."""
        new = {key: text for text in texts if (key := digest(text)) not in self.objects}
        codes = compile_objects(list(new.values()), self.processor.machine, threads)
        for key, code in zip(new, codes, strict=True):
            if isinstance(code, ObjectCode):
                self.objects[key] = code.image

    def load(self, text: str, names: Sequence[str], store: Store | None = None) -> list[Entry]:
        """Compile a module; return stand-ins for its functions; raise CompileError."""
        return self.load_text(text, names, store).functions

    def load_text(self, text: str, names: Sequence[str], store: Store | None) -> LoadedText:
        """Compile a module; return its digest, and stand-ins for functions; raise CompileError."""
        key = digest(text)
        if key not in self.objects:
            (code,) = compile_objects([text], self.processor.machine, threads=1)
            if isinstance(code, CompileError):
                raise code
            self.objects[key] = code.image
        return LoadedText(key, [_NOT_LINKED] * len(names))

    def load_by_digest(self, key: str, names: Sequence[str], store: Store) -> list[Entry]:
        """Return stand-ins for the functions of a module."""
        return [_NOT_LINKED] * len(names)

    def image(self) -> CodeImage:
        """Return all machine code; its entries are `<digest>.<function>`."""
        return link_image(self.objects)


def _raise(context: object) -> int:
    raise CompileError("the machine code of an exported kernel is not in this process")


_NOT_LINKED = c_function(_raise)
