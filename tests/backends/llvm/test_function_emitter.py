"""Vectors that are spilled to the stack are aligned to cache lines."""

import re

import torch

import tofuse
from tofuse.backends.llvm.machine_code import assembly


def needs_many_registers(x):
    return torch.sigmoid(x) * torch.tanh(x) * torch.erf(x) * torch.sin(x)


def test_spilled_vectors_are_aligned():
    (kernel,) = tofuse.explain(needs_many_registers)(torch.randn(512, 512)).kernels
    code = assembly(kernel.source)
    spills = [
        line for line in code.splitlines() if re.search(r"mov.*%[yz]mm\d+, \d*\(%rsp\)", line)
    ]
    assert spills, "the program does not spill"
    assert not [line for line in spills if "movup" in line or "movdqu" in line]
    assert re.search(r"and\w*\s+\$-64, %rsp", code)
