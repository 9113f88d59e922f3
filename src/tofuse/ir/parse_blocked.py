"""Parse the text form of a blocked contraction: its kernel, its blocks, then its nests."""

from __future__ import annotations

from tofuse.errors import ParseError
from tofuse.ir.blocked import BlockedContraction, BlockProduct, Factor, WorkspaceOffsets
from tofuse.ir.line_reader import END, IndentedLines, LineReader, read_lines, split_block
from tofuse.ir.nest import Nest
from tofuse.ir.parse_kernel import read_kernel
from tofuse.ir.parse_nest import read_nest
from tofuse.ir.parse_schedule import read_blocked_schedule


def parse_blocked(text: str) -> BlockedContraction:
    """Parse the `repr` of a blocked contraction. Raises ParseError, which names the line."""
    kernel_lines, rest = split_block(read_lines(text))
    kernel = read_kernel(kernel_lines)
    if not rest:
        raise ParseError("a blocked contraction is a kernel, then a line 'blocked k: tiles ...'")
    starts = [k for k, line in enumerate(rest) if line.indent == 0 and line.peek() == "kernel"]
    header, lines = rest[0], IndentedLines(rest[1 : starts[0] if starts else len(rest)])
    schedule = read_blocked_schedule(header.expect("blocked").expect(kernel.name).expect(":"))
    block_bytes = header.expect(";").expect("workspace").number()
    offsets = _offsets(header.expect(":"))
    line = lines.next(1, "tile")
    if line is None:
        raise header.error("a line 'tile stride 80' expected after this one")
    tile_stride = line.expect("stride").number()
    outer = line.words() if line.skip("outer") else ()
    line.expect(END)
    nests = [read_nest(rest[a:b]) for a, b in zip(starts, [*starts[1:], None], strict=False)]
    products: list[BlockProduct] = []
    while (line := lines.next(1, "product")) is not None:
        if len(nests) < 2 * len(products) + 3:
            raise line.error("two nests for each product expected, then the epilogue")
        products.append(_product(line, *nests[2 * len(products) :][:2]))
    if not lines.done:
        raise lines.error("unexpected line or indentation")
    if len(nests) != 2 * len(products) + 1:
        raise header.error("two nests for each product expected, then the epilogue")
    return BlockedContraction(
        kernel, schedule, outer, tuple(products), nests[-1], tile_stride, offsets, block_bytes
    )


def _product(line: LineReader, left: Nest, right: Nest) -> BlockProduct:
    """Read `v6: depth i2,i3 block 8 of i2; left by lines; right by steps`."""
    total = line.word()
    depth = line.expect(":").expect("depth").words()
    step = line.expect("block").number()
    start, axis = line.expect("of").at, line.word()
    if axis not in depth:
        raise line.error(f"{axis} is not an axis of the depth", start)
    factors: list[Factor] = []
    for side, pack in (("left", left), ("right", right)):
        line_major = line.expect(";").expect(side).expect("by").skip("lines")
        if not line_major:
            line.expect("steps")
        factors.append(Factor(pack, line_major))
    line.expect(END)
    return BlockProduct(total, depth, depth.index(axis), step, *factors)


def _offsets(line: LineReader) -> WorkspaceOffsets:
    """Read `left 0 right 64 untransposed 128 tiles 192,256 scratch 320`."""
    left = line.expect("left").number()
    right = line.expect("right").number()
    untransposed = line.expect("untransposed").number()
    tiles = [line.expect("tiles").number()]
    while line.skip(","):
        tiles.append(line.number())
    scratch = line.expect("scratch").number()
    line.expect(END)
    return WorkspaceOffsets(left, right, untransposed, tuple(tiles), scratch)
