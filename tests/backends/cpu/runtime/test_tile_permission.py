"""The permission for tiles: asked once, and never given for tiles that do not exist."""

import llvmlite.binding as llvm

from tofuse.backends.cpu.llvm.load import host_target
from tofuse.backends.cpu.runtime.tile_permission import request_tiles


def test_permission_follows_the_processor():
    has_tiles = bool(llvm.get_host_cpu_features().get("amx-bf16"))
    assert has_tiles or not host_target(1).bf16_tiles
    assert request_tiles() is request_tiles()
