"""Files of exported programs that say something else than was exported: one error, or no change."""

import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import tofuse
from tests.support import mutated_files
from tofuse.backends.cpu.runtime.launch import KernelCode
from tofuse.errors import ProgramFileError
from tofuse.runtime import program_file


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    mutated_files.write(folder)
    return folder


@pytest.mark.broad(1)
@pytest.mark.parametrize("how", mutated_files.CHANGES)
def test_changed_descriptions_are_refused_or_change_nothing(how, folder, request):
    count = 300 if request.config.getoption("--full") else 60
    command = [sys.executable, "-m", "tests.support.mutated_files", how, str(folder), "0"]
    ran = subprocess.run([*command, str(count)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{ran.stdout[-300:]}\n{ran.stderr}"
    assert "'refused'" in ran.stdout


@pytest.mark.broad(1)
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"requires_grad": false', '"requires_grad": 0', "requires_grad is 0, not bool"),
        (r'"keywords": \[\]', '"keywords": [3]', r"program.keywords\[0\] is 3, not str"),
        (r'"keywords": \[\]', '"keys": []', "program is .* not ProgramFile"),
        ('"sizes": {}', '"sizes": {"s": [2]}', r"program.sizes\['s'\] is \[2\], not tuple"),
        ('"elements": [0-9]+', '"elements": "3*"', "elements: line 1, column 1"),
        (r"1\}\) \{", "1} {", r"graphs\[0\].plan: line 1"),
        ('"format": 2', '"format": 1', "has format 1, and this tofuse reads 2"),
        (r'"shape": \[33\], "sha', '"shape": [1, 33], "sha', "the content of .* changed"),
        ('"buffers": ', '"buffers": 1', "describes another program than its avx2 code"),
        (r'"shape": \[6, 16\]', '"shape": [7, 16]', "describes another program"),
    ],
)  # fmt: skip
def test_errors_name_the_place(old, new, message, folder, tmp_path):
    program, tensors = program_file.read_program(folder / "static")
    weights = {x.key: tensors[x.key] for x in program.state}
    text, code = program_file.program_text(program, weights)
    tensors = {**weights, **{k: program_file.code_tensor(c) for k, c in code.items()}}
    assert program_file.program_of_text(text, tensors) == program
    changed, count = re.subn(old, new, text, count=1)
    assert count
    with pytest.raises(ProgramFileError, match=message):
        program_file.program_of_text(changed, tensors)


def test_parts_that_do_not_fit_are_refused_whoever_wrote_them(folder, tmp_path):
    program, tensors = program_file.read_program(folder / "static")
    weights = {x.key: tensors[x.key] for x in program.state}
    code = {}
    for name, c in program.code.items():
        (graph,) = c.graphs
        assert all(isinstance(k, KernelCode) for k in graph.kernels)
        kernels = tuple(
            replace(k, buffers=k.buffers + 1) for k in graph.kernels if isinstance(k, KernelCode)
        )
        code[name] = replace(c, graphs=(replace(graph, kernels=kernels),))
    program_file.save_program(tmp_path / "file", replace(program, code=code), weights)
    with pytest.raises(ProgramFileError, match=r"kernel 0 takes . tensors and 0 sizes"):
        tofuse.load(tmp_path / "file")
    assert isinstance(tofuse.load(folder / "static"), torch.nn.Module)
