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
LONG_ROWS = "a row of a norm's or softmax's gradient has more registers than 16 warps hold"
HELD_ROWS = "a row of each operand and the sums of all columns are held in 4 or 8 warps"
COLUMN_SUMS = "512 rows of 16 columns of dropout and gelu's gradient are held in 8 warps"

EXCEPTIONS: tuple[KnownLaunch, ...] = (
    KnownLaunch("complex_activation/*/inference/0", SINES, stack=32, local=320),
    KnownLaunch("llama_training/f32/forward/1", SINES, stack=32, local=320),
    KnownLaunch("llama_training/f32/backward/6", SINES, stack=32, local=160),
    KnownLaunch("rms_norm_16384/*/backward/0", LONG_ROWS, stack=104, local=200),
    KnownLaunch("softmax_32768/f32/backward/0", LONG_ROWS, stack=152, local=324),
    KnownLaunch("layer_norm_16384/bf16/backward/0", LONG_ROWS, stack=808, local=2248),
    KnownLaunch("layer_norm_16384/f32/backward/0", LONG_ROWS, stack=1112, local=4012),
    KnownLaunch("layer_norm_32768/f32/backward/0", LONG_ROWS, stack=2072, local=7336),
    KnownLaunch("layer_norm_*/*/backward/0", HELD_ROWS, occupancy=12),
    KnownLaunch("rms_norm_*/*/backward/0", HELD_ROWS, occupancy=12),
    KnownLaunch("encoder_1/*/backward/2", COLUMN_SUMS, occupancy=12),
    KnownLaunch("bert_training/f32/backward/16", HELD_ROWS, occupancy=18),
    KnownLaunch(
        "resnet_training/f32/backward/8",
        "the gradient of pooling reads nine windows, and sums columns besides",
        stack=1520,
        local=4948,
        occupancy=12,
    ),
)
