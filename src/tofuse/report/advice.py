"""Explanations of the verdict rules, with advice for the user."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tofuse.ir.region import Verdict


@dataclass(frozen=True)
class Advice:
    """A rule's heading, its meaning, and what the user can do (`todo`, empty if nothing)."""

    title: str
    meaning: str
    todo: str = ""


def advice_for(verdict: Verdict) -> Advice:
    """Return the advice for the verdict's rule; for an unknown rule, the rule itself."""
    for pattern, advice in FUSED if verdict.fused else NOT_FUSED:
        if re.search(pattern, verdict.rule):
            return advice
    return Advice(
        verdict.rule, "The value is stored in memory and read back: " + verdict.rule + "."
    )


@dataclass(frozen=True)
class VerdictGroup:
    """Verdicts against fusion with the same advice."""

    advice: Advice
    verdicts: tuple[Verdict, ...]


def group_by_advice(verdicts: tuple[Verdict, ...]) -> tuple[VerdictGroup, ...]:
    """Group the verdicts against fusion by their advice, the largest group first."""
    groups: dict[Advice, list[Verdict]] = {}
    for v in verdicts:
        if not v.fused:
            groups.setdefault(advice_for(v), []).append(v)
    verdict_groups = [VerdictGroup(a, tuple(vs)) for a, vs in groups.items()]
    return tuple(sorted(verdict_groups, key=lambda g: -len(g.verdicts)))


FUSED: tuple[tuple[str, Advice], ...] = (
    (
        "^elementwise",
        Advice(
            "Same loops",
            "Both ops visit the same elements in the same order. The value between them stays in "
            "a register.",
        ),
    ),
    (
        "^reduction",
        Advice(
            "Reduced in the producer's loop",
            "The reduction runs in the loop that computes its operand: each element is "
            "accumulated as soon as it is computed.",
        ),
    ),
    (
        "^index computed",
        Advice("Index fused with its gather", "One kernel computes the index and gathers with it."),
    ),
    (
        "^operands of a cat",
        Advice(
            "Concat read in place",
            "The kernel reads each element of the concat from the operand that holds it, or "
            "computes it there.",
        ),
    ),
)

