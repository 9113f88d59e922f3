"""What each command prints, and its exit code."""

import json
import re
import subprocess
import sys
from contextlib import suppress

import pytest
import torch

from tofuse.cli.main import main
from tofuse.disk_store import Store
from tofuse.driver.diagnose import CHECKS

SCRIPT = """
import torch

def model(x):
    return (x.sin() + x).sum(-1)

def random(x):
    return torch.nn.functional.dropout(x, 0.5)

def scaled(x, *, scale):
    return (x.sin() * scale).sum()

def unlike(x):
    return x + torch.compiler.is_compiling()

inputs = (torch.randn(8, 16, requires_grad=True),)
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    path = tmp_path / "command_script.py"
    path.write_text(SCRIPT)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return str(path)


def test_explain_prints_the_report(script, capsys, tmp_path, fresh_dynamo):
    page, trace = tmp_path / "out" / "report.html", tmp_path / "out" / "trace.json"
    assert main(["explain", script, "--html", str(page), "--trace", str(trace)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("model: ") and "1 kernel" in text
    assert page.read_text().startswith("<!doctype html>")
    assert json.loads(trace.read_text())


def test_explain_prints_json(script, capsys, fresh_dynamo):
    assert main(["explain", script, "--measure", "--json", "-o", "precision=eager"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["kernels"] == 2 and record["calls"]["eager_forward"] > 0
    verdicts = [v for graph in record["graphs"] for v in graph["verdicts"]]
    assert any(v["fused"] and v["line"].endswith("command_script.py:5") for v in verdicts)


def test_a_wrong_option_names_the_nearest(script, capsys):
    assert main(["explain", script, "-o", "precison=eager"]) == 2
    assert "did you mean 'precision'?" in capsys.readouterr().err


@pytest.mark.skipif(
    not hasattr(torch.compiler, "set_default_backend"), reason="torch 2.11 has no default backend"
)
def test_run_makes_tofuse_the_default_backend(tmp_path, capsys, fresh_dynamo, monkeypatch):
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "train.py"
    path.write_text(
        "import sys, torch\n"
        "assert __name__ == '__main__'\n"
        "f = torch.compile(lambda x: (x.sin() + x).cos())\n"
        "f(torch.ones(3))\n"
        "print(torch.compiler.get_default_backend(), sys.argv[1:])\n"
    )
    try:
        assert main(["run", str(path), "--epochs", "3"]) == 0
    finally:
        torch.compiler.set_default_backend(None)
    assert capsys.readouterr().out == "tofuse ['--epochs', '3']\n"


def test_an_unknown_command_names_the_nearest(capsys):
    with pytest.raises(SystemExit):
        main(["explane"])
    assert "did you mean 'explain'?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["cache", "cleer"])
    assert "did you mean 'clear'?" in capsys.readouterr().err


def test_a_reader_that_has_enough_is_no_error(tmp_path):
    command = f"{sys.executable} -m tofuse doctor --json | true"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=300)
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


@pytest.mark.skipif(
    not hasattr(torch.compiler, "set_default_backend"), reason="torch 2.11 has no default backend"
)
@pytest.mark.parametrize("error", ["tofuse.OptionError('own')", "BrokenPipeError('own')"])
def test_an_exception_of_the_script_is_raised(tmp_path, error):
    path = tmp_path / "failing.py"
    path.write_text(f"import tofuse\nraise {error}\n")
    command = [sys.executable, "-m", "tofuse", "run", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "own" in done.stderr and "failing.py" in done.stderr


def test_run_of_a_missing_script(capsys):
    assert main(["run", "absent.py"]) == 2
    assert capsys.readouterr().err == "tofuse run: there is no script 'absent.py'\n"


def test_bench_times_all_contenders(script, capsys, fresh_dynamo):
    assert main(["bench", script, "--peers", "aot_eager", "--calls", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in rows] == ["eager", "tofuse", "aot_eager"]
    assert all(row["forward_us"] > 0 and row["backward_us"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("name", "code", "word"),
    [("model", 0, "as eager"), ("random", 0, "vary in eager"), ("unlike", 1, "differ")],
)
def test_bench_compares_results_that_do_not_vary(script, capsys, fresh_dynamo, name, code, word):
    assert main(["bench", f"{script}:{name}", "--calls", "1"]) == code
    assert word in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--calls", "0"], "--calls must be at least 1, not 0"),
        (["--peers", "inducter"], "no backend 'inducter'; did you mean 'inductor'? It has "),
        (["--peers", "nothing"], "no backend 'nothing'; it has "),
        (["--peers", "eager"], "eager is timed in any case"),
    ],
)
def test_bench_refuses_wrong_words(script, capsys, words, message):
    assert main(["bench", script, *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], ["model.py", "--peers", "nothing"]], ids=str)
def test_bench_lists_all_peers_but_those_for_debugging(capsys, words):
    with suppress(SystemExit):
        main(["bench", *words])
    text = "".join(capsys.readouterr())
    listed = set(re.findall(r"\w+", text))
    assert set(torch.compiler.list_backends()) <= listed and not listed & {"aot_ts", "eager_debug"}


@pytest.mark.parametrize("words", [["explain"], ["bench", "--calls", "1"]], ids=str)
def test_commands_pass_keywords(script, capsys, fresh_dynamo, words):
    words = [words[0], f"{script}:scaled", *words[1:]]
    assert main([*words, "--args", "torch.ones(8), scale=2.0"]) == 0
    assert main([*words, "--args", "torch.ones(8), scael=2.0"]) == 2
    assert "do not fit 'scaled'" in capsys.readouterr().err


def test_doctor_finds_this_machine_in_order(capsys, fresh_dynamo):
    assert main(["doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert len(findings) == len(CHECKS)
    assert not [f for f in findings if f["severity"] == "error"]
    assert all(f["todo"] for f in findings if f["severity"] == "hint")
    assert main(["doctor"]) == 0
    assert torch.__version__ in capsys.readouterr().out


def test_cache_lists_and_clears(capsys, tmp_path):
    store = Store(tmp_path)
    store.put("code", ("a",), "text")
    store.put("program", ("b",), "text")
    other = tmp_path / "mine.txt"
    other.write_text("kept")
    folder = ["--dir", str(tmp_path)]
    assert main(["cache", "ls", *folder]) == 0
    text = capsys.readouterr().out
    assert "machine code" in text and "2 files" in text
    assert main(["cache", "ls", "--json", *folder]) == 0
    kinds = json.loads(capsys.readouterr().out)["kinds"]
    assert [(k["name"], k["entries"]) for k in kinds] == [("code", 1), ("program", 1)]
    assert main(["cache", "clear", *folder]) == 0
    assert capsys.readouterr().out.startswith("deleted 2 files")
    assert store.get("code", ("a",)) is None and other.read_text() == "kept"
    assert main(["cache", "clear", *folder]) == 0
    assert capsys.readouterr().out.startswith("deleted 0 files")
