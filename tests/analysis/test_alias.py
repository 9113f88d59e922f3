"""Alias analysis agrees with the storages of eager's tensors on random programs of views."""

import pytest
import torch

from tests.support.view_programs import random_view_program
from tofuse.analysis.alias import AliasAnalysis
from tofuse.ir.graph import Graph, Value, show_graph
from tofuse.ir.parse_graph import parse_graph
from tofuse.ops.check_graph import check_graph

PROGRAMS, CHUNKS = 10_000, 10


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_programs_agree_with_eager(chunk):
    for seed in range(chunk, PROGRAMS, CHUNKS):
        graph, tensors = random_view_program(seed)
        try:
            check_graph(graph)
            check_against_eager(graph, tensors)
        except Exception as error:
            raise AssertionError(f"seed {seed}:\n{show_graph(graph)}") from error


def check_against_eager(graph: Graph, tensors: dict[Value, torch.Tensor]) -> None:
    aliases = AliasAnalysis(graph)
    storages = {v: t.untyped_storage().data_ptr() for v, t in tensors.items()}
    owners = {v: aliases.owner(v) for v in tensors}
    for v, t in tensors.items():
        # may-alias holds: tensors of one storage have one owner
        sharing = {owners[u] for u in tensors if storages[u] == storages[v]}
        assert len(sharing) == 1, f"{v.name} shares memory with a value of another owner"
        assert owners[v] == aliases.view_chain(v)[-1]
        # exact views are exact
        memref = aliases.memrefs.get(v)
        if memref is None:
            producer = aliases.producers[v]
            source = producer.inputs[0]
            copied = producer.kind == "reshape" and storages[source] != storages[v]
            assert copied or source not in aliases.memrefs, f"{v.name} is a strided view"
        else:
            root = tensors[memref.root]
            assert storages[memref.root] == storages[v]
            assert memref.offset == t.storage_offset() - root.storage_offset()
            strides = zip(t.shape, memref.strides, t.stride(), strict=True)
            assert all(extent == 1 or ours == eager for extent, ours, eager in strides)
    outputs = [v for v in graph.outputs if v is not None]
    assert aliases.returned == {owners[v] for v in outputs}
    for v in outputs:  # the caller sees an output and the values whose memory it lies in
        assert {v, *aliases.view_chain(v)} <= aliases.escaping <= aliases.possibly_returned
    for op in graph.ops:
        if op.kind == "opaque":
            assert set(op.inputs) <= aliases.read_by_library <= aliases.fixed_strides


def test_a_slice_of_no_elements_begins_where_its_source_does():
    """The strides of no elements are those of row-major memory, whatever they were before."""
    graph = parse_graph("""forward(x: f32[0,3,4,2]) {
      a = slice(x, start=(0, 0, 0, 1), shape=(0, 3, 4, 1), step=(1, 1, 1, 1)) : f32[0,3,4,1]
      b = reshape(a, shape=(0, 3, 4)) : f32[0,3,4]
      c = slice(b, start=(0, 0, 3), shape=(0, 3, 1), step=(1, 1, 1)) : f32[0,3,1]
      return c
    }""")
    assert [m.offset for m in AliasAnalysis(graph).memrefs.values()] == [0, 0, 0, 0]