NOT_FUSED: tuple[tuple[str, Advice], ...] = (
    (
        "^not batched",
        Advice(
            "Branches that nearly match",
            "Branches with the same ops run as one batched kernel. Here one branch differs, so the "
            "branches that differ run separately. The verdict names the branch, counted from 0, "
            "and the difference.",
            "Give all branches the same ops and slices of one size, or leave them as they are: the "
            "results are right either way.",
        ),
    ),
    (
        "^written directly",
        Advice(
            "Written into the concat",
            "The operand is written directly into its slice of the concat. It needs no memory of "
            "its own, and nothing copies it.",
        ),
    ),
    (
        "library call",
        Advice(
            "One side is a library call",
            "One of the two ops, such as a matrix product or a convolution, runs by itself: as a "
            "call of PyTorch's library, or as a generated kernel of the same form. It reads and "
            "writes whole tensors in memory, so the value between the two ops is stored.",
            "Usually nothing: for these ops, blocks that fit the caches matter more than fusion. "
            "Several products with the same operand can become one product with concatenated "
            "weights, which saves calls.",
        ),
    ),
    (
        "a value in between is computed elsewhere",
        Advice(
            "An op between them runs elsewhere",
            "The second op also needs a value that another kernel or a library call computes from "
            "the first op's result. A fused kernel would have to stop halfway, wait for that "
            "value, and continue.",
            "Check whether the op in between can run before the first op or after the second. "
            "Otherwise the tensor is stored once and read once, as without fusion.",
        ),
    ),
    (
        "iteration spaces differ",
        Advice(
            "The loops differ",
            "The two ops iterate over different dimensions, and no single loop nest runs both "
            "without repeating work: a value that is complete only after a loop over one dimension "
            "is needed inside a loop over another.",
            "Reduce over the same dimensions on both sides if the mathematics allows it, or give "
            "the operands the same layout first.",
        ),
    ),
    (
        "do not divide each other|sizes differ|reshape of a sliced|slice of merged|that strides",
        Advice(
            "A reshape or slice cannot be aligned",
            "A reshape between the two ops regroups dimensions so that the loops of one side "
            "cannot be built from those of the other; for example, 6 x 4 read as 8 x 3. The "
            "consumer would need elements of several iterations at once.",
            "Reshape by splitting or merging whole dimensions (6 x 4 to 24, or to 2 x 3 x 4), and "
            "do elementwise work on the same side of the reshape as the op that feeds it.",
        ),
    ),
    (
        "along its diagonal",
        Advice(
            "A value and its transpose meet",
            "A fused kernel would compute a value and read it at both (i, j) and (j, i), but the "
            "element at (j, i) is not computed yet.",
            "Usually nothing. A tensor known to be symmetric needs no transpose.",
        ),
    ),
    (
        "^read in overlapping windows",
        Advice(
            "Overlapping windows read it",
            "A convolution, pooling or stencil reads each element in several windows. A fused "
            "kernel would compute the element anew for each window, which takes longer here than "
            "storing it once and reading it back.",
        ),
    ),
    (
        "operand of the|of many operands|would compute all operands|^(cat|pad) of a value",
        Advice(
            "A concat or pad runs in another kernel",
            "A concat or pad takes neighbouring elements from different operands. A kernel that "
            "computes the operands iterates over each of them; a kernel that reads the result "
            "iterates over all of it. Operands in memory are read in place; operands that are "
            "computed are stored first.",
            "If all operands get the same ops, concatenate first and apply the ops once to the "
            "result: they then fuse with its consumers.",
        ),
    ),
    (
        "from a value computed in the same kernel",
        Advice(
            "It reads elements out of order",
            "A gather reads other elements than the one the loop is at, so another kernel has to "
            "store them first.",
            "Gather first, then compute: an elementwise op gives the same result after the gather, "
            "and fuses there.",
        ),
    ),
    (
        "slice of a reduction",
        Advice(
            "A slice of a reduction's result",
            "Only a slice of the reduction's result is used; the other elements belong to other "
            "iterations.",
            "Slice before reducing.",
        ),
    ),
    (
        "deep chain of slices",
        Advice(
            "A chain of slices",
            "Each slice of a computed value recomputes it at shifted indices; a chain of slices "
            "would do so many times.",
            "Slice once, with the sum of the offsets.",
        ),
    ),
    (
        "at most \\d+ ops|at most \\d+ buffers",
        Advice(
            "The kernel is full",
            "A kernel with more ops or tensors would keep too many values live for the registers "
            "and take long to compile.",
            "Nothing: the split costs one tensor written and read.",
        ),
    ),
    (
        "another device|different devices|for this device|is on the CPU",
        Advice(
            "On another device",
            "The two ops run on different devices, or on a device without generated kernels.",
            "Move the tensors before the call, so that the whole program runs on one device.",
        ),
    ),
    (
        "would recompute",
        Advice(
            "Fusion would repeat work",
            "A fused kernel would recompute a value in every iteration of a loop that the value "
            "does not depend on. This is predicted to cost more than storing the value.",
        ),
    ),
    (
        "more memory than",
        Advice(
            "Fusion would hold more memory",
            "One kernel keeps all its inputs and results live at once; two kernels release the "
            "first tensors before they need the others.",
        ),
    ),
    (
        "no_fuse",
        Advice(
            "Kept separate by `no_fuse`",
            "One of the two ops is inside a `no_fuse` block.",
            "Remove the block to let them fuse.",
        ),
    ),
    (
        "no fuel",
        Advice(
            "The fuel is spent",
            "The option `fuel` limits the number of fusions, and earlier fusions have used all of "
            "it.",
            "Raise `fuel`, or leave it out.",
        ),
    ),
    (
        "with other ops first",
        Advice(
            "Each merged with other ops",
            "Both ops were merged with other neighbours first, where this saved more memory "
            "traffic, and the two resulting kernels could not be merged.",
        ),
    ),
    (
        "only PyTorch runs|loop nest|no loop runs|threads|seed computed|launches, one|groups of|"
        "several axes of dynamic size|both parallel|loop is parallel",
        Advice(
            "No kernel can be generated",
            "One of the two ops uses an operator or an access pattern that the code generator has "
            "no loops for.",
        ),
    ),
)
