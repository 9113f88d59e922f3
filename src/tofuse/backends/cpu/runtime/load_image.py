"""Map a code image into this process, and return its functions."""

from __future__ import annotations

import ctypes
import mmap
import struct

from tofuse.backends.cpu.runtime.launch import find_openmp, find_vector_library
from tofuse.errors import CompileError
from tofuse.ir.code_image import CodeImage
from tofuse.ir.machine_function import Entry, function_address, machine_function


def load_image(image: CodeImage) -> dict[str, Entry]:
    """Return the functions of an image by name; their memory cannot be written afterwards.

    The image stays mapped as long as one of them lives.

    Raises CompileError if this process lacks a function that the image calls.
    """
    addresses = {name: _external_address(name) for name in image.slots}
    memory = mmap.mmap(-1, max(1, len(image.code)), prot=mmap.PROT_READ | mmap.PROT_WRITE)
    memory.write(image.code)
    for name, slot in image.slots.items():
        struct.pack_into("<Q", memory, slot, addresses[name])
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    if protect(start, len(memory), mmap.PROT_READ | mmap.PROT_EXEC):
        raise CompileError("this system does not let a process execute the code of a file")
    return {n: machine_function(start + offset, memory) for n, offset in image.entries.items()}


def _external_address(name: str) -> int:
    """Return the address of a function of OpenMP, of torch's vector library, or of libc."""
    for library in (find_openmp(), find_vector_library(), ctypes.CDLL(None)):
        function = getattr(library, name, None)
        if function is not None:
            return function_address(function)
    raise CompileError(f"this build of PyTorch has no {name}")
