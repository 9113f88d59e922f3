"""`tofuse opt`: the text cases of all levels below the graph passes, and its errors."""

import io
import shlex
import sys
from pathlib import Path

import pytest
import torch

import tofuse
from tests.support.cases import Case, accept, read_cases
from tofuse.cli.main import main
from tofuse.driver.passes_by_level import (
    LEVELS,
    emit_program,
    parse_program,
    passes_by_level,
    run_passes,
    show_program,
)
from tofuse.ir.line_reader import SEPARATOR
from tofuse.ir.schedule import Target
from tofuse.ir.tile import GpuTarget

TESTS = Path(__file__).parents[1]
COMMAND = "# tofuse opt "
FILES = (
    "fusion/regions.txt",
    "backends/cpu/schedule/loops.txt",
    "backends/cpu/llvm/emit.txt",
    "backends/cuda/triton/emit.txt",
    "plan/memory.txt",
)
CASES = [case for file in FILES for case in read_cases(TESTS / file)]
FIXED = ["--processor", "avx512", "--threads", "2"]  # unless a case says otherwise

KERNEL = """\
kernel k(x: in f32, y: out f32) over i0:64 {
  v0 = load x[i0] : f32
  store y[i0] v0 : f32
}"""
GRAPH = "graph(x: f32[4]) {\n  v0 = neg(x) : f32[4]\n  return x\n}"


@pytest.fixture
def opt(monkeypatch, capsys):
    """Run `tofuse opt` on standard input; return its exit code, output and errors."""

    def run(text: str, *words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        code = main(["opt", *words])
        done = capsys.readouterr()
        return code, done.out.rstrip("\n"), done.err.rstrip("\n")

    return run


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.file.parent.name}/{c}")
def test_case(case: Case, opt, request: pytest.FixtureRequest):
    head, _, text = case.before.partition("\n")
    assert head.startswith(COMMAND)
    words = shlex.split(head.removeprefix(COMMAND))
    code, output, errors = opt(text, *FIXED, *words)
    assert (code == 0) == (errors == "")
    found = output or errors
    if request.config.getoption("--accept"):
        accept(case, found)
    else:
        assert found == case.after
    if code == 0 and "--emit" not in words:
        assert opt(found) == (0, found, "")


def test_text_without_passes_is_printed_again(opt):
    assert opt(f"# a comment\n\n{KERNEL}\n") == (0, KERNEL, "")


def test_several_programs_in_one_file(opt, tmp_path):
    path = tmp_path / "programs.txt"
    path.write_text(f"{GRAPH}\n{SEPARATOR}\n{GRAPH}\n")
    done = "graph(x: f32[4]) {\n  return x\n}"
    assert opt("", "-p", "dead_code", str(path)) == (0, f"{done}\n{SEPARATOR}\n{done}", "")
    path.write_text(f"{GRAPH}\n{SEPARATOR}\n{KERNEL.replace('f32', 'q8', 1)}\n")
    code, _, errors = opt("", str(path))
    assert code == 2
    assert errors.startswith(f"tofuse opt: {path}: line 6, column 16: q8 is not an element type")


def test_stages_of_a_compilation_are_input(opt, tmp_path):
    """The texts that TOFUSE_DUMP writes print and parse, and the loops are emitted as dumped."""

    def program(x, w):
        return torch.softmax((x @ w).relu(), -1), x.exp().sum(0)

    tofuse.compile(program, dump=tmp_path)(torch.randn(64, 300), torch.randn(300, 200))
    texts = {p.stem.rpartition("_")[2]: p.read_text().rstrip("\n") for p in tmp_path.iterdir()}
    source = texts.pop("source")
    assert set(texts) == {"graph", "regions", "loops", "plan"}
    assert texts["loops"].count(SEPARATOR) > 0
    for text in texts.values():
        assert opt(text) == (0, text, "")
    assert opt(texts["loops"], "--emit", "llvm") == (0, source.rstrip("\n"), "")


def test_a_kernel_is_emitted_as_scheduled_by_the_heuristics(opt):
    _, nest, _ = opt(KERNEL, *FIXED, "-p", "unroll_axes,build_nest,prefetch")
    _, code, _ = opt(KERNEL, *FIXED, "--emit", "llvm")
    assert code.startswith("declare") and opt(nest, *FIXED, "--emit", "llvm") == (0, code, "")
    _, tiles, _ = opt(KERNEL, "-p", "build_tiles")
    assert opt(KERNEL, "--emit", "triton") == opt(tiles, "--emit", "triton")


def test_list_names_the_passes_of_each_level(opt):
    code, output, _ = opt("", "--list")
    blocks = dict(block.split(":\n", 1) for block in output.split("\n\n"))
    assert code == 0 and list(blocks) == list(LEVELS.values())
    assert "\n  cse " in blocks["graph"] and "\n  build_nest   Return" in blocks["kernel"]


@pytest.mark.parametrize(
    ("text", "words", "code", "message"),
    [
        (GRAPH, ["-p", "dead_cod"], 2, "no pass 'dead_cod'; did you mean 'dead_code'?"),
        (KERNEL, ["-p", "xyz"], 2, "no pass 'xyz'; the passes over a kernel: coalesce, unroll_"),
        (GRAPH, ["-p", "coalesce"], 2, "coalesce is a pass over a kernel, not a graph; the pass"),
        (GRAPH, ["--emit", "llvm"], 1, "llvm is the code of a kernel or nest, not of a graph"),
        ("", [], 2, "standard input: the text is empty"),
        (KERNEL.replace("i0]", "i9]", 1), [], 2, "line 2, column 15: i9 is neither defined nor"),
        (KERNEL.replace("x: in", "x: out"), [], 1, "x is out, not in"),
        ("", ["absent.txt"], 2, "absent.txt: No such file or directory"),
    ],
)
def test_an_error_is_one_line(opt, text, words, code, message):
    found, output, errors = opt(text, *words)
    assert (found, output) == (code, "")
    assert errors.startswith("tofuse opt: ") and message in errors
    assert errors.count("\n") == 0


def test_every_pass_runs_on_a_program_of_its_level():
    """Passes return programs that print and parse."""
    target, gpu = Target(16, 2), GpuTarget()
    passes = passes_by_level(target, gpu)
    (part,) = run_passes([parse_program(GRAPH.replace("return x", "return v0"))], ["fuse"], passes)
    (kernel,) = run_passes([part], ["lower_regions"], passes)
    (nest,) = run_passes([kernel], ["build_nest"], passes)
    plan = parse_program("plan p(t_x{4}) {\n  return t_x\n}")
    programs = {
        "graph": parse_program(GRAPH),
        "partition": part,
        "kernel": kernel,
        "nest": nest,
        "plan": plan,
    }
    for p in passes:
        for result in run_passes([programs[p.level]], [p.name], passes):
            assert show_program(parse_program(show_program(result))) == show_program(result), p.name
    assert emit_program(kernel, "llvm", target, gpu) == emit_program(nest, "llvm", target, gpu)
