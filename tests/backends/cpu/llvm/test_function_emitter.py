"""The width of addresses in the emitted text and the alignment of spilled vectors."""

import re
from functools import partial

import torch

import tofuse
from tests.support.kernels import kernel
from tofuse.backends.cpu.llvm.emit import EmitOptions, emit
from tofuse.backends.cpu.llvm.machine_code import assembly, object_codes, target_machine
from tofuse.backends.cpu.processors import PROCESSORS
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.backends.cpu.schedule.choose_schedule import choose_schedule
from tofuse.ir.schedule import Target


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


def test_addresses_are_64_bits():
    """With buffers above 2**31 elements, every address is computed in i64, none in i32."""
    k = kernel(
        """kernel k(x: in f32, y: out f32) over i0:3000000 i1:s0 sizes s0 {
          v0 = load x[(s0)*i0 + i1] : f32
          v1 = load x[i0 + (3000000)*i1] : f32
          v2 = add v0 v1 of f32 : f32
          v3 = reduce sum<i1> v2 : f32
          store y[(3000000000)*i0] v3 : f32
        }"""
    )
    for lanes in (1, 16):
        text = emit(build_nest(k, choose_schedule(k, Target(lanes, 2))))
        addresses = re.findall(r"getelementptr [^,]+, (?:ptr|<\d+ x ptr>) %\S+, (.*)", text)
        assert addresses
        for index in addresses:
            assert re.match(r"(i64|<\d+ x i64>) ", index), index
        for a in re.findall(r"= (?:mul|sdiv|srem) (<[^>]*>|\S+) ", text):
            assert "i64" in a or "float" in a


def test_casts_to_integers_are_those_of_the_processor():
    """ARM saturates, x86 returns the least integer; `fptosi` leaves it to LLVM's optimizer."""
    k = kernel(
        """kernel k(x: in f64, y: out i64, z: out u8) over i0:100 {
          v0 = load x[i0] : f64
          v1 = convert v0 of f64 : i64
          v2 = convert v0 of f64 : u8
          store y[i0] v1 : i64
          store z[i0] v2 : u8
        }"""
    )
    for processor in PROCESSORS.values():
        target = processor.target(1)
        saturates = target.saturating_casts
        text = emit(
            build_nest(k, choose_schedule(k, target)), EmitOptions(saturating_casts=saturates)
        )
        casts = [line for line in text.splitlines() if "fptosi" in line and "declare" not in line]
        assert casts and all(("sat" in line) == saturates for line in casts)
        assert object_codes([text], None, 1, partial(target_machine, processor))
