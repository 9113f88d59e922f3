"""Calls that torch keeps in order by tokens, as plain calls."""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import has_side_effect, map_arg

# The checks of `linalg.inv` and its like have no result: before torch 2.13 they counted as dead.
has_side_effect(torch.ops.aten._linalg_check_errors.default)

WITH_EFFECTS = torch.ops.higher_order.with_effects
EFFECT = "tofuse_effect"  # in a node's meta: it stays, though nobody reads it


def without_tokens(gm: GraphModule) -> GraphModule:
    """`with_effects(token, op, *args)` becomes `op(*args)`, in place.

    Such calls are the checks of `linalg.solve`, `inv` and `cholesky`, and operators registered as
    effectful. Tokens go into the graph and out of it, and are None when it runs.
    """
    calls = [n for n in gm.graph.nodes if n.target is WITH_EFFECTS]
    if not all(isinstance(call.args[1], torch._ops.OpOverload) for call in calls):
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
    """The call by itself; who reads its token reads the one it was given."""
    token, target, *args = call.args
    assert isinstance(token, Node) and isinstance(target, torch._ops.OpOverload)
    with gm.graph.inserting_before(call):
        plain = gm.graph.call_function(target, tuple(args), call.kwargs)
    _, *values = call.meta["val"]
    several = len(target._schema.returns) > 1
    plain.meta = {**call.meta, "val": tuple(values) if several else values[0], EFFECT: True}
    for pick in list(call.users):
        assert pick.target is operator.getitem and isinstance(pick.args[1], int)
        place = pick.args[1] - 1
        if place >= 0 and several:
            pick.args = (plain, place)
        else:
            pick.replace_all_uses_with(plain if place == 0 else token)
            gm.graph.erase_node(pick)
    gm.graph.erase_node(call)
