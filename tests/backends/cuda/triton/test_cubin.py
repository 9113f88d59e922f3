"""Reading the machine code of kernels: a disassembly, and kernels that are compiled here."""

import importlib.util

import pytest

from suites.gpu.machine_code import MachineCode, parse_disassembly, read_machine_code
from tests.support.kernels import kernel
from tests.support.tilings import parse_tiling_choice
from tofuse.backends.cuda.schedule.build_tiles import build_tiles
from tofuse.backends.cuda.triton.cubin import read_register_usage
from tofuse.backends.cuda.triton.emit import emit, launch_parameters
from tofuse.backends.cuda.triton.load import LaunchSpec, TritonModule
from tofuse.errors import CompileError
from tofuse.ir.tile import GpuTarget

has_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)
LOOP = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0020*/              @!P0 BRA `(.L_x_1) ;
.L_x_0:
        /*0030*/                   LDG.E.128 R8, desc[UR16][R2.64] ;
        /*0040*/              @!P1 LDG.E.U16 R9, desc[UR16][R2.64+0x2] ;
        /*0050*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0060*/                   STL.64 [R1+0x8], R4 ;
        /*0070*/               @P3 BRA `(.L_x_0) ;
.L_x_1:
        /*0080*/                   LDL R4, [R1] ;
        /*0090*/                   STG.E desc[UR16][R2.64], R40 ;
        /*00a0*/                   EXIT ;
.L_x_2:
        /*00b0*/                   BRA `(.L_x_2);
"""


SUMS = """kernel k(x: in f32, y: out f32) over i0:64 i1:16384 {
  v0 = load x[(16384)*i0 + i1] : f32
  v1 = reduce sum<i1> v0 : f32
  v2 = sub v0 v1 of f32 : f32
  store y[(16384)*i0 + i1] v2 : f32
}"""


def test_reading_a_disassembly():
    found = parse_disassembly(LOOP, registers=40, stack=16)
    assert found == MachineCode(registers=40, stack=16, local=12, accesses=3, wide=1, barriers=1)


@has_triton
def test_rows_in_too_few_registers_have_a_stack():
    used = {}
    for warps in (1, 32):
        choice = parse_tiling_choice(f"grid i0/1; whole i1/16384; warps {warps}")
        program = build_tiles(kernel(SUMS), GpuTarget(), choice=choice)
        parameters = tuple(launch_parameters(program.nests[0]))
        module = TritonModule(emit(program), [LaunchSpec(parameters, warps)], 90)
        code = module.binary(0, (True,) * (len(parameters) - 1)).code
        used[warps] = read_register_usage(code)
        whole = read_machine_code(code)
        assert (whole.registers, whole.stack) == (used[warps].registers, used[warps].stack)
    assert used[32].registers <= 64 and used[32].stack == 0
    assert used[1].registers <= 255 and used[1].stack > 1024


@has_triton
def test_other_bytes_are_an_error():
    with pytest.raises(CompileError, match="cuobjdump"):
        read_register_usage(b"no machine code")
