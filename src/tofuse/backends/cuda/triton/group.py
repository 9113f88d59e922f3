"""Triton text of a group's launch: choose the call that a program instance belongs to.

A launch has the parameters of all calls. Nested conditions compare the instance with the first
instance of each call, and set the variables that the kernel reads; sizes are numbers in the text.
"""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.ir.tile import TileGroup, call_name

Parameters = list[tuple[str, str]]  # name and Triton type
SHARED_PARAMETERS = 2  # the address of the error flag, and the number to store there


def group_parameters(parameters: Parameters, symbols: Sequence[str], calls: int) -> Parameters:
    """Return the parameters of a group's launch, from those of the program's."""
    own = call_parameters(parameters, symbols)
    named = [(call_name(t, name), kind) for t in range(calls) for name, kind in own]
    return [*named, *parameters[-SHARED_PARAMETERS:]]


def call_parameters(parameters: Parameters, symbols: Sequence[str]) -> Parameters:
    """Return the parameters that each call of a group has: all but sizes."""
    return [p for p in parameters[:-SHARED_PARAMETERS] if p[0] not in symbols]


def choose_call(group: TileGroup, k: int, parameters: Parameters) -> list[str]:
    """Return the lines that set `pid`, the sizes and the parameters of the instance's call."""
    symbols = group.program.kernel.symbols
    names = [name for name, _ in call_parameters(parameters, symbols)]
    firsts = group.first_instances(k)

    def lines(low: int, high: int) -> list[str]:
        """Return the lines for one of the calls from `low` to `high`."""
        if high - low > 1:
            middle = (low + high) // 2
            inner = [["    " + x for x in lines(*part)] for part in ((low, middle), (middle, high))]
            return [f"if pid < {firsts[middle]}:", *inner[0], "else:", *inner[1]]
        sizes = zip(symbols, group.sizes[low], strict=True)
        return [
            f"first = tl.full([], {firsts[low]}, tl.int32)",
            *(f"{symbol} = tl.full([], {size}, tl.int64)" for symbol, size in sizes),
            *(f"{name} = {call_name(low, name)}" for name in names),
        ]

    return ["pid = tl.program_id(0)", *lines(0, len(group.sizes)), "pid = pid - first"]
