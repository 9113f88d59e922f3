"""Which level a processor has, and which exported code it runs."""

from dataclasses import replace

import pytest

from tofuse.backends.cpu.llvm.load import host_target
from tofuse.backends.cpu.processors import LEVELS, exported_levels, level_of, running_levels


@pytest.mark.parametrize(
    ("features", "arm", "level", "lanes", "native"),
    [
        (("sse2", "avx2", "avx512f"), False, "avx512", 16, 16),
        (("sse2", "avx2"), False, "avx2", 8, 8),
        (("sse2",), False, "sse2", 4, 4),
        ((), False, "scalar", 1, 4),
        ((), True, "neon", 4, 4),
    ],
)
def test_the_level_is_the_best_that_the_features_allow(features, arm, level, lanes, native):
    found = level_of(dict.fromkeys(features, True), arm)
    target = found.target(threads=2)
    assert found.name == level and (target.lanes, target.native_lanes) == (lanes, native)
    assert (target.avx512, target.saturating_casts) == (level == "avx512", arm)


def test_exported_code_of_lower_levels_runs_too():
    assert running_levels("AVX512", arm=False) == ("avx512", "avx2") == exported_levels(arm=False)
    assert running_levels("AVX2", arm=False) == ("avx2",)
    assert running_levels("DEFAULT", arm=False) == ()
    assert running_levels("DEFAULT", arm=True) == ("neon",) == running_levels("SVE256", arm=True)


def test_this_processor_has_a_level():
    options = dict.fromkeys(("fast_gemm", "bf16_dot", "bf16_tiles", "native_f16"), False)
    own = replace(host_target(3), **options)
    assert own in [p.target(3) for p in LEVELS]
