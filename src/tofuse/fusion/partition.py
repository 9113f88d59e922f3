"""Graph -> regions: merge along edges while it is legal and gains, with a verdict for each edge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tofuse.fusion.axes import Misaligned
from tofuse.fusion.coalesce import coalesce
from tofuse.fusion.cost import Machine, predicted_us
from tofuse.fusion.groups import Group, Groups, roots
from tofuse.fusion.hosts import device_of, with_hosts
from tofuse.fusion.lower import lower
from tofuse.fusion.materialise import materialise
from tofuse.fusion.names import region_name
from tofuse.fusion.storage import is_view, storages
from tofuse.ir.dims import hint, product
from tofuse.ir.graph import Graph, Op, Value
from tofuse.ir.kernel import Kernel
from tofuse.ir.region import Partition, Region, Strided, Verdict
from tofuse.ops.table import Pattern, opdef

MAX_OPS = 160  # of one kernel: above, registers spill and LLVM's time grows faster than the kernel
MAX_BUFFERS = 64
SHARED_ELEMENTS = 1024  # of a tensor that is worth reading once for two kernels
Fits = Callable[[Kernel], "str | None"]  # why a kernel cannot be scheduled; None where it can


def partition(
    graph: Graph, fits: Fits, machine: Machine, fits_gpu: Fits | None = None
) -> Partition:
    """Regions in an order that runs. Deterministic: depends on the program alone."""
    return _Partitioner(materialise(graph), fits, machine, fits_gpu).run()


@dataclass(eq=False)
class _Partitioner:
    graph: Graph
    fits: Fits
    machine: Machine
    fits_gpu: Fits | None = None
    order: dict[Op, int] = field(default_factory=dict)
    storage: dict[Value, Strided] = field(default_factory=dict)
    view: dict[Op, bool] = field(default_factory=dict)
    makers: dict[Value, Op] = field(default_factory=dict)
    producers: dict[Value, Op] = field(default_factory=dict)
    users: dict[Value, list[Op]] = field(default_factory=dict)
    reasons: dict[tuple[Op, Op], str] = field(default_factory=dict)
    flat: dict[Group, bool] = field(default_factory=dict)
    returned: set[Value] = field(default_factory=set)  # roots of the graph's outputs
    readers: dict[Value, list[Op]] = field(default_factory=dict)  # through views too
    trusting: bool = False
    trusted: dict[Op, int] = field(default_factory=dict)

    def run(self) -> Partition:
        graph = self.graph
        self.order = {op: k for k, op in enumerate(graph.ops)}
        self.storage = storages(graph)
        self.view = {op: is_view(op) for op in graph.ops}
        self.makers = roots(graph.ops, self.view)
        self.producers, self.users = graph.producers(), graph.users()
        self.returned = {self.storage[v].root for v in graph.outputs if v in self.storage}
        values = (*graph.inputs, *(r for op in graph.ops for r in op.results))
        self.readers = {v: self._reading(v) for v in values}
        if not self._grow_on_trust():
            self._grow()
        self._share_inputs()
        regions = [self._region(g, k) for k, g in enumerate(self.groups.sorted())]
        return Partition(graph, tuple(regions), self.storage, self._verdicts())

    # -- merging ---------------------------------------------------------------------------------

    def _grow(self) -> None:
        self.groups = Groups(self.order)
        self.reasons, self.flat = {}, {}
        for op in self.graph.ops:
            if not self.view[op]:
                self._place(op)

    def _grow_on_trust(self) -> bool:
        """Merge all that nothing forbids at sight, then check each result once.

        True if every kernel fits. Ops of those that do are trusted to fit together when the
        others are grown step by step.
        """
        self.trusting = True
        self._grow()
        self.trusting = False
        groups = [g for g in self.groups.sorted() if not g.library]
        good = [g for g in groups if len(g.ops) == 1 or self._misfit(g.ops) is None]
        self.trusted = {op: k for k, g in enumerate(good) for op in g.ops}
        return len(good) == len(groups)

    def _place(self, op: Op) -> None:
        """Put an op into the kernel of its producers, the largest saving first."""
        sources = self._sources(op)
        library = op.kind == "opaque"
        group = self.groups.add(op, library, sources)
        self.flat[group] = opdef(op.kind).pattern is Pattern.ELEMENTWISE
        if library:
            for s in sources:
                self.reasons[s, op] = "library call"
            return
        for s in sorted(sources, key=lambda s: -hint(s.result.type.nbytes)):
            group = self._try_merge(self.groups.of[s], self.groups.of[op], s, op)

    def _sources(self, op: Op) -> list[Op]:
        found = [self.makers[v] for v in op.inputs if v in self.makers]
        return list(dict.fromkeys(found))

    def _try_merge(self, a: Group, b: Group, producer: Op, consumer: Op) -> Group:
        """Merge two groups if that is legal; otherwise note why not."""
        if a is b:
            return a
        reason = self._obstacle(a, b, consumer)
        if reason is not None:
            self.reasons[producer, consumer] = reason
            return b
        flat = self.flat[a] and self.flat[b]
        merged = self.groups.merge(a, b)
        self.flat[merged] = flat
        return merged

    def _obstacle(self, a: Group, b: Group, consumer: Op) -> str | None:
        if a.library or b.library:
            return "library call"
        if len(a.ops) + len(b.ops) > MAX_OPS:
            return f"a kernel holds at most {MAX_OPS} ops"
        if device_of(a.ops) != device_of(b.ops):
            return "another device"
        if self.fits_gpu is None and device_of(a.ops) != "cpu":
            return "no kernels for this device"
        if not self.groups.separable(a, b):
            return "a value in between is computed elsewhere"
        if self.trusting or self._plain(a, b, consumer):
            return None
        known = {self.trusted.get(op) for op in (*a.ops, *b.ops)}
        if len(known) == 1 and None not in known:
            return None
        return self._misfit(self.groups.merged_ops(a, b))

    def _plain(self, a: Group, b: Group, consumer: Op) -> bool:
        """Elementwise ops of one shape, no views: nothing to check."""
        if not (self.flat[a] and self.flat[b]):
            return False
        shape, inside = consumer.result.shape, {*a.ops, *b.ops}
        alike = all(
            v.shape == shape and v in self.storage and not self._viewed(v, inside)
            for op in inside
            for v in (*op.inputs, op.result)
        )
        return alike and (len(inside) <= MAX_BUFFERS // 2 or self._buffers(inside) <= MAX_BUFFERS)

    def _buffers(self, inside: set[Op]) -> int:
        """How many tensors a kernel of these ops reads and writes."""
        read = {self.storage[v].root for op in inside for v in op.inputs}
        made = {op.result for op in inside}
        written = [v for v in made if v in self.returned or not inside.issuperset(self.readers[v])]
        return len(read - made) + len(written)

    def _viewed(self, v: Value, inside: set[Op]) -> bool:
        """Whether a value is a view of something computed in these ops."""
        maker = self.producers.get(v)
        return maker is not None and self.view[maker] and self.makers.get(v) in inside

    def _misfit(self, ops: list[Op]) -> str | None:
        """Why these ops are not one kernel, found by lowering and scheduling them."""
        try:
            region = self._build(ops, "attempt")
            lowered = lower(region, self.storage)
            kernel = with_hosts(coalesce(lowered.kernel), lowered.arguments, device_of(ops))
        except Misaligned as e:
            return str(e)
        if len(kernel.buffers) > MAX_BUFFERS:
            return f"a kernel reads and writes at most {MAX_BUFFERS} buffers"
        if self.fits_gpu is None or device_of(ops) == "cpu":
            return self.fits(kernel)
        return self.fits_gpu(kernel)

    def _share_inputs(self) -> None:
        """Merge kernels that read the same large tensor: it is then read once."""
        for v in (*self.graph.inputs, *(r for op in self.graph.ops for r in op.results)):
            if hint(v.type.numel) < SHARED_ELEMENTS:
                continue
            readers = [u for u in self.readers[v] if not self.groups.of[u].library]
            for u in readers[1:9]:
                a, b = self.groups.of[readers[0]], self.groups.of[u]
                if a is not b:
                    self._try_merge(a, b, readers[0], u)

    def _reading(self, v: Value) -> list[Op]:
        """Computing ops that read a value, through views too."""
        found: list[Op] = []
        work = [v]
        while work:
            for op in self.users.get(work.pop(), ()):
                if self.view[op]:
                    work.append(op.result)
                else:
                    found.append(op)
        return sorted(dict.fromkeys(found), key=self.order.__getitem__)

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

    def _verdicts(self) -> tuple[Verdict, ...]:
        """One for every edge between computing ops, in program order."""
        found = []
        for op in self.graph.ops:
            if self.view[op]:
                continue
            for s in self._sources(op):
                found.append(self._verdict(s, op))
        return tuple(found)

    def _verdict(self, s: Op, op: Op) -> Verdict:
        fused = self.groups.of[s] is self.groups.of[op]
        names = (s.results[0].name, op.results[0].name if op.results else op.kind)
        if not fused:
            rule = self.reasons.get((s, op), "merged elsewhere first")
            return Verdict(*names, False, rule, loc=op.loc)
        stored = any(self.groups.of[u] is not self.groups.of[s] for u in self.readers[s.result])
        nbytes = hint(product((s.result.type.nbytes, 1 if stored else 2)))
        rule = _RULE_NAMES.get(opdef(op.kind).pattern, "same loops")
        gain = predicted_us(self.machine, nbytes, 1)
        return Verdict(*names, True, rule, nbytes, 1, 0.0, gain, op.loc)


_RULE_NAMES = {
    Pattern.ELEMENTWISE: "elementwise over common axes",
    Pattern.REDUCE: "reduction over the producer's axes",
    Pattern.TAKE: "index computed in place",
    Pattern.JOIN: "pieces read in place",
}
