"""Programs of Dynamo on disk: what is kept beside the compiled graphs, and how it runs again."""

from __future__ import annotations

from dataclasses import replace

from torch.fx import GraphModule

from tofuse.cache.fingerprint import is_unchanged, torch_state, trusted_calls
from tofuse.cache.guarded_codes import StoredProgram
from tofuse.cache.programs import load_decision, load_program
from tofuse.capture.dynamo.eager_program import EagerProgram, pickled_graph, stored_eager_program
from tofuse.capture.dynamo.overlap_guard import overlap_guard
from tofuse.driver.compile_graph import load_graph
from tofuse.driver.context import CompileContext
from tofuse.driver.first_call import Decision, add_eager_calls
from tofuse.driver.program_record import ProgramRecord
from tofuse.driver.variants import Dispatcher
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


def restore_program(stored: StoredProgram, context: CompileContext) -> Dispatcher[object] | None:
    """Return a program that is kept on disk, with its variants; None if it is no longer there."""
    if not is_unchanged(stored.torch_state, stored.calls):
        return None
    context = replace(context, program=ProgramRecord())
    eager = stored_eager_program(stored.graph)
    decided = load_decision(stored.identity, context.config) if context.decides else None
    if decided is not None:  # its compiled graphs may not be on disk: nothing ran its backward
        context.hand_back.programs += 1
        dispatcher = Dispatcher[object](eager, context.report_variant)
        add_eager_calls(dispatcher, eager, stored.overlaps, (), context, Decision(*decided))
        return dispatcher
    found = load_program(stored.identity, context.config)
    if found is None:
        return None
    kind, graphs = found
    context.program.pure = not kind.mutated
    context.hand_back.programs += 1
    dispatcher = Dispatcher[object](eager, context.report_variant)
    boxed = [load_graph(run, artifact, context).run for run, artifact in graphs]
    run_eager = lambda arguments, aliases: eager(*aliases)  # noqa: E731
    dispatcher.default = make_program(kind, boxed[0], boxed[-1], run_eager)
    add_eager_calls(dispatcher, eager, stored.overlaps, (), context)
    return dispatcher
