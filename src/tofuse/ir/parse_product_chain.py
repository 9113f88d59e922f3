"""Parse the text form of a product chain: its kernel, its stages, then its nests."""

from __future__ import annotations

from tofuse.errors import ParseError
from tofuse.ir.blocked import Factor
from tofuse.ir.line_reader import END, IndentedLines, LineReader, read_lines, split_block
from tofuse.ir.mask import Mask
from tofuse.ir.nest import Nest
from tofuse.ir.parse_kernel import read_kernel
from tofuse.ir.parse_nest import read_nest
from tofuse.ir.parse_schedule import read_chain_schedule
from tofuse.ir.product_chain import ChainProduct, ChainStage, ProductChain


def parse_chain(text: str) -> ProductChain:
    """Parse the `repr` of a product chain. Raises ParseError, which names the line."""
    kernel_lines, rest = split_block(read_lines(text))
    kernel = read_kernel(kernel_lines)
    if not rest:
        raise ParseError("a product chain is a kernel, then a line 'chain k: rows ...'")
    starts = [k for k, line in enumerate(rest) if line.indent == 0 and line.peek() == "kernel"]
    header, lines = rest[0], IndentedLines(rest[1 : starts[0] if starts else len(rest)])
    schedule = read_chain_schedule(header.expect("chain").expect(kernel.name).expect(":"))
    block_bytes = header.expect(";").expect("workspace").number()
    header.expect(":")
    offsets: dict[str, int] = {}
    while not header.skip(END):
        name = header.word()
        offsets[name] = header.number()
    outer: tuple[str, ...] = ()
    if (line := lines.next(1, "outer")) is not None:
        outer = line.words()
        line.expect(END)
    nests = [read_nest(rest[a:b]) for a, b in zip(starts, [*starts[1:], None], strict=False)]
    masks: list[Mask] = []
    while (line := lines.next(1, "mask")) is not None:
        masks.append(_mask(line))
    computed = 1.0
    if masks and (line := lines.next(1, "computed")) is not None:
        computed = float(line.word(expected="a share"))
        line.expect("of").expect(masks[0].axis).expect(END)
    stages: list[ChainStage] = []
    while (line := lines.next(1, "stage")) is not None:
        stages.append(_stage(line, lines, nests))
    if not lines.done:
        raise lines.error("unexpected line or indentation")
    if nests:
        raise header.error(f"{len(nests)} nests belong to no stage")
    parts = tuple(stages), offsets, block_bytes
    return ProductChain(kernel, schedule, outer, *parts, tuple(masks), computed)


def _mask(line: LineReader) -> Mask:
    """Read `i5 masked if not v7 while v9 > -896.0`."""
    axis = line.word()
    masked_if = not line.expect("masked").expect("if").skip("not")
    condition, required = line.word(), list[tuple[str, float]]()
    while line.skip("while"):
        name = line.word()
        required.append((name, float(line.expect(">").word(expected="a number"))))
    line.expect(END)
    return Mask(axis, condition, masked_if, tuple(required))


def _stage(line: LineReader, lines: IndentedLines, nests: list[Nest]) -> ChainStage:
    """Read `stage of 2 nests` and its products; take their nests."""
    count = line.expect("of").number()
    line.expect("nests").expect(END)
    own = [_take(nests, line) for _ in range(count)]
    products: list[ChainProduct] = []
    while (product := lines.next(2, "product")) is not None:
        products.append(_product(product, _take(nests, product)))
    return ChainStage(tuple(own), tuple(products))


def _take(nests: list[Nest], line: LineReader) -> Nest:
    if not nests:
        raise line.error("a nest expected for each of a stage, and for each product")
    return nests.pop(0)


def _product(line: LineReader, pack: Nest) -> ChainProduct:
    """Read `0 v3: columns i5; depth i4; steps 64; right by lines; around i0`."""
    number, total = line.number(), line.word()
    columns = line.expect(":").expect("columns").word()
    depth = line.expect(";").expect("depth").words()
    steps = line.expect(";").expect("steps").number()
    line_major = line.expect(";").expect("right").expect("by").skip("lines")
    if not line_major:
        line.expect("steps")
    around = line.expect("around").words() if line.skip(";") else ()
    line.expect(END)
    right = Factor(pack, line_major)
    return ChainProduct(number, total, columns, depth, steps, right, around)
