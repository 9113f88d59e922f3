"""Calibration: measured costs are plausible, stored on disk, and ignored if damaged."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tofuse
from tofuse.backends.llvm.load import host_target
from tofuse.config import Config
from tofuse.cost import machine_source
from tofuse.cost.machine import (
    Machine,
    default_machine,
    parse_machine,
)
from tofuse.disk_store import Store, store_of
from tofuse.driver import calibration
from tofuse.errors import OptionError, ParseError
from tofuse.runtime.launch import thread_count

TARGET = host_target(thread_count())


@pytest.fixture(scope="module")
def measured() -> Machine:
    return calibration.measure()


def test_measured_costs_are_plausible(measured):
    assert measured.threads == TARGET.threads and measured.lanes == TARGET.lanes
    assert 0.2 < measured.launch_us < 200 and 0.2 < measured.call_us < 200
    ns = measured.ns
    assert 1e-4 < ns["cheap"] < ns["exp"] < 10 and ns["cheap"] <= ns["divide"]
    assert ns["exp"] < ns["pow"] and ns["load"] < ns["gather"]
    assert 0.5 < measured.core_rate <= measured.memory_rate < 10_000
    assert measured.l3_rate <= measured.shared_rate
    assert 0.1 < measured.flops < 10_000 and 0.01 < measured.half_flops < 100_000


def test_a_machine_prints_and_parses():
    machine = default_machine(7, 8)
    assert parse_machine(str(machine)) == machine == parse_machine(str(machine))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: m.pop("threads"), "missing or unknown entries.*threads"),
        (lambda m: m.update(speed=3), "missing or unknown entries.*speed"),
        (lambda m: m.update(launch_us=-1), "launch_us must be a positive number, not -1"),
        (lambda m: m.update(launch_us=float("nan")), "positive number"),
        (lambda m: m.update(threads=2.5), "threads must be a positive number"),
        (lambda m: m.update(l2_rate=True), "l2_rate must be a positive number"),
        (lambda m: m["ns"].pop("exp"), "ns must have exactly"),
        (lambda m: m["ns"].update(exp="fast"), "ns of exp"),
        (lambda m: m.update(ns=[1]), "ns an object"),
    ],
)
def test_an_invalid_machine_raises_with_the_reason(change, why):
    content = json.loads(str(default_machine(2, 16)))
    change(content)
    with pytest.raises(ParseError, match=why):
        parse_machine(json.dumps(content))


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_text_that_is_no_machine_raises(text):
    with pytest.raises(ParseError, match="the JSON text of a machine"):
        parse_machine(text)


def test_another_process_reads_the_stored_machine(tmp_path, measured):
    machine = replace(measured, launch_us=123.5)
    machine_source.store_machine(machine, TARGET, Config(cache_dir=tmp_path))
    assert machine_source.measured_machine(TARGET, Config(cache_dir=tmp_path)).launch_us == 123.5
    script = (
        f"import torch, tofuse; torch.set_num_threads({TARGET.threads}); "
        f"r = tofuse.explain(lambda x: x.sin() + 1, cache_dir={str(tmp_path)!r})(torch.randn(3)); "
        "print(r.regions[0].predicted_us)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 123.5 < float(run.stdout) < 130


def damage(path: Path, how: str) -> None:
    content = json.loads(path.read_text())
    if how == "cut":
        path.write_text(path.read_text()[:-40])
    elif how == "empty":
        path.write_text("")
    elif how == "changed":
        content["text"] = content["text"].replace("7.25", "9.25")
        path.write_text(json.dumps(content))
    elif how == "foreign":
        content["key"][0] = "another processor"
        path.write_text(json.dumps(content))
    elif how == "binary":
        path.write_bytes(b"\xff\x00\xfe")


@pytest.mark.parametrize("how", ["cut", "empty", "changed", "foreign", "binary"])
def test_a_damaged_or_foreign_file_is_ignored(tmp_path, how):
    config = Config(cache_dir=tmp_path)
    machine_source.store_machine(replace(Machine(), launch_us=7.25), TARGET, config)
    (path,) = tmp_path.rglob("*.json")
    damage(path, how)
    assert machine_source.measured_machine(TARGET, config) == machine_source.assumed_machine(
        TARGET, config
    )


def test_a_machine_with_another_thread_count_is_ignored(tmp_path):
    config = Config(cache_dir=tmp_path)
    wrong = default_machine(TARGET.threads + 1, TARGET.lanes)
    store_of(config).put("machine", machine_source._key(TARGET), str(wrong))
    measured = machine_source.measured_machine(TARGET, config)
    assert measured == machine_source.assumed_machine(TARGET, config)


def test_an_unwritable_folder_is_no_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    store = Store(tmp_path / "file")
    store.put("kind", ("key",), "text")
    assert store.get("kind", ("key",)) is None


def test_store_replaces_drops_and_separates_kinds(tmp_path):
    store = Store(tmp_path)
    store.put("a", ("key",), "first")
    store.put("b", ("key",), "other")
    store.put("a", ("key",), "second")
    assert (store.get("a", ("key",)), store.get("b", ("key",))) == ("second", "other")
    store.drop("a", ("key",))
    assert store.get("a", ("key",)) is None
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".json"]


def test_option_overrides_measured_costs(tmp_path, monkeypatch, fresh_dynamo):
    path = tmp_path / "machine.json"
    path.write_text(str(replace(Machine(), launch_us=1000.0)))
    report = tofuse.explain(lambda x: x.sin(), machine=str(path))(torch.randn(3))
    assert report.regions[0].predicted_us > 1000
    monkeypatch.setenv("TOFUSE_MACHINE", str(path))
    report = tofuse.explain(lambda x: x.cos())(torch.randn(3))
    assert report.regions[0].predicted_us > 1000
    path.write_text("{}")
    with pytest.raises(OptionError, match=r"machine=.*is not a file of machine costs.*calibrate"):
        tofuse.compile(torch.sin, machine=str(path))


def test_verdicts_do_not_depend_on_measured_costs(tmp_path, fresh_dynamo):
    def f(x, w):
        return (x * torch.erf(w)).softmax(-1)

    x, w = torch.randn(300, 256), torch.randn(256)
    before = tofuse.explain(f, cache_dir=tmp_path)(x, w)
    slow = replace(Machine(), threads=TARGET.threads, lanes=TARGET.lanes, launch_us=1e6)
    machine_source.store_machine(slow, TARGET, Config(cache_dir=tmp_path))
    after = tofuse.explain(f, cache_dir=tmp_path)(x, w)
    assert after.verdicts == before.verdicts
    assert after.regions[0].predicted_us > 1e5 > before.regions[0].predicted_us
