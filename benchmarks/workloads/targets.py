"""The targets: how many times faster than each peer a workload must be, and at what bandwidth."""

from dataclasses import dataclass

from benchmarks.workloads.base import Workload


@dataclass(frozen=True)
class SpeedTarget:
    """The minimum ratio of each peer's time to ours, and the minimum share of copy bandwidth."""

    inductor: float | None = None
    inductor_warm: float | None = None
    eager: float | None = None
    bandwidth_share: float | None = None


def target_of(workload: Workload) -> SpeedTarget:
    """Return the workload's own target, or that of its kind."""
    if workload.name in TARGETS:
        return TARGETS[workload.name]
    if workload.group == "models":
        return INFERENCE if workload.name.endswith("_inference") else TRAINING
    return AS_FAST_AS_PEERS


AS_FAST_AS_PEERS = SpeedTarget(1.0, 1.0, 1.0)
TRAINING = SpeedTarget(inductor=1.3, eager=1.0)
INFERENCE = SpeedTarget(inductor=1.1, eager=1.0)

TARGETS = {
    "norm_composite": SpeedTarget(15, 10, bandwidth_share=0.40),
    "norm_primitive": SpeedTarget(15, 10, bandwidth_share=0.40),
    "norm_rms": SpeedTarget(15, 10, bandwidth_share=0.40),
    "norm_composite_keep_all": SpeedTarget(7, 2, bandwidth_share=0.70),
    "complex_activation": SpeedTarget(6, 1.3, bandwidth_share=0.80),
    "combined": SpeedTarget(6, 6),
    "split_stack": SpeedTarget(6, 6),
    "gelu_bookends": SpeedTarget(6, 1.3, bandwidth_share=0.80),
    "gelu_bookends_kept": SpeedTarget(6, 1.3, bandwidth_share=0.80),
    "heads_to_rows": SpeedTarget(1.5, 1.2, bandwidth_share=0.60),
    "softmax": SpeedTarget(6, 1.5, bandwidth_share=0.70),
    "softmax_backward": SpeedTarget(6, 1.5, bandwidth_share=0.70),
    "cross_entropy": SpeedTarget(3, 2, bandwidth_share=0.60),
    "cross_entropy_backward": SpeedTarget(3, 2, bandwidth_share=0.60),
    "adamw": SpeedTarget(2, 1.2, bandwidth_share=0.60),
}
