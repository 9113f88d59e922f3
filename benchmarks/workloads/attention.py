"""Attention as users write it: masks, biases, PyTorch's operator, training steps, one query."""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.seeds import Inputs, Program, Size
from benchmarks.workloads.base import Case, CaseMaker, Workload, calls

WINDOW = 128
DOCUMENT = 256
SHAPES = {"": (2, 12, 1024, 64), "_long": (1, 8, 4096, 128)}
QUERY_SHAPE = 1, 32, 2048, 128


def positions(scores: Tensor) -> Tensor:
    """Return the position of each query less that of each key."""
    queries, keys = (torch.arange(n) for n in scores.shape[-2:])
    return queries[:, None] - keys


def plain(scores: Tensor) -> Tensor:
    return scores


def causal(scores: Tensor) -> Tensor:
    return scores.masked_fill(positions(scores) < 0, -math.inf)


def causal_by_number(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones(scores.shape[-2:]).tril() == 0, -1e9)


def window(scores: Tensor) -> Tensor:
    behind = positions(scores)
    return torch.where((behind >= 0) & (behind < WINDOW), scores, -math.inf)


def documents(scores: Tensor) -> Tensor:
    queries, keys = (torch.arange(n) // DOCUMENT for n in scores.shape[-2:])
    return torch.where(queries[:, None] == keys, scores, -math.inf)


def alibi(scores: Tensor) -> Tensor:
    slopes = 2.0 ** -torch.arange(1.0, scores.shape[1] + 1)
    return scores - (slopes[:, None, None] * positions(scores).abs()).to(scores.dtype)


def softcap(scores: Tensor) -> Tensor:
    return 30 * torch.tanh(scores / 30)


FORMS = (plain, causal, causal_by_number, window, documents, alibi, softcap)


def by_hand(change: Program) -> Program:
    """Return attention whose scores a function changes."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = change(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]))
        assert isinstance(scores, Tensor)
        return torch.softmax(scores, -1) @ v

    return attention


def operator(is_causal: bool, grouped: bool = False) -> Program:
    """Return attention as a call of PyTorch's operator."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=grouped)

    return attention


def flex(mask: Callable[..., Tensor], length: int) -> Program:
    """Return attention of keys that a function allows, as PyTorch's `flex_attention`."""
    block_mask = create_block_mask(mask, None, None, length, length, device="cpu")

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        result = flex_attention(q, k, v, block_mask=block_mask)
        assert isinstance(result, Tensor)
        return result

    return attention


def flex_case(mask: Callable[..., Tensor]) -> CaseMaker:
    """Return the case of a mask, without gradients, which PyTorch refuses on the CPU."""

    def make(size: Size, dtype: torch.dtype) -> Case:
        q, k, v = (t.detach() for t in inputs(SHAPES[""], size, dtype) if isinstance(t, Tensor))
        return calls(flex(mask, q.shape[-2]), lambda *_: (q, k, v))(size, dtype)

    return make


def not_behind(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def in_window(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (query >= key) & (query - key < WINDOW)


def inputs(shape: tuple[int, int, int, int], size: Size, dtype: torch.dtype) -> Inputs:
    batch, heads, length, depth = shape if size == "full" else (1, 2, 64, 16)
    return tuple(
        torch.randn(batch, heads, length, depth).to(dtype).requires_grad_() for _ in range(3)
    )


def query_inputs(groups: int, size: Size, dtype: torch.dtype) -> Inputs:
    """Return one query and keys and values, with one head for so many of the queries."""
    batch, heads, length, depth = QUERY_SHAPE if size == "full" else (1, 4, 64, 16)
    q = torch.randn(batch, heads, 1, depth)
    k, v = (torch.randn(batch, heads // groups, length, depth) for _ in range(2))
    return tuple(t.to(dtype) for t in (q, k, v))


def cases() -> dict[str, CaseMaker]:
    """Return the cases by name."""
    found: dict[str, CaseMaker] = {}
    for suffix, shape in SHAPES.items():
        make = partial(inputs, shape)
        found |= {f"{form.__name__}{suffix}": calls(by_hand(form), make) for form in FORMS}
        for name, is_causal in (("operator", False), ("operator_causal", True)):
            program = operator(is_causal)
            found[f"{name}{suffix}"] = calls(program, make)
            found[f"{name}_backward{suffix}"] = calls(program, make, backward=True)
    for form in (plain, causal, window, softcap):
        make = partial(inputs, SHAPES[""])
        found[f"{form.__name__}_backward"] = calls(by_hand(form), make, backward=True)
    found["flex_causal"] = flex_case(not_behind)
    found["flex_window"] = flex_case(in_window)
    found["one_query"] = calls(by_hand(plain), partial(query_inputs, 1))
    for groups in (1, 4):
        make = partial(query_inputs, groups)
        found[f"one_query_operator_{groups}"] = calls(operator(False, groups > 1), make)
    return found


ATTENTION = tuple(
    Workload(f"attention_{name}{suffix}", "attention", make, dtype)
    for suffix, dtype in (("", torch.float32), ("_bf16", torch.bfloat16))
    for name, make in cases().items()
)
