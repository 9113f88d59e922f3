"""The table of lowering rules, by the name of the ATen operator."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from tofuse.capture.lower.call import LoweringRule
from tofuse.capture.lower.rules.constant_indices import CONSTANT_INDEX_RULES
from tofuse.capture.lower.rules.creation import CREATION_RULES
from tofuse.capture.lower.rules.cumulative import CUMULATIVE_RULES
from tofuse.capture.lower.rules.depthwise_convolution import DEPTHWISE_RULES
from tofuse.capture.lower.rules.memory_order import MEMORY_ORDER_RULES
from tofuse.capture.lower.rules.pointwise import POINTWISE_RULES
from tofuse.capture.lower.rules.pooling import POOLING_RULES
from tofuse.capture.lower.rules.reductions import REDUCTION_RULES
from tofuse.capture.lower.rules.scatter import SCATTER_RULES
from tofuse.capture.lower.rules.scatter_reduce import SCATTER_REDUCE_RULES
from tofuse.capture.lower.rules.view_ops import VIEW_RULES


@lru_cache(maxsize=4096)
def lowering_rule(target: object) -> LoweringRule | None:
    """Return the rule of an ATen overload, by its full name or by its name without overload."""
    full = str(target)
    return LOWERING_RULES.get(full) or LOWERING_RULES.get(full.rpartition(".")[0])


LOWERING_RULES: Mapping[str, LoweringRule] = {
    **POINTWISE_RULES,
    **VIEW_RULES,
    **SCATTER_RULES,
    **SCATTER_REDUCE_RULES,
    **CONSTANT_INDEX_RULES,
    **MEMORY_ORDER_RULES,
    **REDUCTION_RULES,
    **CUMULATIVE_RULES,
    **POOLING_RULES,
    **DEPTHWISE_RULES,
    **CREATION_RULES,
}
