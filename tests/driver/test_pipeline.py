"""Random graphs through the whole compiler: results equal the reference's."""

import torch
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from tests.driver.test_codegen import assert_close, is_unstable, outputs, random_inputs
from tests.support.extra_steps import HOST_STEPS
from tests.support.graphs import graphs
from tests.support.numbers import sizes_of
from tofuse.config import Config
from tofuse.driver.compile_graph import compile_text
from tofuse.ir.graph import show_graph
from tofuse.ir.parse_plan import parse_plan
from tofuse.ir.verify_plan import verify_plan

EXAMPLES = 60


@given(st.data())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_compiled(data: st.DataObject):
    graph = data.draw(graphs(extra_steps=HOST_STEPS))
    assume(not is_unstable(graph))
    text = show_graph(graph)
    note(text)
    sizes = dict(sorted(sizes_of(graph).items()))
    inputs = random_inputs(graph, sizes, data.draw(st.integers(0, 3)))
    want = outputs(graph, inputs, sizes)
    compiled = compile_text(text, Config(strict=True, precision="eager"))
    for _ in range(2):  # the second call runs in memory of the first
        got = compiled.run([*(x.clone() for x in inputs.values()), *sizes.values()])
        assert len(got) == len(graph.outputs)
        tensors = [t for t in got if isinstance(t, torch.Tensor)]
        for a, b in zip(tensors, want, strict=True):
            assert_close(a, b, text)
    (report,) = compiled.findings.reports
    plan = report.plan
    assert repr(parse_plan(plan)) == plan
    verify_plan(parse_plan(plan))
