"""Functions that torch composes of others before any table of decompositions is read.

Its composition of the multilabel margin loss counts class 0 as a target for each entry after the
first -1, up to at least 2.15; that of `one_hot` has the strides of its argument and, in torch
2.11, no check. `fill_diagonal_`
reads strides that the argument has no more once torch has traced a write into it. The gradient of
`trace` is a write at computed indices. `flex_attention` is one operator, which no kernel joins,
and so is `scan`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

from tofuse.capture.decomp.decompose_checks import check_all
from tofuse.cost.thresholds import MAX_UNROLLED_SCAN_STEPS
from tofuse.torch_internals.flex_attention import flex_attention, math_attention
from tofuse.torch_internals.scan import Tensors, scan

Replacements = dict[Callable[..., object], Callable[..., object]]


def replace_functions(gm: GraphModule) -> tuple[GraphModule, tuple[str, ...]]:
    """Replace in place functions of a program and of the programs inside it by `REPLACEMENTS`."""
    for module in gm.modules():
        if isinstance(module, GraphModule):
            replace_calls(module, REPLACEMENTS)
    return gm, ()


def replace_calls(gm: GraphModule, replacements: Replacements) -> None:
    """Replace in place the functions of a program, and the methods of tensors."""
    for target, replacement in replacements.items():
        find, name = gm.graph.find_nodes, target.__name__
        nodes = find(op="call_function", target=target, sort=False)
        if target is getattr(Tensor, name, None):
            nodes += find(op="call_method", target=name, sort=False)
        for node in nodes:
            node.op, node.target = "call_function", replacement
        if nodes:
            gm.recompile()


def multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the loss over the targets before the first -1 of each row; arguments as PyTorch's."""
    if size_average is not None or reduce is not None:
        reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
    if input.shape != target.shape or input.dim() not in (1, 2) or reduction not in REDUCTIONS:
        return F.multilabel_margin_loss(input, target, reduction=reduction)  # raises an error
    rows, targets = torch.atleast_2d(input), torch.atleast_2d(target)
    valid = (torch.cumsum(targets == -1, -1) == 0).unsqueeze(-1)
    classes = torch.arange(rows.shape[1], device=rows.device)
    is_target = (valid & (targets.unsqueeze(-1) == classes)).any(1, keepdim=True)
    scores = torch.gather(rows, -1, torch.where(valid.squeeze(-1), targets, 0)).unsqueeze(-1)
    margins = 1 - scores + rows.unsqueeze(1)
    counts = valid & ~is_target & (margins > 0)
    loss = torch.where(counts, margins / rows.shape[1], 0).sum((1, 2))
    if reduction == "none":
        return loss.reshape(target.shape[:-1])
    return loss.mean() if reduction == "mean" else loss.sum()


def one_hot(input: Tensor, num_classes: int = -1) -> Tensor:
    """Return the one-hot codes in row-major order, as PyTorch's kernel does.

    Checks the classes: torch 2.11 traces its own composition without a check.
    """
    if input.dtype != torch.int64 or num_classes < 1:  # an error, or as many classes as needed
        return F.one_hot(input, num_classes).clone(memory_format=torch.contiguous_format)
    check_all(input >= 0, "Class values must be non-negative.")
    check_all(input < num_classes, "Class values must be smaller than num_classes.")
    codes = input.unsqueeze(-1) == torch.arange(num_classes, device=input.device)
    return codes.to(torch.int64, memory_format=torch.contiguous_format)


def fill_diagonal_(x: Tensor, fill_value: complex, wrap: bool = False) -> Tensor:
    """Fill the diagonal of all dimensions, in place.

    With `wrap`, a tall matrix has a diagonal in each block of rows; one row is between two blocks.
    """
    if x.dim() < 2 or (x.dim() > 2 and len(set(x.shape)) > 1):
        return x.fill_diagonal_(fill_value, wrap)  # raises an error
    blocks = [x]
    if wrap and x.dim() == 2 and x.shape[0] > x.shape[1]:
        blocks = [x[start:] for start in range(0, x.shape[0], x.shape[1] + 1)]
    for diagonal in blocks:
        while diagonal.dim() > 1:
            diagonal = diagonal.diagonal(0, 0, 1)
        diagonal.fill_(fill_value)
    return x


def trace(input: Tensor) -> Tensor:
    """Return the sum of the diagonal, whose gradient kernels compute."""
    if input.dim() != 2 or input.dtype is torch.bool:
        return torch.trace(input)  # raises an error
    return torch.sum(torch.diagonal(input))


def attention_by_definition(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: Sequence[object],
    scale: float,
    kernel_options: Mapping[str, object],
    *buffers: Sequence[object],
) -> Sequence[Tensor]:
    """Return attention by products, a mask and a softmax, and two numbers of each row.

    The arguments are those of PyTorch's operator. Of `block_mask`, only its function is used.
    """
    captured = map(tuple, buffers)
    return math_attention(
        query, key, value, score_mod, tuple(block_mask), scale, kernel_options, *captured
    )


def unrolled_scan(
    step: Callable[..., Tensors], start: Tensors, inputs: Tensors, others: Tensors
) -> Tensors:
    """Return the last states, and the results of all steps, of a loop over the first dimension.

    The arguments are those of PyTorch's operator. A pass over the graph finds the steps again, but
    not steps with matrix products, which stay an operator.
    """
    count = inputs[0].shape[0] if inputs else 0
    is_long = not isinstance(count, int) or not 0 < count <= MAX_UNROLLED_SCAN_STEPS
    if is_long or not isinstance(step, GraphModule) or _has_products(step):
        return scan(step, start, inputs, others)
    states, results = tuple(start), list[Tensors]()
    for t in range(count):
        found = step(*states, *(x[t] for x in inputs), *others)
        states = tuple(found[: len(states)])
        results.append(found[len(states) :])
    return (*states, *map(torch.stack, zip(*results, strict=True)))


def _has_products(gm: GraphModule) -> bool:
    """Whether a program calls a function or a module that computes matrix products."""
    names = (getattr(n.target, "__name__", str(n.target)) for n in gm.graph.nodes)
    return any(word in name for name in names for word in PRODUCTS)


REPLACEMENTS: Replacements = {
    flex_attention: attention_by_definition,
    scan: unrolled_scan,
    F.multilabel_margin_loss: multilabel_margin_loss,
    F.one_hot: one_hot,
    Tensor.fill_diagonal_: fill_diagonal_,
    torch.trace: trace,
    Tensor.trace: trace,
}
REDUCTIONS = ("mean", "sum", "none")
PRODUCTS = ("matmul", "mm", "linear", "einsum", "conv", "dot", "attention", "tensordot", "mv")
