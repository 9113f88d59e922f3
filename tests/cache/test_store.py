"""What is kept on disk: read back whole or not at all, by its own user, within bounds."""

import json
import os

import pytest

from tofuse.cache import store
from tofuse.cache.store import Store

KEY = ("how", "what")


def test_texts_are_kept_by_kind_and_key(tmp_path):
    kept = Store(tmp_path)
    kept.put("code", KEY, "one")
    kept.put("choice", KEY, "two")
    assert Store(tmp_path).get("code", KEY) == "one"
    assert kept.get("choice", KEY) == "two"
    assert kept.get("code", ("how", "another")) is None
    kept.drop("code", KEY)
    assert kept.get("code", KEY) is None


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", "another key", "another text"])
def test_what_is_damaged_is_not_there(tmp_path, damage):
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


@pytest.mark.skipif(os.name != "posix", reason="files have no owners here")
def test_what_others_can_write_is_not_trusted(tmp_path, monkeypatch):
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


def test_the_oldest_are_forgotten_where_there_is_too_much(tmp_path, monkeypatch):
    kept = Store(tmp_path)
    for k in range(10):
        kept.put("code", (str(k),), "x" * 1000)
        os.utime(kept.path("code", (str(k),)), (k, k))
    size = kept.path("code", ("0",)).stat().st_size
    assert kept.get("code", ("3",)) is not None  # read now, so not the oldest
    monkeypatch.setattr(store, "MOST_BYTES", 8 * size)
    store._trim.cache_clear()  # as in a process that starts
    kept.put("code", ("new",), "y")
    left = [k for k in map(str, range(10)) if kept.get("code", (k,)) is not None]
    assert left == ["3", "7", "8", "9"]
    assert kept.get("code", ("new",)) == "y"


def test_a_folder_that_cannot_be_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    kept = Store(tmp_path / "file")
    kept.put("code", KEY, "one")
    assert kept.get("code", KEY) is None
