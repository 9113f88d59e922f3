"""The launches that may use a stack, move local memory, or have a low occupancy, and why."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

MIN_OCCUPANCY = 25  # percent


@dataclass(frozen=True)
class KnownLaunch:
    """What launches whose name matches may have."""

    pattern: str
    reason: str
    stack: int = 0
    local: int = 0
    occupancy: int = MIN_OCCUPANCY
    capability: int | None = None

    def covers(self, launch: str, capability: int) -> bool:
        """Return whether a launch, for a capability, is meant."""
        return self.capability in (None, capability) and fnmatchcase(launch, self.pattern)


SINES = "sines of large arguments are reduced with a table in local memory"
HALF_SINES = "as SINES, in blocks of bfloat16 with an argument beyond 2**20, from both functions"
LONG_ROWS = "a row of a norm or of softmax has more registers than 16 warps hold"
COLUMN_SUMS_OF_LONG_ROWS = (
    "two sums of columns fill half of the registers; as two launches, five tensors are loaded"
)
COLUMN_SUMS = "rows of 64 columns of dropout and gelu's gradient are held in 8 warps"
AT_THE_LIMIT = "ptxas spills a few bytes of a block that fills the registers there are"
ONE_WARP = "a program instance is one warp, whose block takes more registers than for 9.0"
SUMS_OF_PRODUCTS = "the sums of a product's block fill the registers; loads ahead hide latency"
BOTH_NORMS = "16 rows of queries and of keys fill the registers; all their loads are in flight"
A100, B200 = 80, 100

EXCEPTIONS: tuple[KnownLaunch, ...] = (
    KnownLaunch("product*", SUMS_OF_PRODUCTS, occupancy=12),
    KnownLaunch(
        "product_gated/bf16/inference/0", AT_THE_LIMIT, stack=24, local=48, capability=A100
    ),
    KnownLaunch("qk_norm_rope/*/inference/0", BOTH_NORMS, occupancy=18),
    KnownLaunch("complex_activation/f32/inference/0", SINES, stack=32, local=320),
    KnownLaunch("complex_activation/bf16/inference/0", HALF_SINES, stack=32, local=640),
    KnownLaunch("llama_training/f32/forward/1", SINES, stack=32, local=320),
    KnownLaunch("llama_training/f32/backward/6", SINES, stack=32, local=160),
    KnownLaunch("rms_norm_32768/f32/forward/0", LONG_ROWS, stack=80, local=152),
    KnownLaunch("softmax_32768/f32/backward/0", LONG_ROWS, stack=152, local=324),
    KnownLaunch("layer_norm_16384/*/backward/0", COLUMN_SUMS_OF_LONG_ROWS, stack=136, local=348),
    KnownLaunch(
        "layer_norm_16384/f32/backward/0",
        COLUMN_SUMS_OF_LONG_ROWS,
        stack=264,
        local=544,
        capability=A100,
    ),
    KnownLaunch("encoder_1/*/backward/2", COLUMN_SUMS, stack=8, local=8, occupancy=12),
    KnownLaunch("cross_entropy/bf16/inference/1", AT_THE_LIMIT, stack=8, local=16, capability=A100),
    KnownLaunch(
        "cross_entropy_backward/bf16/forward/1", AT_THE_LIMIT, stack=8, local=16, capability=A100
    ),
    KnownLaunch("batch_norm/f32/backward/0", AT_THE_LIMIT, stack=8, local=8, capability=A100),
    KnownLaunch("kl/*/forward/0", ONE_WARP, occupancy=18, capability=A100),
    KnownLaunch("softmax_4096/bf16/backward/0", AT_THE_LIMIT, stack=8, local=8, capability=A100),
    KnownLaunch("rms_norm_16384/f32/backward/0", LONG_ROWS, stack=48, local=88, capability=A100),
    KnownLaunch("rms_norm_32768/f32/forward/0", LONG_ROWS, stack=88, local=176, capability=A100),
    KnownLaunch("encoder_1/bf16/backward/8", COLUMN_SUMS, occupancy=12, capability=A100),
    KnownLaunch("softmax_32768/f32/backward/0", LONG_ROWS, stack=192, local=396, capability=B200),
    KnownLaunch("rms_norm_32768/f32/forward/0", LONG_ROWS, stack=80, local=156, capability=B200),
    KnownLaunch("softmax_65536/bf16/backward/0", AT_THE_LIMIT, stack=8, local=4, capability=B200),
    KnownLaunch(
        "cross_entropy_50257/f32/forward/0", AT_THE_LIMIT, stack=8, local=4, capability=B200
    ),
    KnownLaunch("encoder_1/f32/backward/2", COLUMN_SUMS, stack=8, local=16, capability=B200),
    KnownLaunch("encoder_1/bf16/backward/8", COLUMN_SUMS, stack=8, local=8, capability=B200),
)
