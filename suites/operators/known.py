"""Known differences of operators from eager, each with its reason.

A difference that torch.compile shows with eager's operators, too, needs no row: the suite sees it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Known:
    """Why the failures of a pattern, in the cases of a pattern, are no faults."""

    case: str
    failure: str
    reason: str


PROMOTION = "eager promotes to float, its own meta kernel does not"
KNOWN_DIFFERENCES = (
    Known("native_dropout_backward/*int*/*", "*result 0: *int* for float32*", PROMOTION),
    Known("native_dropout_backward/bool/*", "*result 0: bool* for float32*", PROMOTION),
    Known(
        "torch.ops.aten._safe_softmax.default/float32/*",
        "*gradient 0: * numbers differ: *",
        "a saturated softmax: the gradient cancels",
    ),
    Known(
        "nn.functional.cosine_*/*/expanded",
        "*gradient [01]: * numbers differ: *",
        "equal vectors: the gradient cancels to 0",
    ),
    Known(
        "nn.functional.linear_cross_entropy/bfloat16/expanded",
        "*gradient 0: * numbers differ: * for 0.0 at *",
        "equal classes: the gradient cancels to 0",
    ),
    Known(
        "*std*/*/expanded",
        "*result 0: * numbers differ: * for 0.0 at *",
        "equal numbers: their deviation is a rounding",
    ),
    Known(
        "masked.var/*/expanded",
        "*result 0: * numbers differ: * for 0.0 at *",
        "equal numbers: their variance is a rounding",
    ),
    Known(
        "svd_lowrank/*/expanded",
        "*gradient [01]: *numbers differ*",
        "equal rows: singular values of 0 have no gradient",
    ),
    Known(
        "logaddexp/complex64/expanded",
        "*gradient 0: 1 of 500 numbers differ: *",
        "complex exponentials cancel: nine units in the last place",
    ),
    Known(
        "as_strided_scatter/*/expanded",
        "*result 0: strides (0,* for *",
        "eager reads uninitialized memory",
    ),
    Known(
        "einsum/bfloat16/expanded",
        "*'ij,Ab->ijAb'): result 0: strides *",
        "torch predicts another order of a product of expanded matrices",
    ),
    Known(
        "nn.functional.hardsigmoid/float64/*",
        "*gradient 0: * numbers differ: *",
        "eager's sixth is rounded to float32",
    ),
    Known(
        "nn.functional.normalize/*/*",
        "*gradient 0: 1 of 1 numbers differ: *",
        "one number: the gradient cancels to 0",
    ),
    Known(
        "optimizer/*/float64/*",
        "*result 0: * numbers differ: *",
        "torch.compile computes powers of a decay rate in float32, as with eager's operators",
    ),
    Known(
        "module/nn.KLDivLoss/float32/train",
        "*gradient 1: 1 of 100 numbers differ: *",
        "a logarithm and the input cancel",
    ),
    Known(
        "module/nn.Transformer*/float32/train",
        "*gradient [12]: * of 48 numbers differ: *",
        "ill-conditioned: norms of four numbers; over random layers ours is closer to float64",
    ),
    Known(
        "linalg.householder_product/*/*",
        "*gradient [01]: * numbers differ: *",
        "ill-conditioned: gradients lose half of their digits",
    ),
    Known(
        "native_group_norm/*/*",
        "*: returns; eager raises RuntimeError: Expected X.is_contiguous(memory_format)*",
        "ATen raises for a layout that F.group_norm makes contiguous first",
    ),
)


def known_rows(case: str) -> list[Known]:
    """Return the rows of a case."""
    return [known for known in KNOWN_DIFFERENCES if fnmatchcase(case, known.case)]


def known_difference(case: str, failures: Sequence[str]) -> Known | None:
    """Return the row that all failures of a case match; None if there is no such row."""
    rows = known_rows(case)
    matching = (k for k in rows if all(fnmatchcase(f, k.failure) for f in failures))
    return next(matching, None)
