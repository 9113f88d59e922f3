"""Graph -> regions: merge along edges while it is legal and gains, with a verdict for each edge."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace

from tofuse.analysis.alias import is_view, placements, storages
from tofuse.cost.machine import Machine, machine_on
from tofuse.cost.nest import Cost, traffic_us
from tofuse.fusion.concat.concat_cost import Windows, dear_join, is_join
from tofuse.fusion.concat.eliminate import place_pieces, place_stored, why_called
from tofuse.fusion.epilogues import fold_epilogues
from tofuse.fusion.host_scalars import with_hosts
from tofuse.fusion.lower.axes import Misaligned
from tofuse.fusion.lower.coalesce import coalesce
from tofuse.fusion.lower.lower_region import lower
from tofuse.fusion.partition.elementwise_fusion import MAX_BUFFERS, Sight, is_elementwise
from tofuse.fusion.partition.groups import (
    Group,
    Groups,
    Splits,
    reading,
    roots,
    sources_of,
)
from tofuse.fusion.partition.profitability import (
    GAIN,
    Costs,
    Fits,
    Judges,
    dearer,
    is_uneven,
    loops_change,
)
from tofuse.fusion.partition.region_hash import likeness
from tofuse.fusion.partition.region_split import Split
from tofuse.fusion.region_names import RULE_NAMES, region_name, sibling
from tofuse.fusion.rounding import rounded_halves
from tofuse.fusion.views.materialize import materialise
from tofuse.fusion.views.view_duplication import own_ranges, own_views
from tofuse.ir.dims import Dim, hint
from tofuse.ir.fusion_hints import asked_for, kept_apart
from tofuse.ir.graph import Graph, Op, Value, device_of
from tofuse.ir.region import Partition, Region, Strided, Verdict
from tofuse.ops.table import opdef

MAX_OPS = 512  # of one kernel: of a cut, both sides hold what lies between them at once
SHARED_ELEMENTS = 1024  # of a tensor that is worth reading once for two kernels
SPREAD = 8  # shapes of its readers: a value that more of them need is computed once, before
NO_FUEL = "no fuel left"
TOO_MANY = f"a kernel reads and writes at most {MAX_BUFFERS} buffers"
Answers = dict[Hashable, tuple[str | None, Cost | None]]  # of a kernel, and of all like it


def partition(
    graph: Graph,
    fits: Fits,
    machine: Machine,
    fuel: int | None = None,
    apart: Collection[Split] = (),
    fits_gpu: Fits | None = None,
    costs: Costs | None = None,
    known: Answers | None = None,
    placing: bool = True,
    exact: bool = False,
) -> Partition:
    """Regions in an order that runs. Deterministic: depends on the program alone.

    With `fuel` only so many merges are made, the first ones of those made without. No kernel has
    results of two parts of a split in `apart`. Kernels for GPUs are asked of `fits_gpu`, else their
    ops stay apart. Those for the CPU whose loops serve a part of them badly are weighed by `costs`,
    merge by merge. What is asked is noted in `known`. Without `placing` pieces of a cat have their
    own memory, until it copies them. `exact`: halves round at every op.
    """
    ask, splits = Judges(fits, fits_gpu, costs, exact), Splits(apart)
    known = {} if known is None else known
    part = _cut(place_pieces(graph, placing), ask, machine, None, splits, known)
    again = fold_epilogues(part)
    again = place_stored(again, part) if placing else again
    if again is not part.graph or fuel is not None:
        part = _cut(again, ask, machine, fuel, splits, known)
    return part


def _cut(
    graph: Graph, fits: Judges, machine: Machine, fuel: int | None, apart: Splits, known: Answers
) -> Partition:
    storage = storages(graph)
    real = own_ranges(materialise(graph, storage))
    storage = storage if real is graph else storages(real)
    own = own_views(real, storage)
    storage = storage if own is real else storages(own)
    halves = rounded_halves(own, fits.exact)
    part = _Partitioner(own, fits, machine, fuel, apart, known, storage, halves).run()
    return replace(part, parts=placements(own), halves=halves)


@dataclass(eq=False)
class _Partitioner:
    graph: Graph
    fits: Judges
    machine: Machine
    fuel: int | None
    apart: Splits
    known: Answers
    storage: dict[Value, Strided]
    halves: frozenset[str]
    order: dict[Op, int] = field(default_factory=dict)
    view: dict[Op, bool] = field(default_factory=dict)
    makers: dict[Value, Op] = field(default_factory=dict)
    sources: dict[Op, list[Op]] = field(default_factory=dict)  # through views too
    producers: dict[Value, Op] = field(default_factory=dict)
    users: dict[Value, list[Op]] = field(default_factory=dict)
    reasons: dict[tuple[Op, Op], str] = field(default_factory=dict)
    flat: dict[Group, bool] = field(default_factory=dict)  # elementwise ops only
    joins: dict[Group, list[Op]] = field(default_factory=dict)  # the cats and pads in it
    returned: set[Value] = field(default_factory=set)  # roots of the graph's outputs
    readers: dict[Value, list[Op]] = field(default_factory=dict)  # through views too
    spread: dict[Op, bool] = field(default_factory=dict)
    uneven: list[tuple[list[Op], float]] = field(default_factory=list)  # kernels and their cost
    uneasy: set[Group] = field(default_factory=set)  # uneven ones that have grown
    followed: list[Op] = field(default_factory=list)  # merged unasked
    careful: bool = False
    trusting: bool = False
    trusted: dict[Op, int] = field(default_factory=dict)
    merges: list[tuple[Op, Op]] = field(default_factory=list)  # in order: a member of each group

    def run(self) -> Partition:
        graph = self.graph
        self.order = {op: k for k, op in enumerate(graph.ops)}
        self.view = {op: is_view(op) for op in graph.ops}
        self.makers = roots(graph.ops, self.view)
        self.sources = sources_of(graph.ops, self.makers)
        self.producers, self.users = graph.producers(), graph.users()
        self.returned = {self.storage[v].root for v in graph.outputs if v in self.storage}
        values = (*graph.inputs, *(r for op in graph.ops for r in op.results))
        self.readers = {v: reading(v, self.users, self.view, self.order) for v in values}
        self.windows = Windows(self.users, self.view, self.storage)
        self.sight = Sight(self.storage, self.producers, self.makers, self.returned, self.readers)
        if not self._grow_on_trust():
            self._grow_checked()
            if self._trust_wholes():
                self._grow_checked()
        self._share_inputs()
        self._stop_at(len(self.merges) if self.fuel is None else self.fuel)
        regions = [self._region(g, k) for k, g in enumerate(self.groups.sorted())]
        verdicts = {(s, op): self._verdict(s, op) for s, op in self._edges()}
        return Partition(
            graph,
            tuple(regions),
            self.storage,
            tuple(verdicts.values()),
            tuple(verdicts.get(pair) or sibling(*pair) for pair in self.merges),
            tuple(v for pair, v in verdicts.items() if self._is_refused(pair, v)),
        )

    # -- merging ---------------------------------------------------------------------------------

    def _grow(self) -> None:
        self.groups = Groups(self.order)
        self.reasons, self.flat, self.joins, self.merges = {}, {}, {}, []
        self.sight.clear()
        self.uneasy, self.followed = set(), []
        for op in self.graph.ops:
            if not self.view[op]:
                self._place(op)
        for op in filter(is_join, self.graph.ops):
            self._place_late(op)

    def _place_late(self, join: Op) -> None:
        """What is read at once by one kernel needs no memory, which its first reader alone did."""
        readers = self.readers[join.result]
        found = {self.groups.of[u] for u in readers}
        if len(readers) > 1 and len(found) == 1:
            self._try_merge(self.groups.of[join], found.pop(), join, readers[0])

    def _grow_checked(self) -> None:
        """Merge step by step; what was merged unasked is asked for at the end."""
        self._grow()
        grown = dict.fromkeys(self.groups.of[op] for op in self.followed)
        if any(self._judged(g.ops)[0] is not None for g in grown):
            self.careful = True
            self._grow()

    def _grow_on_trust(self) -> bool:
        """Merge all that nothing forbids at sight, then check each result once.

        True if every kernel fits. Ops of those that do are trusted to fit together when the
        others are grown step by step.
        """
        self.trusting = True
        self._grow()
        self.trusting = False
        groups = [g for g in self.groups.sorted() if not g.library]
        good = [g for g in groups if len(g.ops) == 1 or self._fits(g)]
        self.trusted = {op: k for k, g in enumerate(good) for op in g.ops}
        return len(good) == len(groups)

    def _fits(self, group: Group) -> bool:
        if self.flat[group] and self.sight.plain(set(group.ops)):
            return True
        reason, cost = self._judged(group.ops)
        if is_uneven(cost):
            self.uneven.append((group.ops, cost.us))
            return False
        return reason is None

    def _trust_wholes(self) -> bool:
        """Trust uneven kernels after all whose parts, as they grew, are not predicted to gain."""
        before = len(self.trusted)
        for k, (ops, us) in enumerate(self.uneven):
            groups = dict.fromkeys(self.groups.of[op] for op in ops)
            parts = [self._judged(g.ops)[1] for g in groups]
            apart = sum(math.inf if c is None else c.us for c in parts)
            if len(parts) > 1 and apart >= GAIN * us:
                self.trusted |= dict.fromkeys(ops, -1 - k)
        return len(self.trusted) > before

    def _place(self, op: Op) -> None:
        """Put an op into the kernel of its producers, the largest saving first."""
        sources = self.sources[op]
        library = op.kind == "opaque"
        group = self.groups.add(op, library, sources)
        self.flat[group] = is_elementwise(op)
        self.joins[group] = [op] if is_join(op) else []
        if library:
            return self.reasons.update(dict.fromkeys(((s, op) for s in sources), why_called(op)))
        gains = {s: (asked_for(s, op), hint(s.result.type.nbytes)) for s in sources}
        for s in sorted(sources, key=gains.__getitem__, reverse=True):
            group = self._try_merge(self.groups.of[s], self.groups.of[op], s, op)

    def _try_merge(self, a: Group, b: Group, producer: Op, consumer: Op) -> Group:
        """Merge two groups if that is legal; otherwise note why not."""
        reason = None if a is b else self._obstacle(a, b, producer, consumer)
        if reason is not None:
            self.reasons[producer, consumer] = reason
            return b
        if not self.trusting:
            self.sight.merged(producer, consumer)
        if a is b:
            return a
        both = self.flat[a] and self.flat[b], self.joins[a] + self.joins[b]
        merged = self.groups.merge(a, b)
        self.flat[merged], self.joins[merged] = both
        self.merges.append((producer, consumer))
        return merged

    def _stop_at(self, fuel: int) -> None:
        """Take back all merges but the first ones."""
        if fuel >= len(self.merges):
            return
        whole, self.merges = self.groups.of, self.merges[:fuel]
        self.groups = Groups(self.order)
        for op in self.graph.ops:
            if not self.view[op]:
                self.groups.add(op, op.kind == "opaque", self.sources[op])
        for producer, consumer in self.merges:
            self.groups.merge(self.groups.of[producer], self.groups.of[consumer])
        for s, op in self._edges():
            if whole[s] is whole[op]:
                self.reasons[s, op] = NO_FUEL

    def _obstacle(self, a: Group, b: Group, producer: Op, consumer: Op) -> str | None:
        if self.groups.of[producer].library and self.flat[self.groups.of[consumer]]:
            return f"library call: {consumer.kind}, its epilogue, is in the next kernel"
        if a.library or b.library:
            return "library call"
        if self.apart.part(a, b):
            return "together they would hold more memory than eager"
        if kept_apart(producer, consumer):
            return "kept apart by no_fuse"
        if (self.joins[a] or self.joins[b]) and not asked_for(producer, consumer):
            joins = self.joins[a] + self.joins[b]
            reason = dear_join(joins, {*a.ops, *b.ops}, self.sources)
            if reason is not None:
                return reason
        if not asked_for(producer, consumer):
            if len(a.ops) + len(b.ops) > MAX_OPS:
                return f"a kernel holds at most {MAX_OPS} ops"
            reason = self.windows.dear(producer, consumer, a.ops, self.sources)
            if reason is not None:
                return reason
        if self._spread(producer):
            return f"spread over more than {SPREAD} tensors of different sizes: computed once"
        # groups of several ops have passed this before
        if device_of((producer,)) != device_of((consumer,)):
            return "another device"
        if self.fits.on(device_of((producer,))) is None:
            return "no kernels for this device"
        if not self.groups.separable(a, b):
            return "a value in between is computed elsewhere"
        if self.trusting:
            return None
        tied = {producer.result, *producer.inputs} & set(consumer.inputs)
        if tied and self.flat[a] and self.flat[b] and self.sight.plain({*a.ops, *b.ops}):
            return None
        known = {self.trusted.get(op) for op in (*a.ops, *b.ops)}
        if len(known) == 1 and None not in known:
            return None
        sure = not self.careful and a not in self.uneasy and b.ops == [consumer]
        read = [v for v in consumer.inputs if v in self.makers]
        here = [v for v in read if self.groups.of[self.makers[v]] is a]
        new = [v for v in here if self.sight.seen(v) is None]
        even = not any(loops_change((self.makers[v],), (consumer,)) for v in new)
        if sure and even and self.sight.follows(consumer, here, a.ops):
            self.followed.append(consumer)
            return None
        reason, together = self._judged(self.groups.merged_ops(a, b))
        weighed = is_uneven(together) and not asked_for(producer, consumer)
        siblings = not tied.intersection(producer.results)
        if not weighed or not (siblings or loops_change(a.ops, b.ops)):
            return reason
        self.uneasy |= {a, b}
        return dearer(together, (self._judged(a.ops)[1], self._judged(b.ops)[1]))

    def _spread(self, producer: Op) -> bool:
        """Whether kernels of many different loops read its result: no two of them can be one."""
        if producer not in self.spread:
            shapes: set[tuple[Dim, ...]] = set()
            for u in self.readers[producer.result] if producer.results else ():
                shapes.update(r.shape for r in u.results)
                if len(shapes) > SPREAD + 1:
                    break
            self.spread[producer] = len(shapes - {producer.result.shape}) > SPREAD
        return self.spread[producer]

    def _judged(self, ops: list[Op]) -> tuple[str | None, Cost | None]:
        """Why these ops are not one kernel, or what it costs."""
        region = self._build(ops, "attempt")
        places = tuple(map(self.storage.get, region.inputs))
        if len({p.root for p in places if p is not None}) + len(region.outputs) > MAX_BUFFERS:
            return TOO_MANY, None
        asked = region.ops, region.outputs, places, self.halves
        if asked not in self.known:
            if (alike := likeness(region, self.storage, self.halves)) not in self.known:
                self.known[alike] = self._tried(region, device_of(ops))
            self.known[asked] = self.known[alike]
        return self.known[asked]

    def _tried(self, region: Region, device: str) -> tuple[str | None, Cost | None]:
        try:
            lowered = lower(region, self.storage, halves=self.halves)
            kernel = with_hosts(coalesce(lowered.kernel), lowered.arguments, device)
        except Misaligned as e:
            return str(e), None
        if len(kernel.buffers) > MAX_BUFFERS:
            return TOO_MANY, None
        return self.fits.judge(kernel, device)

    def _share_inputs(self) -> None:
        """Merge kernels that read the same large tensor: it is then read once."""
        for v in (*self.graph.inputs, *(r for op in self.graph.ops for r in op.results)):
            large = hint(v.type.numel) >= SHARED_ELEMENTS
            readers = [u for u in self.readers[v] if not self.groups.of[u].library]
            for u in readers[1:9]:
                a, b = self.groups.of[readers[0]], self.groups.of[u]
                if a is not b and (large or asked_for(readers[0], u)):
                    self._try_merge(a, b, readers[0], u)

    # -- results ---------------------------------------------------------------------------------

    def _region(self, group: Group, number: int) -> Region:
        if group.library:
            (op,) = group.ops
            name = str(op.attr("target")).split(".")[1]
            return Region(f"{name}_{number}", (op,), op.results, library=True)
        return self._build(group.ops, region_name(group.ops, number))

    def _build(self, ops: Sequence[Op], name: str) -> Region:
        """A region of computing ops: with the views between them, and the values others need."""
        inside, made = set(ops), {op.result for op in ops}
        needed: dict[Op, None] = {}
        for op in ops:
            work = [v for v in op.inputs if v not in made]
            while work:
                v = work.pop()
                if v not in self.producers or not self.view[self.producers[v]]:
                    continue
                if self.makers.get(v) in inside or v not in self.storage:
                    needed[self.producers[v]] = None
                    work += self.producers[v].inputs
        everything = sorted([*ops, *needed], key=self.order.__getitem__)
        outputs = [
            op.result
            for op in ops
            if op.result in self.returned or not inside.issuperset(self.readers[op.result])
        ]
        return Region(name, tuple(everything), tuple(outputs))

    def _edges(self) -> list[tuple[Op, Op]]:
        """Pairs of computing ops of which the second reads the first, in program order."""
        return [(s, op) for op in self.graph.ops if not self.view[op] for s in self.sources[op]]

    def _is_refused(self, pair: tuple[Op, Op], verdict: Verdict) -> bool:
        """Whether the user wants them fused and does not know why they are not."""
        return asked_for(*pair) and not verdict.fused and self.reasons.get(pair) != NO_FUEL

    def _verdict(self, s: Op, op: Op) -> Verdict:
        names = s.results[0].name, op.results[0].name if op.results else op.kind
        if self.groups.of[s] is not self.groups.of[op]:
            rule = self.reasons.get((s, op), "merged elsewhere first")
            asked = ", though fuse asks for it" if asked_for(s, op) else ""
            return Verdict(*names, False, rule + asked, loc=op.loc)
        here = [u for u in self.readers[s.result] if self.groups.of[u] is self.groups.of[s]]
        stored = s.result in self.returned or len(here) < len(self.readers[s.result])
        # each reader saves a read, the first of them the write too
        nbytes = hint(s.result.type.nbytes) * (2 if op is here[0] and not stored else 1)
        asked = ", as fuse asks" if asked_for(s, op) else ""
        rule = RULE_NAMES.get(opdef(op.kind).pattern, "same loops") + asked
        on = machine_on(s.result.type.device, self.machine)
        gain = traffic_us(on, nbytes) + on.launch_us
        return Verdict(*names, True, rule, nbytes, 1, 0.0, gain, op.loc)
