"""The benchmark runs its peers in alternating rounds, and continues after a failure."""

import gc
import json
import mmap
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks.bench import memory
from benchmarks.bench.messages import Ready, TimedSteps
from benchmarks.bench.page import write_page
from benchmarks.bench.peers import KEEP_FREED_MEMORY, OURS, PEERS
from benchmarks.bench.process import WorkerFailed, start_worker, temporary_folder
from benchmarks.bench.result import PeerResult, WorkloadResult, as_json
from benchmarks.bench.table import failure_messages, line, summary, tables
from benchmarks.bench.worker import predict
from benchmarks.workloads import extra, table, targets
from benchmarks.workloads.base import Workload, leaf
from benchmarks.workloads.catalogue import COPY, GROUPS, MODELS, WORKLOADS, choose, pick

WORKLOADS_WITHOUT_MODELS = [
    workload for workload in WORKLOADS if workload.group in ("table", "extra", "sizes")
]
MB = 1_000_000


def peer_result(milliseconds: float, *magnitudes: float) -> PeerResult:
    rounds = tuple(milliseconds * 1e-3 * x for x in (0.9, 1.0, 5.0))
    return PeerResult(rounds, compile_s=1.5, memory_bytes=3 * MB, magnitudes=magnitudes or (1.0,))


def workload_result(ours: float = 1.0, **others: float) -> WorkloadResult:
    """Return results of softmax: targets 6, 1.5 and a share of 0.7, and a minimum of 0.75 ms."""
    peers = {name.replace("_", "-"): peer_result(time) for name, time in others.items()}
    return WorkloadResult(
        workload="softmax",
        group="table",
        has_targets=True,
        peers={OURS: peer_result(ours), **peers},
        failures={},
        min_bytes=75 * MB,
        copy_rate=100e9,
    )


def test_command_writes_json_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    js, page = tmp_path / "a" / "bench.json", tmp_path / "b" / "bench.html"
    paths = ["--json", str(js), "--html", str(page)]
    arguments = ["--size", "small", "--only", "softmax", "--peers", "eager", "--repeat", "2"]
    assert command.main([*arguments, *paths]) == 0
    assert "softmax" in capsys.readouterr().out
    (got,) = json.loads(js.read_text())["results"]
    assert got["failures"] == {}
    assert set(got["peers"]) == {OURS, "eager"}
    assert len(got["peers"]["eager"]["rounds_s"]) == 2
    assert got["ratios"]["eager"] > 0
    assert got["ratios"]["inductor"] is None
    assert got["bandwidth_share"] > 0
    assert got["min_bytes"] == 2 * 32 * 97 * 4
    assert "data:image/png;base64," in page.read_text(encoding="utf-8")


def test_worker_failure_gives_reason():
    with (
        temporary_folder() as caches,
        start_worker(PEERS["eager"], "unknown", "small", caches) as worker,
    ):
        with pytest.raises(WorkerFailed, match="KeyError: 'unknown'"):
            worker.receive(Ready, 60.0)
        with pytest.raises(WorkerFailed):
            worker.ask(TimedSteps(1), Ready, 60.0)


def test_killed_worker_is_reported_by_signal():
    with ExitStack() as stack:
        caches = stack.enter_context(temporary_folder())
        worker = stack.enter_context(start_worker(PEERS["eager"], "softmax", "small", caches))
        worker.process.kill()
        with pytest.raises(WorkerFailed, match="killed by SIGKILL"):
            worker.receive(Ready, 60.0)


@pytest.mark.parametrize("workload", WORKLOADS_WITHOUT_MODELS, ids=lambda workload: workload.name)
def test_workload_step_is_deterministic(workload: Workload):
    case = workload.build("small")
    step = case.drive(case.target)
    first = [x.detach().clone() for x in step.run()]
    least = step.min_bytes()
    assert first
    assert all(x.isfinite().all() for x in first)
    step.run()
    assert step.min_bytes() == least
    assert least is not None and least > 0
    again = workload.build("small")
    if not workload.is_random:
        results = again.drive(again.target).run()
        torch.testing.assert_close([x.detach() for x in results], first)


def test_min_bytes():
    def least(name: str) -> int | None:
        case = pick(name).build("small")
        step = case.drive(case.target)
        step.run()
        return step.min_bytes()

    one = 32 * 97 * 4
    assert least("softmax") == 2 * one
    assert least("softmax_backward") == 5 * one
    assert least("gelu_bookends_kept") == least("gelu_bookends") == 2 * 32 * 33 * 4
    norm, vector = 4 * 16 * 72 * 4, 72 * 4
    assert least("norm_composite") == 8 * norm + 9 * vector
    assert least("swiglu_bf16") == 2 * 8 * 66 * 4
    assert least("bert_inference") is None


def test_bf16_has_the_same_workloads():
    assert [f"{w.name}_bf16" for w in extra.EXTRA] == [w.name for w in extra.BF16]
    case = pick("swiglu_bf16").build("small")
    assert {x.dtype for x in case.drive(case.target).run()} == {torch.bfloat16}


def test_names_are_unique_and_targets_have_workloads():
    names = [workload.name for workload in (*WORKLOADS, COPY)]
    assert len(set(names)) == len(names)
    assert set(targets.TARGETS) == {workload.name for workload in table.TABLE}
    assert {workload.group for workload in WORKLOADS} == set(GROUPS)
    assert len(MODELS) == 12


def test_targets_by_kind():
    assert targets.target_of(pick("bert_training")) == targets.TRAINING
    assert targets.target_of(pick("bert_inference")) == targets.INFERENCE
    assert targets.target_of(pick("rope_bf16")) == targets.AS_FAST_AS_PEERS


