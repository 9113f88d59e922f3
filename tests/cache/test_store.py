"""The store returns complete entries of the same user only, and limits its size."""

import json
import os

import pytest

from tofuse.cache.store import Store

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
