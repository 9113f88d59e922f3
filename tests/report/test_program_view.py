"""The program of a report: ops, edges, memory samples."""

import pytest
import torch

import tofuse
from tests.support.sample_reports import block, block_arguments
from tofuse.cost.memory_traffic import op_bytes
from tofuse.report.diagram import draw_diagram
from tofuse.report.program_view import ProgramView, op_work, source_line

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def explain_program(f, *args):
    (graph,) = tofuse.explain(f)(*args).graphs
    return ProgramView(graph)


def test_ops_have_regions_and_verdicts_have_edges():
    for graph in tofuse.explain(block)(*block_arguments()).graphs:
        program = ProgramView(graph)
        assert set(program.region_of) == set(program.ops)
        assert {e.verdict for e in program.edges} == set(graph.verdicts)
        for e in program.edges:
            same = program.region_of[e.producer] is program.region_of[e.consumer]
            assert same == e.verdict.fused


def test_op_boxes_lie_inside_region_boxes():
    for graph in tofuse.explain(block)(*block_arguments()).graphs:
        program = ProgramView(graph)
        picture = draw_diagram(program)
        assert len(picture.edges) == len(program.edges)
        for op in program.ops:
            box, around = picture.boxes[op], picture.boxes[program.region_of[op]]
            assert around.x <= box.x and box.x + box.width <= around.x + around.width
            assert around.y < box.y and box.y + box.height < around.y + around.height


def test_edges_skip_views():
    program = explain_program(
        lambda x: (x.sin().t().unsqueeze(0) @ x.cos()).exp(), torch.randn(5, 5)
    )
    through = {e.views for e in program.edges if e.views}
    assert any("permute" in views for views in through)
    assert all(op.kind not in ("permute", "reshape") for op in program.ops)


def test_op_bytes_and_work():
    program = explain_program(lambda x: (x + x) @ x, torch.randn(6, 6))
    add, mm = program.ops
    assert op_bytes(add) == 2 * 6 * 6 * 4 and op_work(add) == 36
    assert op_bytes(mm) == 3 * 6 * 6 * 4 and op_work(mm) == 2 * 6**3


def test_source_lines_have_text():
    program = explain_program(lambda x: x.sin() + 1, torch.randn(3))
    loc = program.ops[0].loc
    assert loc is not None and "x.sin() + 1" in source_line(loc)


def test_locations_exclude_library_code():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    report = tofuse.explain(net)(torch.randn(2, 4))
    assert report.regions and not any(r.locs for r in report.regions)


def test_memory_of_an_elementwise_chain():
    """Op by op, two results are live at a time; in one kernel, only the last result."""
    x = torch.randn(100)
    program = explain_program(lambda x: x.sin().exp().cos(), x)
    assert [m.nbytes for m in program.op_memory()] == [400, 800, 800]
    assert [m.nbytes for m in program.report.live_memory()] == [400]


def test_memory_with_library_calls_and_views():
    def f(x):
        return (x.sin().t() @ x).sum()

    program = explain_program(f, torch.randn(10, 10))
    assert [m.nbytes for m in program.report.live_memory()] == [400, 800, 404]
    assert [m.name for m in program.report.live_memory()] == [
        r.name for r in program.report.regions
    ]
    assert [m.nbytes for m in program.op_memory()] == [400, 800, 404]
