"""The removal of effect tokens, by which torch orders calls with side effects."""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import has_side_effect, map_arg

from tofuse.torch_internals.operators import OpOverload, schema_of

# The checks of `linalg.inv` and the like have no result: torch before 2.13 removes them as dead.
has_side_effect(torch.ops.aten._linalg_check_errors.default)

WITH_EFFECTS = torch.ops.higher_order.with_effects
EFFECT_KEY = "tofuse_effect"  # in a node's meta: the call is not dead without users


def remove_effect_tokens(gm: GraphModule) -> GraphModule:
    """Rewrite `with_effects(token, op, *args)` to `op(*args)`, in place.

    Such calls are the checks of `linalg.solve`, `inv` and `cholesky`, and operators registered as
    effectful. Tokens stay arguments and results of the graph, and are None at run time.
    """
    calls = [n for n in gm.graph.nodes if n.target is WITH_EFFECTS]
    if not all(isinstance(call.args[1], OpOverload) for call in calls):
        return gm
    tokens = {call.args[0] for call in calls if call.args[0].op == "placeholder"}
    for call in calls:
        _unwrap(gm, call)
    for output in gm.graph.find_nodes(op="output"):
        output.args = map_arg(output.args, lambda n: None if n in tokens else n)
    for token in tokens:
        token.meta["val"] = None
    if calls:
        gm.recompile()
    return gm


def _unwrap(gm: GraphModule, call: Node) -> None:
    """Replace a call by its operator; users of its token read its input token."""
    token, target, *args = call.args
    assert isinstance(token, Node) and isinstance(target, OpOverload)
    with gm.graph.inserting_before(call):
        unwrapped = gm.graph.call_function(target, tuple(args), call.kwargs)
    _, *values = call.meta["val"]
    several = len(schema_of(target).returns) > 1
    value = tuple(values) if several else values[0]
    unwrapped.meta = {**call.meta, "val": value, EFFECT_KEY: True}
    for getitem in list(call.users):
        assert getitem.target is operator.getitem and isinstance(getitem.args[1], int)
        index = getitem.args[1] - 1
        if index >= 0 and several:
            getitem.args = (unwrapped, index)
        else:
            getitem.replace_all_uses_with(unwrapped if index == 0 else token)
            gm.graph.erase_node(getitem)
    gm.graph.erase_node(call)
