"""Functions of a code, computed once for each code: the bits are those of one number at a time."""

import random
import re

import pytest
import torch

from tests.support.kernels import kernel, run_llvm, schedules
from tofuse.backends.cpu.llvm.emit import EmitOptions, emit
from tofuse.backends.cpu.llvm.machine_code import assembly
from tofuse.backends.cpu.processors import PROCESSORS
from tofuse.backends.cpu.schedule.build_nest import build_nest

WIDE = 16
CODES = {
    "low half": ["c = bitwise_and b 15 of u8 : u8"],
    "high half": ["c = shift_right b 4 of u8 : u8"],
    "two bits": ["c0 = shift_right b 2 of u8 : u8", "c = bitwise_and c0 3 of u8 : u8"],
    "three bits": ["c0 = shift_right b 5 of u8 : u8", "c = bitwise_and c0 7 of u8 : u8"],
    "mask of two pieces": ["c = bitwise_and b 10 of u8 : u8"],
    "more bits than are needed": ["c = bitwise_and b 31 of u8 : u8"],
    "remainder": ["c0 = convert b of u8 : i32", "c = remainder c0 11 of i32 : i32"],
    "wide": ["c0 = convert b of u8 : i64", "c = bitwise_and c0 15 of i64 : i64"],
}
UNARY = ["neg", "abs", "exp", "round_bf16", "round_f16", "sign", "sqrt"]
BINARY = ["add", "sub", "mul", "div", "maximum", "minimum"]


def program(code: str, seed: int, rows: int, columns: int) -> str:
    """Return a kernel of random operations on a code, numbers of a row, constants, and a tensor."""
    choose, lines = random.Random(seed), list(CODES[code])
    dtype = lines[-1].rpartition(" ")[2]
    if choose.random() < 0.5 and dtype != "u8":
        lines.append(f"d = sub c 8 of {dtype} : {dtype}")
    elif choose.random() < 0.5 and dtype == "u8":
        lines += ["e = convert c of u8 : i8", "d = sub e 8 of i8 : i8"]
    (name, _, *_), source = lines[-1].split(" "), lines[-1].rpartition(" ")[2]
    lines.append(f"f = convert {name} of {source} : f32")
    values = ["f"]
    for k in range(choose.randrange(1, 7)):
        last, other = values[-1], choose.choice([*values, "s", "z", "1.5", "-0.25", "s", "z", "x"])
        op = choose.choice([*UNARY, *BINARY, *BINARY])
        operands = last if op in UNARY else f"{last} {other}"
        if op in BINARY and choose.random() < 0.5:
            operands = f"{other} {last}"
        lines.append(f"t{k} = {op} {operands} of f32 : f32")
        values.append(f"t{k}")
        if choose.random() < 0.3:
            test, limit = choose.choice(["lt", "ge", "eq"]), choose.choice([*values, "z", "2.0"])
            lines.append(f"w{k} = {test} t{k} {limit} of f32 : b1")
            lines.append(f"u{k} = where w{k} {choose.choice(values)} {limit} of f32 : f32")
            values.append(f"u{k}")
    body = "\n  ".join(lines)
    return f"""
kernel k(b_: in u8, s_: in f32, z_: in f32, x_: in f32, y: out f32) over n:{rows} j:{columns} {{
  b = load b_[({columns})*n + j] : u8
  s = load s_[n] : f32
  z = load z_[n] : f32
  x = load x_[({columns})*n + j] : f32
  {body}
  store y[({columns})*n + j] {values[-1]} : f32
}}
"""


def live(text: str) -> str:
    """Return a kernel without the loads and the buffers that nothing reads."""
    for name in ("s", "z", "x"):
        if len(re.findall(rf"\b{name}\b", text)) == 1:
            text = re.sub(rf"  {name} = load .*\n", "", text).replace(f"{name}_: in f32, ", "")
    return text


@pytest.mark.broad(8)
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("seed", range(24))
def test_bits_are_those_of_one_number_at_a_time(code, seed):
    rows, columns = 3, random.Random(seed).choice([1, 16, 37, 256, 300])
    made = kernel(live(program(code, seed, rows, columns)))
    codes = torch.arange(rows * columns).remainder(256).to(torch.uint8)
    special = torch.tensor([float("inf"), float("nan"), -0.0, 1e-40, 3e38])
    s, z = (
        special[torch.randint(5, (rows,))] if seed % 3 == 0 else torch.randn(rows) for _ in "sz"
    )
    buffers = {"b_": codes, "s_": s, "z_": z, "x_": torch.randn(rows * columns)}
    buffers = {n: t for n, t in buffers.items() if any(b.name == n for b in made.buffers)}
    buffers["y"] = torch.empty(rows * columns)
    (expected, *_) = (run_llvm(made, x, buffers, {}) for x in schedules(made, lanes=(1,)))
    for schedule in schedules(made, lanes=(8, WIDE)):
        found = run_llvm(made, schedule, buffers, {})
        same = found["y"].view(torch.int32) == expected["y"].view(torch.int32)
        assert bool((same | (found["y"].isnan() & expected["y"].isnan())).all())