def test_choose():
    assert choose((), ()) == WORKLOADS
    assert [w.name for w in choose(("rope", "softmax"), ())] == ["softmax", "rope"]
    assert {w.group for w in choose((), ("extra", "models"))} == {"extra", "models"}
    assert [w.name for w in choose(("rope*",), ("bf16",))] == ["rope_bf16"]
    with pytest.raises(ValueError, match=r"similar names: .*softmax"):
        choose(("softmaxx",), ())


@pytest.mark.parametrize(
    "arguments",
    [["--peers", "eager,unknown"], ["--groups", "unknown"], ["--repeat", "0"], ["--size", "huge"]],
)
def test_wrong_arguments(arguments: list[str]):
    with pytest.raises(SystemExit):
        command.main(arguments)


def test_unknown_workload(capsys: pytest.CaptureFixture[str]):
    assert command.main(["--only", "softmaxx"]) == 2
    assert "softmaxx" in capsys.readouterr().err


def test_list(capsys: pytest.CaptureFixture[str]):
    assert command.main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(WORKLOADS)


def test_allocator_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    stock, warm = (PEERS[n].environment(tmp_path) for n in ("inductor", "inductor-warm"))
    assert not [key for key in stock if key.startswith("MALLOC_")]
    assert {key: warm[key] for key in warm if key.startswith("MALLOC_")} == KEEP_FREED_MEMORY
    assert stock["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tmp_path))


def test_ratios_and_bandwidth_share_use_medians():
    got = workload_result(1.0, eager=8.0)
    assert got.ratio("eager") == pytest.approx(8.0)
    assert got.ratio("inductor") is None
    assert got.bandwidth_share == pytest.approx(0.75)


def test_predicted_time_is_in_table_page_and_json(tmp_path: Path):
    result = workload_result(1.0, eager=10.0)
    result.peers[OURS] = replace(result.peers[OURS], predicted_s=1.25e-3)
    (rich_table,) = tables([result], ["eager"])
    headings = [str(column.header) for column in rich_table.columns]
    assert headings[1:4] == ["ours ms", "predicted ms", "eager ms"]
    assert "1.25" in str(next(iter(rich_table.columns[2].cells)))
    peers = as_json(result)["peers"]
    assert isinstance(peers, dict)
    assert peers[OURS]["predicted_s"] == 1.25e-3
    assert peers["eager"]["predicted_s"] is None
    write_page([result], ["eager"], "bench", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "predicted ms" in page and "1.25" in page


def test_prediction_covers_all_regions_of_a_step():
    case = pick("softmax_backward").build("small")
    compile_with_report = PEERS[OURS].compile_with_report
    assert compile_with_report is not None
    compiled, report = compile_with_report(case.target)
    case.drive(compiled).run()
    assert {g.phase for g in report.graphs} == {"forward", "backward"}
    assert (
        predict(compile_with_report, case) == sum(r.predicted_us for r in report.regions) / 1e6 > 0
    )


def test_targets_met():
    assert workload_result(1.0, inductor=6.0, inductor_warm=1.5).status() == "met"
    assert (
        workload_result(1.0, inductor=5.996, inductor_warm=1.5).status() == "met"
    )  # prints as 6.00


def test_targets_missed():
    got = workload_result(1.5, inductor=6.0, inductor_warm=3.0)
    assert got.status() == "inductor 4.00 < 6; bandwidth 0.50 < 0.7"


def test_status_without_targets():
    assert replace(workload_result(9.0, inductor=1.0), has_targets=False).status() == ""
    assert replace(workload_result(9.0), copy_rate=None).status() == ""


def test_mismatching_results():
    got = workload_result(1.0, eager=1.0)
    different = replace(got, peers={**got.peers, OURS: peer_result(1.0, 1.2)})
    assert different.status() == "wrong: result 0 has mean magnitude 1.2, eager's 1"
    more = replace(got, peers={**got.peers, OURS: peer_result(1.0, 1.0, 2.0)})
    assert more.status() == "wrong: 2 results, eager has 1"
    is_random = replace(different, workload="norm_composite")
    assert is_random.is_correct


def test_failures_in_table_and_page(tmp_path: Path):
    got = replace(
        workload_result(inductor_warm=2.0, eager=2.0),
        failures={"inductor": "InvalidCxxCompiler: no <compiler>"},
    )
    peers = ("eager", "inductor")
    none = replace(got, peers={}, failures=dict.fromkeys((OURS, *peers), "no luck"))
    assert got.status() == "met, inductor not measured"
    assert none.status() == "failed"
    assert not none.is_correct
    assert failure_messages([got]) == ["softmax, inductor: InvalidCxxCompiler: no <compiler>"]
    assert "inductor failed" in line(got, peers).plain
    assert summary([got, none]) == "0 of 2 meet every target, and 1 every target that was measured"
    assert len(tables([got, none], peers)) == 1
    page = tmp_path / "page.html"
    write_page([got, none], peers, "title", page)
    assert "no &lt;compiler&gt;" in page.read_text(encoding="utf-8")
    json.dumps([as_json(got), as_json(none)])


def test_memory_peak_counts_held_tensors():
    """Linux counts resident pages inexactly (proc(5)): of three growths, the largest counts.

    The last page of the tensor may have been resident before, so one page can be missing.
    """
    growths = []
    for _ in range(3):
        gc.collect()  # garbage that is freed meanwhile would count against the tensor
        before = memory.reset_peak()
        held = torch.ones(40 * MB // 4)
        growths.append(memory.peak() - before)
    assert held.nbytes - mmap.PAGESIZE <= max(growths) < 2 * held.nbytes


def test_leaf_requires_grad():
    x = leaf((2, 3), torch.bfloat16)
    assert x.requires_grad
    assert x.is_leaf
