"""Vectors that do not stay in registers lie on lines of the cache, whatever the stack lies on."""

import re

import torch

import tofuse
from tofuse.backends.llvm.machine_code import assembly


def many_functions(x):
    return torch.sigmoid(x) * torch.tanh(x) * torch.erf(x) * torch.sin(x)


def test_vectors_on_the_stack_are_aligned():
    (kernel,) = tofuse.explain(many_functions)(torch.randn(512, 512)).kernels
    code = assembly(kernel.source)
    spills = [
        line for line in code.splitlines() if re.search(r"mov.*%[yz]mm\d+, \d*\(%rsp\)", line)
    ]
    assert spills, "the program is too small for its test"
    assert not [line for line in spills if "movup" in line or "movdqu" in line]
    assert re.search(r"and\w*\s+\$-64, %rsp", code)
