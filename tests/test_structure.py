"""The house rules hold, and each check of them catches what it is there to catch."""

import itertools
import re
from pathlib import Path, PurePosixPath
from types import ModuleType

import pytest

import tofuse
from tests.support import house_rules
from tests.support.house_rules import CHECKS, Check, Source

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_package_keeps_the_rule(check: Check):
    sources = house_rules.read(ROOT / "src" / "tofuse")
    assert sources
    assert [fault for source in sources for fault in check(source)] == []


@pytest.mark.parametrize("folder", ["benchmarks", "suites", "tests"])
def test_sizes_hold_outside_the_package_too(folder: str):
    sources = house_rules.read(ROOT / folder)
    assert [fault for source in sources for fault in house_rules.sizes(source)] == []


def test_all_is_what_is_importable():
    public = {
        name
        for name, value in vars(tofuse).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    dunders = {name for name in tofuse.__all__ if name.startswith("_")}
    assert set(tofuse.__all__) == public | dunders
    assert len(tofuse.__all__) == len(set(tofuse.__all__))
    assert all(name in vars(tofuse) for name in dunders)


def long_function(lines: int) -> str:
    return "def f():\n" + "    pass\n" * (lines - 1)


BAD: tuple[tuple[Check, str, str], ...] = (
    (house_rules.import_law, "passes/cse.py", "from tofuse.fusion import partition"),
    (house_rules.import_law, "passes/cse.py", "from tofuse import fusion"),
    (house_rules.import_law, "passes/cse.py", "from ..fusion import partition"),
    (house_rules.import_law, "passes/cse.py", "from .. import runtime"),
    (house_rules.import_law, "passes/cse.py", "import tofuse.driver.pipeline"),
    (house_rules.import_law, "passes/cse.py", "import tofuse"),
    (house_rules.import_law, "report/html.py", "def f():\n    import tofuse.plan.build"),
    (house_rules.import_law, "ir/graph.py", "from tofuse.ops import table"),
    (
        house_rules.import_law,
        "analysis/footprint.py",
        "from tofuse.graph_partition import Partition",
    ),
    (house_rules.import_law, "ops/table.py", "from tofuse.driver.pipeline import compile_graph"),
    (house_rules.import_law, "driver/pipeline.py", "from tofuse.api import compile"),
    (house_rules.import_law, "config.py", "from tofuse.ir.graph import Graph"),
    (house_rules.import_law, "errors.py", "import tofuse.ir.graph"),
    (house_rules.import_law, "utils/misc.py", "x = 1"),
    (house_rules.import_law, "api.py", "from tofuse.utils import misc"),
    (house_rules.import_law, "capture/lower/call.py", "from tofuse.capture.joint import mincut"),
    (house_rules.import_law, "capture/trace/traced.py", "import tofuse.capture.dynamo.legality"),
    (
        house_rules.import_law,
        "fusion/lower/axes.py",
        "from tofuse.fusion.views import materialize_views",
    ),
    (house_rules.import_law, "plan/build.py", "from tofuse.backends.cpu.runtime.pool import POOL"),
    (house_rules.import_law, "runtime/execute.py", "from tofuse.plan.build import build_plan"),
    (house_rules.import_law, "cost/machine.py", "from tofuse.cache.programs import Programs"),
    (house_rules.third_party_fences, "report/text.py", "import torch"),
    (house_rules.third_party_fences, "ir/types.py", "from torch import Tensor"),
    (house_rules.third_party_fences, "passes/cse.py", "import torch.fx"),
    (house_rules.third_party_fences, "ops/shapes.py", "import torch"),
    (house_rules.third_party_fences, "runtime/jit.py", "import llvmlite.binding"),
    (house_rules.third_party_fences, "backends/cpu/llvm/emit.py", "import triton.language as tl"),
    (house_rules.third_party_fences, "backends/cuda/triton/load.py", "from llvmlite import ir"),
    (house_rules.no_lazy_imports, "api.py", "def f():\n    import json"),
    (house_rules.no_lazy_imports, "api.py", "class A:\n  def f(self):\n    from tofuse import ir"),
    (house_rules.no_lazy_imports, "api.py", "async def f():\n    import json"),
    (house_rules.environment_only_in_config, "api.py", "import os\nx = os.environ['X']"),
    (house_rules.environment_only_in_config, "api.py", "import os\nx = os.getenv('X')"),
    (house_rules.environment_only_in_config, "api.py", "from os import environ"),
    (house_rules.steering_numbers_in_cost, "passes/cse.py", "MAX_OPS = 3"),
    (house_rules.steering_numbers_in_cost, "plan/arena.py", "A, B = 1, 1 << 20"),
    (house_rules.steering_numbers_in_cost, "fusion/concat/guards.py", "C: float = -0.5"),
    (house_rules.honest_types, "api.py", "def f(x: Any): ..."),
    (house_rules.honest_types, "api.py", "import typing\nx: typing.Any = 1"),
    (house_rules.honest_types, "api.py", "from typing import Any"),
    (house_rules.honest_types, "api.py", "y = hasattr(x, 'z')"),
    (house_rules.honest_types, "api.py", "x: dict[str, object] = {}"),
    (house_rules.torch_internals_alone, "api.py", "import torch._dynamo"),
    (house_rules.torch_internals_alone, "api.py", "from torch._C import _nn"),
    (house_rules.torch_internals_alone, "api.py", "from torch import _dynamo"),
    (house_rules.torch_internals_alone, "api.py", "import torch\nx = torch._C._nn.gelu"),
    (house_rules.torch_internals_alone, "api.py", "import torch.nn as nn\nx = nn.Linear._name"),
    (house_rules.torch_internals_alone, "api.py", "from torch import Tensor\nx = Tensor._is_view"),
    (house_rules.torch_internals_alone, "api.py", "def f(x): return x.y._version"),
    (house_rules.torch_internals_alone, "api.py", "def f(x): return getattr(x, '_schema')"),
    (house_rules.sizes, "api.py", "x = 1\n" * 401),
    (house_rules.sizes, "ir/__init__.py", "x = 1\n" * 41),
    (house_rules.sizes, "api.py", long_function(61)),
    (house_rules.opening_sentence, "api.py", "x = 1"),
)

GOOD: tuple[tuple[Check, str, str], ...] = (
    (house_rules.import_law, "passes/cse.py", "from tofuse.ir.graph import Graph"),
    (house_rules.import_law, "passes/cse.py", "from tofuse.passes.dead_code import dead_code"),
    (house_rules.import_law, "passes/cse.py", "from . import dead_code\nfrom ..errors import E"),
    (
        house_rules.import_law,
        "driver/pipeline.py",
        "from tofuse.capture import dynamo\nimport json",
    ),
    (house_rules.import_law, "__init__.py", "from tofuse.api import compile"),
    (house_rules.third_party_fences, "ops/reference.py", "import torch"),
    (house_rules.third_party_fences, "backends/aten/calls.py", "from torch import Tensor"),
    (
        house_rules.no_lazy_imports,
        "backends/cpu/llvm/load.py",
        "def f():\n    import llvmlite.binding",
    ),
    (house_rules.environment_only_in_config, "config.py", "import os\nx = os.environ"),
    (house_rules.steering_numbers_in_cost, "passes/cse.py", "RULES = ('a',)\nx = 1"),
    (
        house_rules.steering_numbers_in_cost,
        "backends/cpu/schedule/scratch.py",
        "PHILOX_KEY_WORDS = 3",
    ),
    (house_rules.honest_types, "api.py", "x: dict[str, int] = {}\ny = any(x)"),
    (house_rules.torch_internals_alone, "torch_internals/memory.py", "import torch._dynamo"),
    (house_rules.torch_internals_alone, "api.py", "import torch\nx = torch.ops.aten._softmax"),
    (house_rules.torch_internals_alone, "api.py", "import torch\nx = torch.__version__"),
    (house_rules.torch_internals_alone, "api.py", "def f(x): return x._name"),
    (house_rules.sizes, "api.py", "x = 1\n" * 400),
    (house_rules.sizes, "api.py", long_function(60)),
    (house_rules.opening_sentence, "api.py", '"""Compile."""'),
)


@pytest.mark.parametrize(("check", "path", "text"), BAD)
def test_the_check_catches(check: Check, path: str, text: str):
    assert list(check(Source(PurePosixPath(path), text)))


@pytest.mark.parametrize(("check", "path", "text"), GOOD)
def test_the_check_lets_pass(check: Check, path: str, text: str):
    assert list(check(Source(PurePosixPath(path), text))) == []


def test_no_two_modules_have_one_name():
    paths = [s.path for s in house_rules.read(ROOT / "src" / "tofuse")]
    names: dict[str, list[PurePosixPath]] = {}
    for path in (p for p in paths if p.name != "__init__.py"):
        names.setdefault(path.stem, []).append(path)
    twice = [found for found in names.values() if len(found) > 1]
    assert [found for found in twice if not any(map(is_family(found), FAMILIES))] == []


FAMILIES = ("backends/*/*.py", "backends/*/*/*.py")  # folders of one layout: one a target


def is_family(paths: list[PurePosixPath]):
    return lambda pattern: all(path.match(pattern) for path in paths)


def test_tests_mirror_the_package():
    package = {s.path for s in house_rules.read(ROOT / "src" / "tofuse")}
    folders = {path.parent for path in package}
    tests = [p.relative_to(ROOT / "tests") for p in (ROOT / "tests").rglob("test_*.py")]
    strays = [
        path
        for path in map(PurePosixPath, tests)
        if path.parts[0] not in OF_THE_WHOLE and len(path.parts) > 1
        if not names_a_module(path, package) and not names_a_folder(path, folders)
    ]
    assert strays == []


def names_a_module(test: PurePosixPath, package: set[PurePosixPath]) -> bool:
    return test.with_name(test.name.removeprefix("test_")) in package


def names_a_folder(test: PurePosixPath, folders: set[PurePosixPath]) -> bool:
    """`passes/test_passes.py` tests all of `passes/`."""
    name = test.stem.removeprefix("test_")
    return test.parent / name in folders or (test.parent in folders and test.parent.name == name)


OF_THE_WHOLE = ("behavior", "benchmarks", "models", "regressions", "suites", "support")


def test_design_shows_the_import_law():
    lines = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").splitlines()
    start = lines.index("| room | answers |") + 2
    rows = [line.split("|")[1] for line in itertools.takewhile(bool, lines[start:])]
    assert [tuple(re.findall("`(.+?)`", row)) for row in rows] == list(house_rules.ROOMS)


@pytest.mark.parametrize(
    "document",
    ["docs/design.md", "docs/measurements.md", "docs/where-to-look.md", "CONTRIBUTING.md"],
)
def test_documents_name_files_that_exist(document: str):
    text = (ROOT / document).read_text(encoding="utf-8")
    paths = re.findall(r"`([\w./]+\.py)`", text)
    known = [p.as_posix() for p in (ROOT / "src" / "tofuse").rglob("*.py")]
    known += [p.as_posix() for f in ("suites", "tests") for p in (ROOT / f).rglob("*.py")]
    assert paths
    assert [p for p in paths if not any(k.endswith(f"/{p}") for k in known)] == []


def test_every_threshold_names_its_measurement():
    """Each line of `cost/thresholds.py` ends with a section of measurements.md or says none."""
    thresholds = (ROOT / "src" / "tofuse" / "cost" / "thresholds.py").read_text("utf-8")
    measurements = (ROOT / "docs" / "measurements.md").read_text("utf-8")
    titles = re.findall("^### (.+)$", measurements, re.MULTILINE)
    sources = {"not measured", *(f'"{title}"' for title in titles)}
    numbers = re.findall("^[A-Z_, ]+ = .*$", thresholds, re.MULTILINE)
    assert numbers
    assert [n for n in numbers if n.rpartition(": ")[2] not in sources] == []


def test_every_check_has_a_counter_example():
    assert {check for check, _, _ in BAD} == set(CHECKS)
