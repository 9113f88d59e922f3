"""What PyTorch's calls cost on a GPU."""

from __future__ import annotations

from tofuse.backends.cuda.cost.gpu_machine import DEFAULT_GPU
from tofuse.cost.machine import DEFAULT_NS, Machine

LIBRARY_PRODUCT_SHARE = 0.7  # of a GPU's rate that products of the library reach: not measured

# The assumed costs of calls on a GPU: one memory level, cheap arithmetic.
CALL_COSTS = Machine(
    name="gpu",
    l2_bytes=0,
    l3_bytes=0,
    core_rate=DEFAULT_GPU.memory_rate,
    memory_rate=DEFAULT_GPU.memory_rate,
    launch_us=4.0,
    call_us=4.0,
    fresh_rate=DEFAULT_GPU.memory_rate,
    flops=64 * DEFAULT_GPU.float_rate * LIBRARY_PRODUCT_SHARE,
    half_flops=DEFAULT_GPU.half_flops * LIBRARY_PRODUCT_SHARE,
    ns={k: v / 250 for k, v in DEFAULT_NS.items()},
)
