"""What the system tells of caches, and how much of a shared one counts."""

import pytest

from tofuse.cost import host


@pytest.fixture
def told(monkeypatch, tmp_path):
    """A system with these caches (level, type, size) and cores."""

    def tell(cores, *caches):
        for k, (level, kind, size) in enumerate(caches):
            folder = tmp_path / f"index{k}"
            folder.mkdir()
            for name, text in (("level", level), ("type", kind), ("size", size)):
                (folder / name).write_text(f"{text}\n")
        monkeypatch.setattr(host, "CACHES", tmp_path)
        monkeypatch.setattr(host, "_cores", lambda: cores)
        return host.host.__wrapped__()

    return tell


CORE = (1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2048K")


def test_a_few_cores_of_a_large_processor_count_on_their_share(told):
    found = told(2, *CORE, (3, "Unified", "266240K"))
    assert (found.l2_bytes, found.l3_bytes) == (2 << 20, 32 << 20)


def test_a_processor_of_ours_is_as_the_system_tells(told):
    assert told(8, *CORE, (3, "Unified", "96M")).l3_bytes == 96 << 20


def test_without_a_shared_cache_the_second_is_the_last(told):
    assert told(1, *CORE).l3_bytes == 2 << 20


def test_a_system_that_tells_nothing(told):
    assert told(1) == host.Host(told(1).name)


def test_cores_are_those_we_may_run_on():
    assert host._cores() >= 1
