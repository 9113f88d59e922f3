"""Programs of Dynamo on disk: what is kept beside the compiled graphs, and how it runs again."""

from __future__ import annotations

from torch.fx import GraphModule

from tofuse.cache.fingerprint import is_unchanged, torch_state, trusted_calls
from tofuse.cache.guarded_codes import StoredProgram
from tofuse.cache.programs import load_decision, load_program
from tofuse.capture.dynamo.eager_program import EagerProgram, pickled_graph, stored_eager_program
from tofuse.capture.dynamo.overlap_guard import overlap_guard
from tofuse.dispatch.dispatcher import Dispatcher
from tofuse.driver.first_call import add_eager_calls
from tofuse.driver.function_record import FunctionRecord
from tofuse.runtime.autograd_program import make_program


def stored_program(
    gm: GraphModule, eager: EagerProgram, key: tuple[str, ...]
) -> StoredProgram | None:
    """Return how a later process finds a program that is kept on disk; None if it cannot."""
    graph = pickled_graph(eager.module)
    calls, eager_calls = trusted_calls(gm), trusted_calls(eager.module)
    if graph is None or calls is None or eager_calls is None:
        return None
    names = tuple(sorted({*calls, *eager_calls}))
    return StoredProgram(key, torch_state(), names, graph, overlap_guard(gm))


def restore_program(stored: StoredProgram, function: FunctionRecord) -> Dispatcher[object] | None:
    """Return a program that is kept on disk, with its variants; None if it is no longer there."""
    if not is_unchanged(stored.torch_state, stored.calls):
        return None
    context = function.context
    eager = stored_eager_program(stored.graph)
    decided = load_decision(stored.identity, context.config) if context.decides else None
    dispatcher = Dispatcher[object](eager, function.add_variant)
    if decided is not None:  # its compiled graphs may not be on disk: nothing ran its backward
        function.hand_back.programs += 1
        add_eager_calls(dispatcher, eager, stored.overlaps, (), function, decided)
        return dispatcher
    found = load_program(stored.identity, context.config)
    if found is None:
        return None
    function.hand_back.programs += 1
    loaded, findings = function.load_graphs(found)
    run_eager = lambda arguments, aliases: eager(*aliases)  # noqa: E731
    dispatcher.general = make_program(found.kind, loaded[0].run, loaded[-1].run, run_eager)
    add_eager_calls(dispatcher, eager, stored.overlaps, (), function, findings.prediction)
    return dispatcher
