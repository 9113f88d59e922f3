"""What a verdict's rule means in a user's words, and what he can do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tofuse.ir.region import Verdict


@dataclass(frozen=True)
class Advice:
    """`title` names the rule for a heading; `todo` is empty where there is nothing to do."""

    title: str
    meaning: str
    todo: str = ""


def advice(verdict: Verdict) -> Advice:
    """What is known of the verdict's rule; the rule by itself where nothing is."""
    for pattern, found in FUSED if verdict.fused else APART:
        if re.search(pattern, verdict.rule):
            return found
    return Advice(verdict.rule, "The value goes through memory: " + verdict.rule + ".")


@dataclass(frozen=True)
class Group:
    """Verdicts against fusing that have one rule."""

    advice: Advice
    verdicts: tuple[Verdict, ...]


def grouped(verdicts: tuple[Verdict, ...]) -> tuple[Group, ...]:
    """The verdicts against fusing by what they mean, the most frequent first."""
    groups: dict[Advice, list[Verdict]] = {}
    for v in verdicts:
        if not v.fused:
            groups.setdefault(advice(v), []).append(v)
    found = [Group(a, tuple(vs)) for a, vs in groups.items()]
    return tuple(sorted(found, key=lambda g: -len(g.verdicts)))


FUSED: tuple[tuple[str, Advice], ...] = (
    (
        "^elementwise",
        Advice(
            "Same loops",
            "Both ops visit the same elements in the same order, so the value between them stays "
            "in a register.",
        ),
    ),
    (
        "^reduction",
        Advice(
            "Reduced where it is made",
            "The reduction runs in the loop that makes its operand: the operand is folded in as "
            "soon as it is computed.",
        ),
    ),
    (
        "^index computed",
        Advice("Gathered in place", "The index is computed in the kernel that gathers with it."),
    ),
    (
        "^pieces read",
        Advice(
            "Joined in place",
            "Each element of the joined tensor is read from the piece it lies in, or computed.",
        ),
    ),
)

