"""The bench runs its peers in turns, says what came of it, and goes on where one fails."""

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks.bench import memory
from benchmarks.bench.messages import Ready, Turn
from benchmarks.bench.outcome import Figures, Outcome, as_json
from benchmarks.bench.page import write_page
from benchmarks.bench.peers import KEEP_WARM, PEERS, US
from benchmarks.bench.process import WorkerFailed, scratch, started
from benchmarks.bench.table import complaints, line, summary, tables
from benchmarks.bench.worker import predict
from benchmarks.workloads import bars, extra, table
from benchmarks.workloads.base import Workload, leaf
from benchmarks.workloads.catalogue import COPY, GROUPS, MODELS, WORKLOADS, choose, pick

LIGHT = [workload for workload in WORKLOADS if workload.group in ("table", "extra", "sizes")]
MB = 1_000_000


def figures(milliseconds: float, *magnitudes: float) -> Figures:
    rounds = tuple(milliseconds * 1e-3 * x for x in (0.9, 1.0, 5.0))
    return Figures(rounds, compile_s=1.5, memory_bytes=3 * MB, magnitudes=magnitudes or (1.0,))


def outcome(ours: float = 1.0, **others: float) -> Outcome:
    """Of softmax, whose bar is 6, 1.5, and a share of 0.7; the least bytes take 0.75 ms."""
    peers = {name.replace("_", "-"): figures(time) for name, time in others.items()}
    return Outcome(
        workload="softmax",
        group="table",
        judged=True,
        figures={US: figures(ours), **peers},
        failures={},
        least_bytes=75 * MB,
        copy_rate=100e9,
    )


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    js, page = tmp_path / "a" / "bench.json", tmp_path / "b" / "bench.html"
    paths = ["--json", str(js), "--html", str(page)]
    arguments = ["--size", "small", "--only", "softmax", "--peers", "eager", "--repeat", "2"]
    assert command.main([*arguments, *paths]) == 0
    assert "softmax" in capsys.readouterr().out
    (got,) = json.loads(js.read_text())["outcomes"]
    assert got["failures"] == {}
    assert set(got["peers"]) == {US, "eager"}
    assert len(got["peers"]["eager"]["rounds_s"]) == 2
    assert got["ratios"]["eager"] > 0
    assert got["ratios"]["inductor"] is None
    assert got["share_of_copy"] > 0
    assert got["least_bytes"] == 2 * 32 * 97 * 4
    assert "data:image/png;base64," in page.read_text(encoding="utf-8")


def test_a_worker_that_fails_says_why():
    with scratch() as caches, started(PEERS["eager"], "abacus", "small", caches) as worker:
        with pytest.raises(WorkerFailed, match="KeyError: 'abacus'"):
            worker.hear(Ready, 60.0)
        with pytest.raises(WorkerFailed):
            worker.ask(Turn(1), Ready, 60.0)


def test_a_worker_that_dies_is_told_by_its_signal():
    with ExitStack() as stack:
        caches = stack.enter_context(scratch())
        worker = stack.enter_context(started(PEERS["eager"], "softmax", "small", caches))
        worker.process.kill()
        with pytest.raises(WorkerFailed, match="killed by SIGKILL"):
            worker.hear(Ready, 60.0)


@pytest.mark.parametrize("workload", LIGHT, ids=lambda workload: workload.name)
def test_a_workload_steps(workload: Workload):
    case = workload.build("small")
    step = case.drive(case.target)
    first = [x.detach().clone() for x in step.run()]
    least = step.least_bytes()
    assert first
    assert all(x.isfinite().all() for x in first)
    step.run()
    assert step.least_bytes() == least
    assert least is not None and least > 0
    again = workload.build("small")
    if not workload.drawn:
        results = again.drive(again.target).run()
        torch.testing.assert_close([x.detach() for x in results], first)


def test_least_bytes():
    def least(name: str) -> int | None:
        case = pick(name).build("small")
        step = case.drive(case.target)
        step.run()
        return step.least_bytes()

    one = 32 * 97 * 4
    assert least("softmax") == 2 * one
    assert least("softmax_backward") == 5 * one
    assert least("gelu_bookends_kept") == least("gelu_bookends") == 2 * 32 * 33 * 4
    norm, vector = 4 * 16 * 72 * 4, 72 * 4
    assert least("norm_composite") == 8 * norm + 9 * vector
    assert least("swiglu_bf16") == 2 * 8 * 66 * 4
    assert least("bert_inference") is None


def test_bf16_is_the_same_list():
    assert [f"{w.name}_bf16" for w in extra.EXTRA] == [w.name for w in extra.BF16]
    case = pick("swiglu_bf16").build("small")
    assert {x.dtype for x in case.drive(case.target).run()} == {torch.bfloat16}


def test_names_are_unique_and_bars_have_workloads():
    names = [workload.name for workload in (*WORKLOADS, COPY)]
    assert len(set(names)) == len(names)
    assert set(bars.BARS) == {workload.name for workload in table.TABLE}
    assert {workload.group for workload in WORKLOADS} == set(GROUPS)
    assert len(MODELS) == 12


def test_bars_by_kind():
    assert bars.bar_of(pick("bert_training")) == bars.TRAINING
    assert bars.bar_of(pick("bert_inference")) == bars.INFERENCE
    assert bars.bar_of(pick("rope_bf16")) == bars.AS_FAST


