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
SPARSE_REGISTERS = (
    "ptxas takes 32 registers of the 128 there are; `maxnreg` leaves 384 bytes of stack"
)
COLUMN_SUMS = "rows of 64 columns of dropout and gelu's gradient are held in 8 warps"

EXCEPTIONS: tuple[KnownLaunch, ...] = (
    KnownLaunch("complex_activation/f32/inference/0", SINES, stack=32, local=320),
    KnownLaunch("complex_activation/bf16/inference/0", HALF_SINES, stack=32, local=640),
    KnownLaunch("llama_training/f32/forward/1", SINES, stack=32, local=320),
    KnownLaunch("llama_training/f32/backward/6", SINES, stack=32, local=160),
    KnownLaunch("rms_norm_16384/*/backward/0", LONG_ROWS, stack=104, local=200),
    KnownLaunch("rms_norm_32768/f32/forward/0", LONG_ROWS, stack=80, local=152),
    KnownLaunch("rms_norm_32768/f32/backward/1", LONG_ROWS, stack=200, local=504),
    KnownLaunch("softmax_32768/f32/backward/0", LONG_ROWS, stack=152, local=324),
    KnownLaunch("layer_norm_16384/*/backward/0", LONG_ROWS, stack=256, local=624),
    KnownLaunch("layer_norm_32768/f32/forward/0", SPARSE_REGISTERS, stack=1624, local=4004),
    KnownLaunch("layer_norm_32768/f32/backward/0", SPARSE_REGISTERS, stack=1360, local=6168),
    KnownLaunch("encoder_1/*/backward/2", COLUMN_SUMS, stack=8, local=8, occupancy=12),
    KnownLaunch("bert_training/f32/backward/0", LONG_ROWS, stack=176, local=376),
    KnownLaunch(
        "resnet_training/f32/backward/8",
        "the gradient of pooling reads nine windows, and sums columns besides",
        stack=1248,
        local=6132,
    ),
)
