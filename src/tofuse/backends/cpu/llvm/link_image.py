"""Link object files into one code image, without a linker.

Sections are laid out one after another. Calls of functions outside of the image go through a stub
that jumps to the address in the function's slot. Sources of the relocations' formulas: the System V
ABI supplement for AMD64, and ELF for the Arm 64-bit architecture.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import Relocation, RelocationSection
from elftools.elf.sections import Section, SymbolTableSection

from tofuse.errors import CompileError
from tofuse.ir.code_image import CodeImage

ALLOCATED = 0x2  # SHF_ALLOC: the section is in memory
SLOT = 8  # bytes of a slot
PAGE = 4096
Patch = Callable[[bytearray, int, int, int], None]  # image, place, symbol's address, addend


def link_image(objects: Mapping[str, bytes]) -> CodeImage:
    """Return the image of object files; the entries are `<key>.<function>` of each.

    Raises CompileError for relocations that no kernel of ours has.
    """
    layout = _Layout()
    for key, image in objects.items():
        layout.add(key, ELFFile(io.BytesIO(image)))
    return layout.linked()


@dataclass(eq=False)
class _Layout:
    """The sections of all objects, and the relocations still to apply."""

    code: bytearray = field(default_factory=bytearray)
    entries: dict[str, int] = field(default_factory=dict)
    imports: dict[str, int] = field(default_factory=dict)  # by name: the offset of the stub
    # (architecture, type, place, symbol's offset or name, addend)
    relocations: list[tuple[str, int, int, int | str, int]] = field(default_factory=list)
    architecture: str = ""

    def add(self, key: str, elf: ELFFile) -> None:
        """Lay out the sections of an object, and record its functions and relocations."""
        self.architecture = elf.get_machine_arch()
        starts = {
            number: self._place(section)
            for number, section in enumerate(elf.iter_sections())
            if section["sh_flags"] & ALLOCATED and not section.name.startswith(".eh_frame")
        }
        symbols = elf.get_section_by_name(".symtab")
        assert isinstance(symbols, SymbolTableSection)
        for symbol in symbols.iter_symbols():
            number = symbol["st_shndx"]
            if symbol["st_info"]["type"] == "STT_FUNC" and number in starts:
                self.entries[f"{key}.{symbol.name}"] = starts[number] + symbol["st_value"]
        for section in elf.iter_sections():
            if isinstance(section, RelocationSection) and section["sh_info"] in starts:
                for relocation in section.iter_relocations():
                    self._record(relocation, starts[section["sh_info"]], symbols, starts)

    def _place(self, section: Section) -> int:
        alignment = max(1, section["sh_addralign"])
        self.code += bytes(-len(self.code) % alignment)
        start = len(self.code)
        is_zeros = section["sh_type"] == "SHT_NOBITS"
        self.code += bytes(section["sh_size"]) if is_zeros else section.data()
        return start

    def _record(
        self,
        relocation: Relocation,
        start: int,
        symbols: SymbolTableSection,
        starts: Mapping[int, int],
    ) -> None:
        symbol = symbols.get_symbol(relocation["r_info_sym"])
        number = symbol["st_shndx"]
        target: int | str = symbol.name
        if number in starts:
            target = starts[number] + symbol["st_value"]
        elif number != "SHN_UNDEF":
            raise CompileError(f"a kernel refers to {number} of its object file")
        place, kind = start + relocation["r_offset"], relocation["r_info_type"]
        self.relocations.append((self.architecture, kind, place, target, relocation["r_addend"]))

    def linked(self) -> CodeImage:
        """Append stubs and slots, and apply all relocations."""
        names = dict.fromkeys(t for _, _, _, t, _ in self.relocations if isinstance(t, str))
        self.code += bytes(-len(self.code) % 16)
        stubs = {name: len(self.code) + 16 * k for k, name in enumerate(names)}
        first = len(self.code) + 16 * len(stubs)
        slots = {name: first + SLOT * k for k, name in enumerate(names)}
        for name, place in stubs.items():
            self.code += _STUBS[self.architecture](place, slots[name]).ljust(16, b"\0")
        self.code += bytes(SLOT * len(slots))
        for architecture, kind, place, target, addend in self.relocations:
            patch = _RELOCATIONS.get((architecture, kind))
            if patch is None:
                raise CompileError(f"a kernel has the unknown relocation {kind} of {architecture}")
            patch(self.code, place, stubs[target] if isinstance(target, str) else target, addend)
        return CodeImage(bytes(self.code), self.entries, slots)


def _relative(code: bytearray, place: int, symbol: int, addend: int) -> None:
    """S + A - P, in 32 bits."""
    struct.pack_into("<i", code, place, symbol + addend - place)


def _page(code: bytearray, place: int, symbol: int, addend: int) -> None:
    """Page(S + A) - Page(P), in the two immediates of `adrp`."""
    pages = ((symbol + addend) // PAGE) - (place // PAGE)
    word = struct.unpack_from("<I", code, place)[0] & 0x9F00001F
    struct.pack_into("<I", code, place, word | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5)


def _low_bits(shift: int) -> Patch:
    """The low 12 bits of S + A, in units of `1 << shift` bytes, in the immediate of a load."""

    def patch(code: bytearray, place: int, symbol: int, addend: int) -> None:
        low = ((symbol + addend) % PAGE) >> shift
        word = struct.unpack_from("<I", code, place)[0] & ~(0xFFF << 10)
        struct.pack_into("<I", code, place, word | low << 10)

    return patch


def _branch(code: bytearray, place: int, symbol: int, addend: int) -> None:
    """S + A - P, in the 26 bits of a branch, in words."""
    words = (symbol + addend - place) // 4
    word = struct.unpack_from("<I", code, place)[0] & ~0x3FFFFFF
    struct.pack_into("<I", code, place, word | words & 0x3FFFFFF)


def _x86_stub(place: int, slot: int) -> bytes:
    """`jmp *slot(%rip)`."""
    return b"\xff\x25" + struct.pack("<i", slot - place - 6)


def _arm_stub(place: int, slot: int) -> bytes:
    """`adrp x16, slot; ldr x16, [x16, :lo12:slot]; br x16`."""
    code = bytearray(struct.pack("<III", 0x90000010, 0xF9400210, 0xD61F0200))
    shifted = bytearray(place) + code  # so that places are those of the image
    _page(shifted, place, slot, 0)
    _low_bits(3)(shifted, place + 4, slot, 0)
    return bytes(shifted[place:])


_STUBS: Mapping[str, Callable[[int, int], bytes]] = {"x64": _x86_stub, "AArch64": _arm_stub}
_RELOCATIONS: Mapping[tuple[str, int], Patch] = {
    ("x64", 2): _relative,  # R_X86_64_PC32
    ("x64", 4): _relative,  # R_X86_64_PLT32
    ("AArch64", 261): _relative,  # R_AARCH64_PREL32
    ("AArch64", 275): _page,  # R_AARCH64_ADR_PREL_PG_HI21
    ("AArch64", 277): _low_bits(0),  # R_AARCH64_ADD_ABS_LO12_NC
    ("AArch64", 278): _low_bits(0),  # R_AARCH64_LDST8_ABS_LO12_NC
    ("AArch64", 284): _low_bits(1),  # R_AARCH64_LDST16_ABS_LO12_NC
    ("AArch64", 285): _low_bits(2),  # R_AARCH64_LDST32_ABS_LO12_NC
    ("AArch64", 286): _low_bits(3),  # R_AARCH64_LDST64_ABS_LO12_NC
    ("AArch64", 299): _low_bits(4),  # R_AARCH64_LDST128_ABS_LO12_NC
    ("AArch64", 282): _branch,  # R_AARCH64_JUMP26
    ("AArch64", 283): _branch,  # R_AARCH64_CALL26
}