def test_choosing():
    assert choose((), ()) == WORKLOADS
    assert [w.name for w in choose(("rope", "softmax"), ())] == ["softmax", "rope"]
    assert {w.group for w in choose((), ("extra", "models"))} == {"extra", "models"}
    assert [w.name for w in choose(("rope*",), ("bf16",))] == ["rope_bf16"]
    with pytest.raises(ValueError, match=r"near it are .*softmax"):
        choose(("softmaxx",), ())


@pytest.mark.parametrize(
    "arguments",
    [["--peers", "eager,abacus"], ["--groups", "abacus"], ["--repeat", "0"], ["--size", "huge"]],
)
def test_wrong_arguments(arguments: list[str]):
    with pytest.raises(SystemExit):
        command.main(arguments)


def test_an_unknown_workload(capsys: pytest.CaptureFixture[str]):
    assert command.main(["--only", "softmaxx"]) == 2
    assert "softmaxx" in capsys.readouterr().err


def test_the_list(capsys: pytest.CaptureFixture[str]):
    assert command.main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(WORKLOADS)


def test_allocators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    stock, warm = (PEERS[n].environment(tmp_path) for n in ("inductor", "inductor-warm"))
    assert not [key for key in stock if key.startswith("MALLOC_")]
    assert {key: warm[key] for key in warm if key.startswith("MALLOC_")} == KEEP_WARM
    assert stock["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tmp_path))


def test_ratios_and_share_take_medians():
    got = outcome(1.0, eager=8.0)
    assert got.ratio("eager") == pytest.approx(8.0)
    assert got.ratio("inductor") is None
    assert got.share == pytest.approx(0.75)


def test_what_is_predicted_stands_beside_our_time(tmp_path: Path):
    told = outcome(1.0, eager=10.0)
    told.figures[US] = replace(told.figures[US], predicted_s=1.25e-3)
    (drawn,) = tables([told], ["eager"])
    headings = [str(column.header) for column in drawn.columns]
    assert headings[1:4] == ["ours ms", "predicted ms", "eager ms"]
    assert "1.25" in str(next(iter(drawn.columns[2].cells)))
    peers = as_json(told)["peers"]
    assert isinstance(peers, dict)
    assert peers[US]["predicted_s"] == 1.25e-3
    assert peers["eager"]["predicted_s"] is None
    write_page([told], ["eager"], "bench", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "predicted ms" in page and "1.25" in page


def test_the_prediction_is_of_all_regions_of_a_step():
    case = pick("softmax_backward").build("small")
    reporting = PEERS[US].reporting
    assert reporting is not None
    compiled, report = reporting(case.target)
    case.drive(compiled).run()
    assert {g.phase for g in report.graphs} == {"forward", "backward"}
    assert predict(reporting, case) == sum(r.predicted_us for r in report.regions) / 1e6 > 0


def test_a_bar_held():
    assert outcome(1.0, inductor=6.0, inductor_warm=1.5).verdict() == "held"
    assert outcome(1.0, inductor=5.996, inductor_warm=1.5).verdict() == "held"  # prints as 6.00


def test_a_bar_missed():
    got = outcome(1.5, inductor=6.0, inductor_warm=3.0)
    assert got.verdict() == "inductor 4.00 < 6; bandwidth 0.50 < 0.7"


def test_what_is_not_judged():
    assert replace(outcome(9.0, inductor=1.0), judged=False).verdict() == ""
    assert replace(outcome(9.0), copy_rate=None).verdict() == ""


def test_wrong_results():
    got = outcome(1.0, eager=1.0)
    far = replace(got, figures={**got.figures, US: figures(1.0, 1.2)})
    assert far.verdict() == "wrong: result 0 has mean magnitude 1.2, eager's 1"
    more = replace(got, figures={**got.figures, US: figures(1.0, 1.0, 2.0)})
    assert more.verdict() == "wrong: 2 results, eager has 1"
    drawn = replace(far, workload="norm_composite")
    assert drawn.sound


def test_a_failure_stands_in_its_cell(tmp_path: Path):
    got = replace(
        outcome(inductor_warm=2.0, eager=2.0),
        failures={"inductor": "InvalidCxxCompiler: no <compiler>"},
    )
    peers = ("eager", "inductor")
    none = replace(got, figures={}, failures=dict.fromkeys((US, *peers), "no luck"))
    assert got.verdict() == "held, inductor not measured"
    assert none.verdict() == "failed"
    assert not none.sound
    assert complaints([got]) == ["softmax, inductor: InvalidCxxCompiler: no <compiler>"]
    assert "inductor failed" in line(got, peers).plain
    assert summary([got, none]) == "0 of 2 held every bar, and 1 every bar that was measured"
    assert len(tables([got, none], peers)) == 1
    page = tmp_path / "page.html"
    write_page([got, none], peers, "title", page)
    assert "no &lt;compiler&gt;" in page.read_text(encoding="utf-8")
    json.dumps([as_json(got), as_json(none)])


def test_memory_grows_by_what_is_held():
    before = memory.start_peak()
    held = torch.ones(40 * MB // 4)
    grown = memory.peak() - before
    assert held.nbytes <= grown < 2 * held.nbytes


def test_a_leaf_requires_a_gradient():
    x = leaf((2, 3), torch.bfloat16)
    assert x.requires_grad
    assert x.is_leaf
