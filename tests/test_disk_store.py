"""The store returns complete entries of the same user only, and limits its size."""

import json
import os
import resource
import shutil
import signal
import warnings
from functools import partial
from pathlib import Path

import pytest

from tofuse.config import user_cache
from tofuse.disk_store import Store

KEY = ("how", "what")


def test_entries_are_stored_by_kind_and_key(tmp_path):
    kept = Store(tmp_path)
    kept.put("code", KEY, "one")
    kept.put("choice", KEY, "two")
    assert Store(tmp_path).get("code", KEY) == "one"
    assert kept.get("choice", KEY) == "two"
    assert kept.get("code", ("how", "another")) is None
    kept.drop("code", KEY)
    assert kept.get("code", KEY) is None


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", "another key", "another text"])
def test_damaged_entries_are_missing(tmp_path, damage):
    kept = Store(tmp_path)
    kept.put("code", KEY, "one")
    path = kept.path("code", KEY)
    if damage.startswith("another"):
        field = damage.split()[1]
        damage = json.dumps(json.loads(path.read_text()) | {field: "two"})
    path.write_text(damage)
    assert kept.get("code", KEY) is None
    kept.put("code", KEY, "three")
    assert kept.get("code", KEY) == "three"


@pytest.mark.skipif(os.name != "posix", reason="needs file owners")
def test_files_that_others_can_write_are_ignored(tmp_path, monkeypatch):
    kept = Store(tmp_path)
    kept.put("code", KEY, "one")
    path = kept.path("code", KEY)
    for mode, trusted in ((0o600, True), (0o644, True), (0o664, False), (0o602, False)):
        path.chmod(mode)
        assert (kept.get("code", KEY) == "one") is trusted
    path.chmod(0o600)
    if os.getuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert kept.get("code", KEY) is None


def test_the_least_recently_read_entries_are_evicted(tmp_path):
    kept = Store(tmp_path)
    for k in range(10):
        kept.put("code", (str(k),), "x" * 1000)
        os.utime(kept.path("code", (str(k),)), (k, k))
    size = kept.path("code", ("0",)).stat().st_size
    assert kept.get("code", ("3",)) is not None  # read now, so not the oldest
    kept = Store(tmp_path, max_bytes=8 * size)
    kept.put("code", ("new",), "y")
    left = [k for k in map(str, range(10)) if kept.get("code", (k,)) is not None]
    assert left == ["3", "7", "8", "9"]
    assert kept.get("code", ("new",)) == "y"


def test_a_folder_that_cannot_be_created_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    kept = Store(tmp_path / "file")
    kept.put("code", KEY, "one")
    assert kept.get("code", KEY) is None


def test_a_flipped_bit_anywhere_never_gives_another_text(tmp_path):
    kept = Store(tmp_path)
    kept.put("code", KEY, "one machine code")
    path = kept.path("code", KEY)
    entry = path.read_bytes()
    for position in range(len(entry)):
        for bit in (1, 4, 32, 128):
            damaged = bytearray(entry)
            damaged[position] ^= bit
            path.write_bytes(damaged)
            assert kept.get("code", KEY) in (None, "one machine code")
        path.write_bytes(entry[:position])
        assert kept.get("code", KEY) is None
    path.write_text("[" * 100_000)
    assert kept.get("code", KEY) is None


def test_a_full_disk_leaves_nothing_behind(tmp_path):
    kept = Store(tmp_path)
    kept.put("code", KEY, "one")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, before[1]))
    try:
        kept.put("code", ("new",), "x" * 1000)
        kept.put("code", KEY, "x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert kept.get("code", ("new",)) is None and kept.get("code", KEY) == "one"
    assert list(kept.path("code", KEY).parent.iterdir()) == [kept.path("code", KEY)]


def test_links_folders_and_devices_in_place_of_entries(tmp_path):
    kept, folder = Store(tmp_path / "link"), tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    kept.put("code", KEY, "one")
    assert kept.get("code", KEY) == "one" and Store(folder).get("code", KEY) == "one"
    path = kept.path("code", KEY)
    for target in ("missing", path.name, "/dev/zero", "/dev/full", "/"):
        path.unlink()
        path.symlink_to(target)
        assert kept.get("code", KEY) is None
        kept.put("code", KEY, "two")
        assert kept.get("code", KEY) == "two"
    path.unlink()
    path.mkdir()
    kept.put("code", KEY, "one")
    assert kept.get("code", KEY) is None
    kept.put("code", ("other",), "three")
    assert kept.get("code", ("other",)) == "three"


def test_a_link_to_nothing_does_not_stop_the_store(tmp_path):
    kept = Store(tmp_path)
    kept.path("code", KEY).parent.mkdir(parents=True)
    (kept.path("code", KEY).parent / "dangling").symlink_to("missing")
    kept.put("code", KEY, "one")
    assert kept.get("code", KEY) == "one"


def test_a_clock_that_jumps(tmp_path):
    """Entries of the future are entries like others, and the limit holds."""
    for k, when in enumerate((0, 1, 1 << 40, 1 << 33, 2)):
        kept = Store(tmp_path, max_bytes=4000 + k)
        kept.put("code", (str(k),), "x" * 1000)
        os.utime(kept.path("code", (str(k),)), (when, when))
    Store(tmp_path, max_bytes=5999).put("code", ("new",), "y")
    left = [k for k in map(str, range(5)) if (tmp_path / kept.path("code", (k,))).exists()]
    assert "2" in left and "0" not in left
    assert kept.get("code", ("new",)) == "y" and kept.get("code", ("2",)) is not None


def test_a_deleted_folder_is_made_again(tmp_path):
    kept = Store(tmp_path / "cache")
    kept.put("code", KEY, "one")
    shutil.rmtree(tmp_path / "cache")
    assert kept.get("code", KEY) is None
    kept.put("code", KEY, "two")
    assert kept.get("code", KEY) == "two"


def in_child(work):
    """Return the process of a fork that calls `work`; a signal that ends it is no error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, on Python 3.12
        child = os.fork()
    if child:
        return child
    try:
        os._exit(0 if work() is not False else 1)
    finally:
        os._exit(2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_killed_writer_leaves_the_old_entry(tmp_path, monkeypatch):
    kept = Store(tmp_path)
    kept.put("code", KEY, "one")

    def write():
        monkeypatch.setattr(Path, "replace", lambda *path: os.kill(os.getpid(), signal.SIGKILL))
        kept.put("code", KEY, "two")

    assert os.WTERMSIG(os.waitpid(in_child(write), 0)[1]) == signal.SIGKILL
    assert kept.get("code", KEY) == "one"
    kept.put("code", KEY, "three")
    assert kept.get("code", KEY) == "three"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_eight_processes_write_read_and_evict(tmp_path):
    """Each text that is found belongs to its key, and the last write of all is found."""

    def work(number):
        for k in range(60):
            kept = Store(tmp_path, max_bytes=20_000 + 100 * k + number)  # evicts in each round
            key = (str((k * number) % 13),)
            kept.put("code", key, f"{key[0]} " * (100 + number))
            found = kept.get("code", key)
            if found is not None and set(found.split()) != {key[0]}:
                return False
        return True

    children = [in_child(partial(work, number)) for number in range(8)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    kept = Store(tmp_path)
    kept.put("code", KEY, "one")
    assert kept.get("code", KEY) == "one"
    assert not [p for p in kept.path("code", KEY).parent.iterdir() if p.suffix != ".json"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_user_without_a_home_has_a_cache(monkeypatch):
    """As in a container that runs as any user: no folder of the name "~" is made."""
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for an unknown user
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    assert user_cache().is_absolute()
