"""The house rules hold, and each check of them catches what it is there to catch."""

from pathlib import Path, PurePosixPath
from types import ModuleType

import pytest

import tofuse
from tests.support import house
from tests.support.house import CHECKS, Check, Source

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_package_keeps_the_rule(check: Check):
    sources = house.read(ROOT / "src" / "tofuse")
    assert sources
    assert [fault for source in sources for fault in check(source)] == []


@pytest.mark.parametrize("folder", ["benchmarks", "tests"])
def test_sizes_hold_outside_the_package_too(folder: str):
    sources = house.read(ROOT / folder)
    assert [fault for source in sources for fault in house.sizes(source)] == []


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
    (house.import_law, "passes/cse.py", "from tofuse.fusion import partition"),
    (house.import_law, "passes/cse.py", "from tofuse import fusion"),
    (house.import_law, "passes/cse.py", "from ..fusion import partition"),
    (house.import_law, "passes/cse.py", "from .. import runtime"),
    (house.import_law, "passes/cse.py", "import tofuse.pipeline"),
    (house.import_law, "passes/cse.py", "import tofuse"),
    (house.import_law, "report/html.py", "def f():\n    import tofuse.runtime.plan"),
    (house.import_law, "ir/graph.py", "from tofuse.ops import table"),
    (house.import_law, "ops/table.py", "from tofuse.pipeline import compile_graph"),
    (house.import_law, "pipeline.py", "from tofuse.api import compile"),
    (house.import_law, "frontends/definition.py", "from tofuse.api import compile"),
    (house.import_law, "config.py", "from tofuse.ir.graph import Graph"),
    (house.import_law, "errors.py", "import tofuse.ir.graph"),
    (house.import_law, "utils/misc.py", "x = 1"),
    (house.import_law, "api.py", "from tofuse.utils import misc"),
    (house.third_party_fences, "report/text.py", "import torch"),
    (house.third_party_fences, "ir/types.py", "from torch import Tensor"),
    (house.third_party_fences, "passes/cse.py", "import torch.fx"),
    (house.third_party_fences, "ops/shapes.py", "import torch"),
    (house.third_party_fences, "runtime/jit.py", "import llvmlite.binding"),
    (house.third_party_fences, "backends/llvm/emit.py", "import triton.language as tl"),
    (house.third_party_fences, "backends/triton/load.py", "from llvmlite import ir"),
    (house.no_lazy_imports, "api.py", "def f():\n    import json"),
    (house.no_lazy_imports, "api.py", "class A:\n  def f(self):\n    from tofuse import ir"),
    (house.no_lazy_imports, "api.py", "async def f():\n    import json"),
    (house.environment_only_in_config, "api.py", "import os\nx = os.environ['X']"),
    (house.environment_only_in_config, "api.py", "import os\nx = os.getenv('X')"),
    (house.environment_only_in_config, "api.py", "from os import environ"),
    (house.honest_types, "api.py", "def f(x: Any): ..."),
    (house.honest_types, "api.py", "import typing\nx: typing.Any = 1"),
    (house.honest_types, "api.py", "from typing import Any"),
    (house.honest_types, "api.py", "y = hasattr(x, 'z')"),
    (house.honest_types, "api.py", "x: dict[str, object] = {}"),
    (house.sizes, "api.py", "x = 1\n" * 401),
    (house.sizes, "ir/__init__.py", "x = 1\n" * 41),
    (house.sizes, "api.py", long_function(61)),
    (house.opening_sentence, "api.py", "x = 1"),
)

GOOD: tuple[tuple[Check, str, str], ...] = (
    (house.import_law, "passes/cse.py", "from tofuse.ir.graph import Graph"),
    (house.import_law, "passes/cse.py", "from tofuse.passes.dead_code import dead_code"),
    (house.import_law, "passes/cse.py", "from . import dead_code\nfrom ..errors import E"),
    (house.import_law, "pipeline.py", "from tofuse.capture import dynamo\nimport json"),
    (house.import_law, "__init__.py", "from tofuse.api import compile"),
    (house.third_party_fences, "ops/reference.py", "import torch"),
    (house.third_party_fences, "backends/aten/calls.py", "from torch import Tensor"),
    (house.no_lazy_imports, "backends/llvm/load.py", "def f():\n    import llvmlite.binding"),
    (house.environment_only_in_config, "config.py", "import os\nx = os.environ"),
    (house.honest_types, "api.py", "x: dict[str, int] = {}\ny = any(x)"),
    (house.sizes, "api.py", "x = 1\n" * 400),
    (house.sizes, "api.py", long_function(60)),
    (house.opening_sentence, "api.py", '"""Compile."""'),
)


@pytest.mark.parametrize(("check", "path", "text"), BAD)
def test_the_check_catches(check: Check, path: str, text: str):
    assert list(check(Source(PurePosixPath(path), text)))


@pytest.mark.parametrize(("check", "path", "text"), GOOD)
def test_the_check_lets_pass(check: Check, path: str, text: str):
    assert list(check(Source(PurePosixPath(path), text))) == []


def test_every_check_has_a_counter_example():
    assert {check for check, _, _ in BAD} == set(CHECKS)
