"""Cache sizes that the system reports, and the usable part of a shared cache."""

import pytest

from tofuse.cost.host import Host, available_cores, host


@pytest.fixture
def host_with(tmp_path):
    """The host of a system with these cores and caches (level, type, size)."""

    def make(cores, *caches):
        for k, (level, kind, size) in enumerate(caches):
            folder = tmp_path / f"index{k}"
            folder.mkdir()
            for name, text in (("level", level), ("type", kind), ("size", size)):
                (folder / name).write_text(f"{text}\n")
        return host(tmp_path, cores)

    return make


CORE = (1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2048K")


def test_l3_of_a_large_processor_is_limited_per_core(host_with):
    found = host_with(2, *CORE, (3, "Unified", "266240K"))
    assert (found.l2_bytes, found.l3_bytes) == (2 << 20, 32 << 20)


def test_reported_l3_is_used_if_it_is_small_enough(host_with):
    assert host_with(8, *CORE, (3, "Unified", "96M")).l3_bytes == 96 << 20


def test_l3_defaults_to_l2_without_a_shared_cache(host_with):
    assert host_with(1, *CORE).l3_bytes == 2 << 20


def test_unreported_caches_have_default_sizes(host_with):
    assert host_with(1) == Host(host_with(1).name)


def test_core_count_is_positive():
    assert available_cores() >= 1
