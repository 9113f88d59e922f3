"""What is decided for the corpus is what the golden table says; the text of all loops parses."""

import pytest
import torch
import torch.nn.functional as F

from benchmarks.seeds import SEEDS, Seed
from benchmarks.workloads.base import Workload
from benchmarks.workloads.catalogue import WORKLOADS
from tests.support.golden import TABLE, assert_golden
from tests.support.loops_text import assert_complete
from tofuse.config import make_config
from tofuse.driver.compile import compile_reporting

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo", "sixteen_lanes"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
TRAINED = {w.name for w in WORKLOADS if w.name.endswith("_backward")}
CLASSES = [
    w
    for w in WORKLOADS
    if w.group in ("table", "extra") and f"{w.name}_backward" not in TRAINED
    if w.name not in {seed.name for seed in SEEDS}
]


@pytest.fixture
def accept(request):
    return request.config.getoption("--accept")


@pytest.mark.parametrize("seed", SEEDS, ids=lambda s: s.name)
def test_seeds(seed: Seed, accept):
    inputs = seed.make_inputs("small")
    compiled, report = compile_reporting(seed.program, make_config({}))
    outputs = compiled(*inputs)
    if seed.backward:
        assert isinstance(outputs, torch.Tensor)
        outputs.sum().backward()
    assert_golden(seed.name, report, accept)
    for kernel in report.kernels:
        assert_complete(kernel.nest)


@pytest.mark.parametrize("workload", CLASSES, ids=lambda w: w.name)
def test_classes_of_work(workload: Workload, accept):
    case = workload.build("small")
    compiled, report = compile_reporting(case.target, make_config({}))
    case.drive(compiled).run()
    assert_golden(workload.name, report, accept)
    for kernel in report.kernels:
        assert_complete(kernel.nest)


def joined_norm(x, pieces):
    parts = [F.gelu(piece) for piece in x.split(pieces, 1)]
    return F.layer_norm(torch.cat(parts, 1), (x.shape[1],))


@pytest.mark.parametrize("count", [2, 6, 16])
def test_pieces_joined_into_a_norm(count, accept):
    x = torch.randn(32, 16 * count)
    compiled, report = compile_reporting(joined_norm, make_config({}))
    torch.testing.assert_close(compiled(x, 16), joined_norm(x, 16), rtol=1e-4, atol=1e-5)
    assert_golden(f"joined_norm_{count}", report, accept)


def test_every_line_is_of_a_known_program():
    names = {seed.name for seed in SEEDS} | {w.name for w in CLASSES}
    names |= {f"joined_norm_{count}" for count in (2, 6, 16)}
    lines = TABLE.read_text().splitlines()[1:]
    assert lines == sorted(lines)
    assert {line.split()[0] for line in lines if not line.startswith("model_")} == names


ONE_KERNEL = ("gelu", "gelu_bookends", "gelu_bookends_kept", "heads_to_rows", "view_chain")


def test_views_cost_nothing():
    lines = TABLE.read_text().splitlines()[1:]
    for name in ONE_KERNEL:
        found = [line for line in lines if line.split()[0].startswith(name)]
        assert len(found) == (8 if name == "view_chain" else 3 if name == "gelu" else len(found))
        assert all(": 1 kernels 0 calls" in line for line in found), name
    lone = [line for line in lines if line.startswith("lone_")]
    assert len(lone) == 2 and all(": 0 kernels 0 calls" in line for line in lone)
