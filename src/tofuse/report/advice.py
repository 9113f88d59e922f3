"""Explanations of the verdict rules, with advice for the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tofuse.ir.region import Verdict
from tofuse.ir.rules import Rule


@dataclass(frozen=True)
class Advice:
    """The heading of some rules, their meaning, and what the user can do (`todo`, may be empty)."""

    rules: tuple[Rule, ...]
    title: str
    meaning: str
    todo: str = ""


def group_by_advice(verdicts: tuple[Verdict, ...]) -> list[tuple[Advice, list[Verdict]]]:
    """Return the verdicts against fusion by their advice, the most frequent advice first."""
    groups: dict[Advice, list[Verdict]] = {}
    for v in verdicts:
        if not v.fused:
            groups.setdefault(ADVICE[v.reason.rule], []).append(v)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


_TABLE = (
    Advice(
        (Rule.ELEMENTWISE, Rule.SAME_LOOPS),
        "Same loops",
        "Both ops visit the same elements in the same order. The value between them stays in "
        "a register.",
    ),
    Advice(
        (Rule.REDUCTION,),
        "Reduced in the producer's loop",
        "The reduction runs in the loop that computes its operand: each element is "
        "accumulated as soon as it is computed.",
    ),
    Advice(
        (Rule.GATHER,),
        "Index fused with its gather",
        "One kernel computes the index and gathers with it.",
    ),
    Advice(
        (Rule.CONCAT_OPERANDS,),
        "Concat read in place",
        "The kernel reads each element of the concat from the operand that holds it, or "
        "computes it there.",
    ),
    Advice(
        (Rule.SIBLINGS,),
        "Loaded once",
        "Both ops read the same tensor in the same loops. Each element is loaded once for both.",
    ),
    Advice(
        (Rule.NOT_BATCHED,),
        "Branches that nearly match",
        "Branches with the same ops run as one batched kernel. Here one branch differs, so the "
        "branches that differ run separately. The verdict names the branch, counted from 0, "
        "and the difference.",
        "Give all branches the same ops and slices of one size, or leave them as they are: the "
        "results are right either way.",
    ),
    Advice(
        (Rule.NOT_REROLLED,),
        "A loop that stays unrolled",
        "A loop over time runs as one loop in a kernel if each step computes its states element "
        "by element, from the step before and from evenly moving slices. These steps do not, so "
        "each one has its own code.",
        "Keep matrix products and reductions over the state out of the loop where the program "
        "allows it; read single steps from the stacked results.",
    ),
    Advice(
        (Rule.WRITTEN_INTO_CONCAT,),
        "Written into the concat",
        "The operand is written directly into its slice of the concat. It needs no memory of "
        "its own, and nothing copies it.",
    ),
    Advice(
        (
            Rule.LIBRARY_CALL,
            Rule.SLOWER_PRODUCT,
            Rule.SHARED_WEIGHT,
            Rule.SEPARATE_WEIGHT,
            Rule.SEPARATE_CHAIN,
            Rule.SLOWER_CHAIN,
            Rule.NO_BLOCKS,
            Rule.ORDER_OF_SUMS,
            Rule.EXECUTOR_FIRST,
            Rule.LIBRARY_EPILOGUE,
        ),
        "One side is a library call",
        "One of the two ops, such as a matrix product or a convolution, runs by itself: as a "
        "call of PyTorch's library, or as a generated kernel of the same form. It reads and "
        "writes whole tensors in memory, so the value between the two ops is stored.",
        "Usually nothing: for these ops, blocks that fit the caches matter more than fusion. "
        "Several products with the same operand can become one product with concatenated "
        "weights, which saves calls.",
    ),
    Advice(
        (Rule.COLLECTIVE,),
        "One side is a collective",
        "A collective of torch.distributed reads its operands from memory and writes its results "
        "there, while the program goes on. What reads them is fused behind the wait.",
        "Usually nothing. The table of collectives says what each overlaps.",
    ),
    Advice(
        (Rule.COMPUTED_BETWEEN,),
        "An op between them runs elsewhere",
        "The second op also needs a value that another kernel or a library call computes from "
        "the first op's result. A fused kernel would have to stop halfway, wait for that "
        "value, and continue.",
        "Check whether the op in between can run before the first op or after the second. "
        "Otherwise the tensor is stored once and read once, as without fusion.",
    ),
    Advice(
        (Rule.OTHER_ROWS, Rule.FACTOR_OF_TWO),
        "The rows differ",
        "Products that read one another's results run by blocks of rows. A gradient that sums over "
        "these rows needs blocks of columns: a second kernel computes the products again, instead "
        "of reading them from memory.",
    ),
    Advice(
        (Rule.DIFFERENT_LOOPS,),
        "The loops differ",
        "The two ops iterate over different dimensions, and no single loop nest runs both "
        "without repeating work: a value that is complete only after a loop over one dimension "
        "is needed inside a loop over another.",
        "Reduce over the same dimensions on both sides if the mathematics allows it, or give "
        "the operands the same layout first.",
    ),
    Advice(
        (
            Rule.INDIVISIBLE_EXTENTS,
            Rule.DIFFERENT_SIZES,
            Rule.EMPTY_AXIS,
            Rule.RESHAPE_OF_SLICE,
            Rule.SLICE_OF_MERGED,
            Rule.VIEW_WITHOUT_STRIDES,
        ),
        "A reshape or slice cannot be aligned",
        "A reshape between the two ops regroups dimensions so that the loops of one side "
        "cannot be built from those of the other; for example, 6 x 4 read as 8 x 3. The "
        "consumer would need elements of several iterations at once.",
        "Reshape by splitting or merging whole dimensions (6 x 4 to 24, or to 2 x 3 x 4), and "
        "do elementwise work on the same side of the reshape as the op that feeds it.",
    ),
    Advice(
        (Rule.DIAGONAL,),
        "A value and its transpose meet",
        "A fused kernel would compute a value and read it at both (i, j) and (j, i), but the "
        "element at (j, i) is not computed yet.",
        "Usually nothing. A tensor known to be symmetric needs no transpose.",
    ),
    Advice(
        (Rule.OVERLAPPING_WINDOWS,),
        "Overlapping windows read it",
        "A convolution, pooling or stencil reads each element in several windows. A fused "
        "kernel would compute the element anew for each window, which takes longer here than "
        "storing it once and reading it back.",
    ),
    Advice(
        (Rule.LONG_CONCAT, Rule.CONCAT_COMPUTES_ALL, Rule.OPERAND_LOOPS),
        "A concat or pad runs in another kernel",
        "A concat or pad takes neighbouring elements from different operands. A kernel that "
        "computes the operands iterates over each of them; a kernel that reads the result "
        "iterates over all of it. Operands in memory are read in place; operands that are "
        "computed are stored first.",
        "If all operands get the same ops, concatenate first and apply the ops once to the "
        "result: they then fuse with its consumers.",
    ),
    Advice(
        (Rule.GATHER_FROM_KERNEL,),
        "It reads elements out of order",
        "A gather reads other elements than the one the loop is at, so another kernel has to "
        "store them first.",
        "Gather first, then compute: an elementwise op gives the same result after the gather, "
        "and fuses there.",
    ),
    Advice(
        (Rule.SCATTER_FROM_KERNEL,),
        "It reads the result of a scatter",
        "A scatter (`index_add`, `scatter_reduce`, `x[index] += y`) may combine its last value "
        "with any element, so another kernel reads the result. What computes the values, and "
        "other scatters of the same index, are in the scatter's kernel.",
    ),
    Advice(
        (Rule.SLICE_OF_REDUCTION, Rule.SLICE_OF_SCAN),
        "A slice of a reduction's result",
        "Only a slice of the result of a reduction or cumulative operator is used; the other "
        "elements belong to other iterations.",
        "Slice before reducing.",
    ),
    Advice(
        (Rule.SLICE_CHAIN, Rule.NESTED_CONCAT_SLICES),
        "A chain of slices",
        "Each slice of a computed value recomputes it at shifted indices; a chain of slices "
        "would do so many times.",
        "Slice once, with the sum of the offsets.",
    ),
    Advice(
        (Rule.TOO_MANY_OPS, Rule.TOO_MANY_BUFFERS),
        "The kernel is full",
        "A kernel with more ops or tensors would keep too many values live for the registers "
        "and take long to compile.",
        "Nothing: the split costs one tensor written and read.",
    ),
    Advice(
        (Rule.TOO_MANY_SHAPES,),
        "Read in many shapes",
        "The ops that read the value broadcast it to many different shapes. One kernel would need "
        "loops for each shape, so the value is computed once and stored.",
    ),
    Advice(
        (Rule.SHORT_ROWS,),
        "Rows that are short or strided",
        "The two ops have different loops or layouts. One kernel would run over short or strided "
        "rows, which is predicted to take longer than two kernels over long rows.",
    ),
    Advice(
        (Rule.SLOWER_KERNEL,),
        "Slower as one kernel",
        "One kernel is predicted to take longer than two: it would repeat work, or hold more in "
        "registers than the GPU has for many program instances.",
    ),
    Advice(
        (
            Rule.DIFFERENT_DEVICES,
            Rule.TENSOR_ON_OTHER_DEVICE,
            Rule.TENSOR_ON_CPU,
        ),
        "On another device",
        "The two ops run on different devices.",
        "Move the tensors before the call, so that the whole program runs on one device.",
    ),
    Advice(
        (Rule.RECOMPUTATION,),
        "Fusion would repeat work",
        "A fused kernel would recompute a value in every iteration of a loop that the value "
        "does not depend on. This is predicted to cost more than storing the value.",
    ),
    Advice(
        (Rule.MORE_MEMORY,),
        "Fusion would hold more memory",
        "One kernel keeps all its inputs and results live at once; two kernels release the "
        "first tensors before they need the others.",
    ),
    Advice(
        (Rule.NO_FUSE,),
        "Kept separate by `no_fuse`",
        "One of the two ops is inside a `no_fuse` block.",
        "Remove the block to let them fuse.",
    ),
    Advice(
        (Rule.NO_FUEL,),
        "The fuel is spent",
        "The option `fuel` limits the number of fusions, and earlier fusions have used all of it.",
        "Raise `fuel`, or leave it out.",
    ),
    Advice(
        (Rule.FUSED_WITH_OTHERS,),
        "Each merged with other ops",
        "Both ops were merged with other neighbours first, where this saved more memory "
        "traffic, and the two resulting kernels could not be merged.",
    ),
    Advice(
        (
            Rule.SEED_FROM_KERNEL,
            Rule.NO_LOOP,
            Rule.ONLY_PYTORCH,
            Rule.SPLIT_SCAN,
            Rule.SCAN_LOOP,
            Rule.SCATTER_LOOP,
            Rule.SCAN_DIRECTIONS,
            Rule.UNKNOWN_AXIS,
            Rule.AXIS_LOOPS,
            Rule.PARALLEL_TILES,
            Rule.PARALLEL_VECTOR,
            Rule.TOO_MANY_LAUNCHES,
            Rule.DYNAMIC_REDUCTIONS,
            Rule.LARGE_REDUCTIONS,
            Rule.TOO_MANY_GROUPS,
            Rule.ILLEGAL_TILING,
            Rule.DIFFERENT_PRODUCTS,
            Rule.OTHER_LOOPS_OF_PRODUCT,
        ),
        "No kernel can be generated",
        "One of the two ops uses an operator or an access pattern that the code generator has "
        "no loops for.",
    ),
)
ADVICE: Mapping[Rule, Advice] = {rule: advice for advice in _TABLE for rule in advice.rules}