@pytest.mark.parametrize(("level", "lanes", "mask"), [("avx512", WIDE, 15), ("avx2", 8, 7)])
def test_scale_and_zero_point_are_applied_to_each_code_once(level, lanes, mask):
    """Of two vectors of codes, no conversion, subtraction or multiplication remains."""
    text = f"""
kernel k(b_: in u8, s_: in f32, z_: in f32, y: out f32) over n:64 j:64 {{
  b = load b_[(64)*n + j] : u8
  s = load s_[n] : f32
  z = load z_[n] : f32
  c = bitwise_and b {mask} of u8 : u8
  f = convert c of u8 : f32
  g = sub f z of f32 : f32
  h = mul g s of f32 : f32
  store y[(64)*n + j] h : f32
}}
"""
    made, options = kernel(text), EmitOptions(native=lanes, avx512=level == "avx512")
    (schedule, *_) = schedules(made, lanes=(lanes,))
    lines = assembly(emit(build_nest(made, schedule), options), PROCESSORS[level])
    counts = {op: len(re.findall(rf"\t{op}\b", lines)) for op in ("vcvtdq2ps", "vsubps", "vmulps")}
    looked_up = len(re.findall(r"\tvperm(?:ps|d)\b", lines))
    assert looked_up >= 2 and counts["vcvtdq2ps"] == 0
    assert counts["vsubps"] + counts["vmulps"] <= 4 < looked_up + 4
    assert not re.search(r"\tvpand[dq]?\t", lines)


@pytest.mark.parametrize("op", ["truncdiv", "remainder", "floordiv", "fmod"])
@pytest.mark.parametrize("divisor", ["plus 1", "minus 8", "minus z"])
def test_codes_that_do_not_occur_are_no_divisors(op, divisor):
    """The codes are below 8; the divisor of one above is 0."""
    change = {"plus 1": "add c 1", "minus 8": "sub c 8", "minus z": "sub c z"}[divisor]
    text = f"""
kernel k(b_: in u8, z_: in i32, s_: in f32, y: out f32) over n:3 j:37 {{
  b = load b_[(37)*n + j] : u8
  z = load z_[n] : i32
  s = load s_[n] : f32
  c0 = bitwise_and b 7 of u8 : u8
  c = convert c0 of u8 : i32
  d = {change} of i32 : i32
  q = {op} 100 d of i32 : i32
  f = convert q of i32 : f32
  h = mul f s of f32 : f32
  store y[(37)*n + j] h : f32
}}
"""
    made = kernel(text)
    buffers = {"b_": torch.randint(0, 256, (111,), dtype=torch.uint8), "s_": torch.rand(3)}
    buffers |= {"z_": torch.tensor([9, 12, -1], dtype=torch.int32), "y": torch.empty(111)}
    (expected, *_) = (run_llvm(made, x, buffers, {}) for x in schedules(made, lanes=(1,)))
    for schedule in schedules(made, lanes=(8, WIDE)):
        assert torch.equal(run_llvm(made, schedule, buffers, {})["y"], expected["y"])


@pytest.mark.parametrize("rounded", [False, True])
def test_what_a_sum_adds_or_a_store_rounds_is_not_looked_up(rounded):
    """An addition is fused with its product; a number that is rounded twice takes longer."""
    last = "t = round_bf16 h of f32 : f32\n  store y[(64)*n + j] t : bf16"
    last = last if rounded else "t = reduce sum<j> h : f32\n  store y[n] t : f32"
    text = f"""
kernel k(b_: in u8, s_: in f32, y: out {"bf16" if rounded else "f32"}) over n:4 j:64 {{
  b = load b_[(64)*n + j] : u8
  s = load s_[n] : f32
  c = bitwise_and b 15 of u8 : u8
  f = convert c of u8 : f32
  h = mul f s of f32 : f32
  {last}
}}
"""
    made = kernel(text)
    for schedule in schedules(made, lanes=(WIDE,)):
        lines = emit(build_nest(made, schedule), EmitOptions(native=WIDE))
        used = re.findall(r"(%\S+) = call \S+ \S+ \S+ @llvm\.x86\.avx512\.permvar", lines)
        assert len(used) <= (4 if rounded else 0)
