"""What a process needs to call a kernel, from the kernel. `tofuse.load` does without this."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.backends.cpu.runtime.launch import KernelCode
from tofuse.cost.work import kernel_work
from tofuse.ir.dims import Dim, product
from tofuse.ir.kernel import Gather, Kernel


def kernel_code(
    kernel: Kernel, text_digest: str, parts: Sequence[tuple[str, bool]], workspace_bytes: Dim
) -> KernelCode:
    """Return the data needed to load and call a kernel."""
    return KernelCode(
        kernel.name,
        text_digest,
        tuple(parts),
        len(kernel.buffers),
        tuple(kernel.symbols),
        workspace_bytes,
        product(a.extent for a in kernel.axes),
        kernel_work(kernel),
        any(isinstance(s, Gather) for s in kernel.body),
    )
