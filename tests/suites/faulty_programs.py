"""The fuzz suite with two executors that are wrong: they compute cosines, and read too far."""

import ctypes

import torch

import tofuse
from suites.fuzz.case import run_case as run_case
from suites.fuzz.program import Input, Program, Statement

OFFSET = {"reads_behind": lambda x: x.nbytes, "reads_before": lambda x: -1}


def reader(offset):
    def run(x):
        ctypes.c_char.from_address(x.data_ptr() + offset(x)).value  # noqa: B018  (reads memory)
        return torch.sinc(x)

    return run


def register():
    tofuse.register_executor("cosine", ops=["aten.sinc"], run=torch.cos)
    for name, offset in OFFSET.items():
        tofuse.register_executor(name, ops=["aten.sinc"], run=reader(offset))


def program(statements, results, *inputs):
    """Return a program for sizes (5, 8)."""
    rows = [Statement(text, scopes) for text, *scopes in statements]
    return Program(1, tuple(Input(*x) for x in inputs), tuple(rows), results, ((5, 8), (1, 16)))


LONG = program(
    [
        ("v0 = x0.t()",),
        ("v1 = torch.exp(-x1.abs())", "torch.enable_grad()"),
        ("v2 = v0 + x1[:1].sum()",),
        ("v3 = torch.sinc(v2)",),
        ("v3.mul_(2)",),
        ("v5 = torch.cat([v3, v3], 0)",),
        ("v6 = v1.sum() + v5.mean()",),
    ],
    ("v1", "v6", "v2"),
    ("x0", "torch.randn((s0, s1, ))", "leaf"),
    ("x1", "(torch.randn((s1 + 1, ))).to(torch.float64)[1:]"),
)

register()