APART: tuple[tuple[str, Advice], ...] = (
    (
        "^not batched",
        Advice(
            "Branches that nearly match",
            "Branches that do the same to pieces of a tensor run as one; here one of them "
            "differs, and those that differ run by themselves.",
            "Make the branches the same, with pieces of one size, or let it be: the result is "
            "right either way.",
        ),
    ),
    (
        "^written where",
        Advice(
            "Written in place",
            "A piece of a joined tensor is written where it lies in there: it has no memory of its "
            "own, and nothing copies it.",
        ),
    ),
    (
        "library call",
        Advice(
            "One side is a library call",
            "One of the two is an operator that runs whole, such as a matrix product or a "
            "convolution: PyTorch's library does it, or code of ours that works like one. It reads "
            "and writes whole tensors in memory, so the value between them has to be one.",
            "As a rule nothing: blocks that fit the caches matter more there than fusion. Several "
            "products of one operand can be one product with stacked weights; that saves calls.",
        ),
    ),
    (
        "a value in between is computed elsewhere",
        Advice(
            "Something between them runs elsewhere",
            "The second op also needs a value that another kernel or a library call computes from "
            "the first one's kernel. One kernel would have to stop in the middle, let the other "
            "run, and go on.",
            "See whether what runs in between can move: before the first op, or after the second. "
            "Otherwise the tensor is stored once and read once, as without fusing.",
        ),
    ),
    (
        "iteration spaces differ",
        Advice(
            "The loops differ",
            "The two ops run over different dimensions, and no one nest of loops visits both "
            "without visiting something twice: a value that is complete only after a loop over one "
            "dimension would be needed inside a loop over another.",
            "Reduce over the same dimensions on both sides if the mathematics lets you, or bring "
            "the operands to one layout first.",
        ),
    ),
    (
        "do not divide each other|sizes differ|reshape of a sliced|slice of merged|view that no",
        Advice(
            "A reshape or slice cannot be aligned",
            "A reshape between the two regroups dimensions so that neither side's loops are "
            "made of the other's: for instance 6 x 4 read as 8 x 3. Its reader would need "
            "elements of several iterations at once.",
            "Reshape by splitting or merging whole dimensions (6 x 4 to 24, or to 2 x 3 x 4); do "
            "the elementwise work on the same side of the reshape as the op that feeds it.",
        ),
    ),
    (
        "along its diagonal",
        Advice(
            "A tensor would meet its own transpose",
            "Fused, one kernel would read a value it computes both at (i, j) and at (j, i); the "
            "second is not there yet.",
            "Nothing, as a rule; a tensor known to be symmetric needs no transpose.",
        ),
    ),
    (
        "^read in windows",
        Advice(
            "Windows that overlap read it",
            "A convolution, a pooling or a stencil reads each element at several places of its "
            "windows. In one kernel, each of these reads would compute the element anew, which "
            "here takes longer than to store it once and read it back.",
        ),
    ),
    (
        "piece of the|of many pieces|would compute all pieces|^(cat|pad) of a value",
        Advice(
            "The pieces are joined by another kernel",
            "A cat or a padding takes neighbouring elements from different pieces. A kernel that "
            "computes the pieces runs over the elements of each; one that reads the joined tensor "
            "runs over all of them. Pieces in memory are joined in place, as they are read; "
            "pieces that are computed are stored first.",
            "Where every piece gets the same ops, join first and apply them once to the whole: "
            "they then fuse with what comes after.",
        ),
    ),
    (
        "from a value computed in the same kernel",
        Advice(
            "It reads elements out of order",
            "A gather reads elements of a value other than the one the loop is at; these have to "
            "be stored before, by another kernel.",
            "Gather first and compute then: an elementwise op gives the same after the gather, and "
            "fuses there.",
        ),
    ),
    (
        "slice of a reduction",
        Advice(
            "A part of a reduction's result",
            "Only a part of what a reduction computes is used next; the rest belongs to other "
            "iterations.",
            "Slice before reducing.",
        ),
    ),
    (
        "deep chain of slices",
        Advice(
            "Slices of slices",
            "Each slice of a computed value computes it again at moved indices; a chain of them "
            "would do so many times over.",
            "Slice once, with the sum of the offsets.",
        ),
    ),
    (
        "at most \\d+ ops|at most \\d+ buffers",
        Advice(
            "The kernel is full",
            "A kernel of more ops, or of more tensors, would keep too many values alive for the "
            "registers and take long to compile.",
            "Nothing: the cut costs one tensor written and read.",
        ),
    ),
    (
        "another device|for this device|lies on the CPU",
        Advice(
            "On another device",
            "The two work on different devices, or on one that there are no generated kernels for.",
            "Move the tensor before the program, so that all of it is on one device.",
        ),
    ),
    (
        "work again",
        Advice(
            "Fusing would repeat work",
            "In one kernel, a value would be computed again for every iteration of a loop that it "
            "does not depend on, and that was predicted to cost more than storing it.",
        ),
    ),
    (
        "more memory than",
        Advice(
            "Fusing would hold more memory",
            "One kernel keeps all its inputs and results alive at once; two let the first ones go "
            "before the others come.",
        ),
    ),
    (
        "no_fuse",
        Advice(
            "You keep them apart",
            "One of the two stands in a block of `no_fuse`.",
            "Take the block away to have them fused.",
        ),
    ),
    (
        "no fuel",
        Advice(
            "The fuel is spent",
            "`fuel` bounds how many fusions there may be, and these were before this one.",
        ),
    ),
    (
        "merged elsewhere first",
        Advice(
            "Each went another way",
            "Both were merged with other neighbours before, where more memory traffic was saved, "
            "and the two kernels that came of it could not be joined.",
        ),
    ),
    (
        "only PyTorch runs|loop nest|no loop runs|threads|seed computed|launches, one|groups of|"
        "unknown length",
        Advice(
            "No kernel can be generated",
            "One of the two uses an operator or a pattern of access that the generator has no "
            "loops for.",
        ),
    ),
)
