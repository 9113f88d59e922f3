"""Relocations of other architectures, which cannot run here: the bits of the instructions."""

import struct
from functools import partial

import pytest

from tofuse.backends.cpu.llvm.link_image import _RELOCATIONS, _STUBS, link_image
from tofuse.backends.cpu.llvm.machine_code import ObjectCode, object_codes, target_machine
from tofuse.backends.cpu.processors import PROCESSORS

TEXT = """
@table = private constant [4 x float] [float 1.0, float 2.0, float 3.0, float 4.0], align 16
declare void @abort()
define i32 @kernel(ptr %c) {
  %x = load <4 x float>, ptr @table
  store <4 x float> %x, ptr %c
  call void @abort()
  ret i32 0
}
"""


def word(code, place):
    return struct.unpack_from("<I", code, place)[0]


def adrp_page(code, place):
    """The page that an `adrp` at this place computes."""
    w = word(code, place)
    pages = (w >> 29 & 3) | (w >> 5 & 0x7FFFF) << 2
    pages -= (pages & 1 << 20) * 2  # the sign
    return place // 4096 + pages


@pytest.mark.parametrize("symbol", [0, 4095, 4096, 123456])
@pytest.mark.parametrize("place", [0, 4092, 81920])
def test_pages_and_low_bits_of_addresses(place, symbol):
    code = bytearray(90000)
    struct.pack_into("<II", code, place, 0x90000010, 0xF9400210)
    _RELOCATIONS["AArch64", 275](code, place, symbol, 16)
    assert adrp_page(code, place) == (symbol + 16) // 4096
    assert word(code, place) & 0x9F00001F == 0x90000010
    for kind, shift in ((277, 0), (285, 2), (286, 3), (299, 4)):
        aligned = symbol >> 4 << 4
        _RELOCATIONS["AArch64", kind](code, place + 4, aligned, 16)
        assert (word(code, place + 4) >> 10 & 0xFFF) << shift == (aligned + 16) % 4096


@pytest.mark.parametrize("distance", [4, -4, 4096, -(1 << 20)])
def test_branches(distance):
    code = bytearray(struct.pack("<I", 0x94000000))
    _RELOCATIONS["AArch64", 283](code, 0, distance, 0)
    words = word(code, 0) & 0x3FFFFFF
    assert (words - (1 << 26) * (words >> 25)) * 4 == distance


def test_stubs_find_their_slots():
    code = bytearray(8192) + _STUBS["AArch64"](8192, 20480)
    assert adrp_page(code, 8192) == 5 and word(code, 8200) == 0xD61F0200  # br x16
    assert _STUBS["x64"](100, 300) == b"\xff\x25" + struct.pack("<i", 194)


@pytest.mark.parametrize("name", PROCESSORS)
def test_an_image_has_the_functions_and_slots_of_its_objects(name):
    codes = object_codes([TEXT, TEXT], None, 2, partial(target_machine, PROCESSORS[name]))
    images = [code.image for code in codes if isinstance(code, ObjectCode)]
    objects = dict(zip(("one", "two"), images, strict=True))
    image = link_image(objects)
    assert {*image.entries} == {"one.kernel", "two.kernel"} and {*image.slots} == {"abort"}
    assert struct.pack("<4f", 1, 2, 3, 4) in image.code
    assert image.code[image.slots["abort"] :] == bytes(8)
