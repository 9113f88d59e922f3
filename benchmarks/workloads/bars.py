"""The bars: how many times faster than each peer a workload must run, and at what bandwidth."""

from dataclasses import dataclass

from benchmarks.workloads.base import Workload


@dataclass(frozen=True)
class Bar:
    """The least ratio of each peer's time over ours, and the least share of copy bandwidth."""

    inductor: float | None = None
    inductor_warm: float | None = None
    eager: float | None = None
    share: float | None = None


def bar_of(workload: Workload) -> Bar:
    """The workload's own bar, or that of its kind."""
    if workload.name in BARS:
        return BARS[workload.name]
    if workload.group == "models":
        return INFERENCE if workload.name.endswith("_inference") else TRAINING
    return AS_FAST


AS_FAST = Bar(1.0, 1.0, 1.0)
TRAINING = Bar(inductor=1.3, eager=1.0)
INFERENCE = Bar(inductor=1.1, eager=1.0)

BARS = {
    "norm_composite": Bar(15, 10, share=0.40),
    "norm_primitive": Bar(15, 10, share=0.40),
    "norm_rms": Bar(15, 10, share=0.40),
    "norm_composite_keep_all": Bar(7, 2, share=0.70),
    "complex_activation": Bar(6, 1.3, share=0.80),
    "combined": Bar(6, 6),
    "split_stack": Bar(6, 6),
    "gelu_bookends": Bar(6, 1.3, share=0.80),
    "gelu_bookends_kept": Bar(6, 1.3, share=0.80),
    "heads_to_rows": Bar(1.5, 1.2, share=0.60),
    "softmax": Bar(6, 1.5, share=0.70),
    "softmax_backward": Bar(6, 1.5, share=0.70),
    "cross_entropy": Bar(3, 2, share=0.60),
    "cross_entropy_backward": Bar(3, 2, share=0.60),
    "adamw": Bar(2, 1.2, share=0.60),
}
