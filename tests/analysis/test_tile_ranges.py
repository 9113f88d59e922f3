"""Tiles compute what they read, and all tiles together compute everything."""

import random

import pytest

from tofuse.analysis.tile_ranges import GroupRows, tile_chunks
from tofuse.ir.plan import Address, Launch
from tofuse.ir.row_access import KernelRows, RowAccess, merged, without

ROW = 8  # bytes


def random_group(seed):
    """Return launches of which each reads rows around its own, of any tensor before it."""
    rng = random.Random(seed)
    count, iterations = rng.randint(2, 5), rng.randint(1, 40)
    launches, rows = [], []
    for k in range(count):
        names = [f"t{k}", *rng.sample([f"t{n}" for n in range(k)], rng.randint(min(1, k), k))]
        accesses = [RowAccess(0, True, 0, iterations, ROW, 0, ROW)]
        for buffer in range(1, len(names)):
            shift = rng.randint(-3, 3)
            first, end = max(0, -shift), min(iterations, iterations - shift)
            if first < end:
                low = shift * ROW
                accesses.append(RowAccess(buffer, False, first, end, ROW, low, low + ROW))
            if rng.random() < 0.3:  # the other edge, as in `roll`
                far = (iterations - 1) * ROW
                accesses.append(RowAccess(buffer, False, 0, 1, ROW, far, far + ROW))
        launches.append(Launch(k, f"k{k}", tuple(map(Address, names)), ()))
        rows.append(KernelRows(iterations, 1, tuple(accesses)))
    scratch = [f"t{k}" for k in range(count - 1) if rng.random() < 0.7]
    return launches, rows, scratch, iterations


def rows_of(intervals):
    return {b // ROW for first, end in intervals for b in range(first, end, ROW)}


@pytest.mark.parametrize("seed", range(300))
def test_tiles_read_what_was_computed_before(seed):
    """Run the tiles of a chunk with sets of rows in place of scratch and memory."""
    launches, rows, scratch, iterations = random_group(seed)
    rng = random.Random(seed)
    group, count = GroupRows(launches, rows, scratch), rng.randint(1, 9)
    limits = {name: rng.randint(2, 50) * ROW for name in scratch}
    memory: dict[str, set[int]] = {x.tensors[0].tensor: set() for x in launches}
    for chunk in tile_chunks(count, rng.randint(1, count)):
        held: dict[str, set[int]] = {}
        own: dict[str, set[int]] = {}  # what the thread has written to memory
        for tile in group.tiles(chunk, count, limits):
            for name, window in tile.windows.items():
                kept = rows_of([tile.kept[name]] if name in tile.kept else [])
                assert kept <= held.get(name, set())
                held[name] = kept
                assert window is None or window[1] - window[0] <= limits[name]
            for launch, of_launch, intervals in zip(launches, rows, tile.iterations, strict=True):
                done = {i for first, end in intervals for i in range(first, end)}
                assert done <= set(range(iterations))
                for a in sorted(of_launch.accesses, key=lambda a: a.writes):
                    name = launch.tensors[a.buffer].tensor
                    window = tile.windows.get(name)
                    place = own if window is None else held
                    for i in done & set(range(a.first, a.end)):
                        row = (i * a.step + a.low) // ROW
                        assert window is None or row in rows_of([window])
                        if a.writes:
                            place.setdefault(name, set()).add(row)
                        else:
                            assert row in place[name], (name, row)
        for name, written in own.items():
            memory[name] |= written
    stored = [x.tensors[0].tensor for x in launches if x.tensors[0].tensor not in scratch]
    assert all(memory[name] == set(range(iterations)) for name in stored)


@pytest.mark.parametrize(("count", "chunks"), [(1, 1), (5, 3), (64, 8), (7, 7)])
def test_each_tile_is_in_one_chunk(count, chunks):
    found = tile_chunks(count, chunks)
    assert [k for chunk in found for k in chunk] == list(range(count)) and all(found)


def test_rows_of_one_stencil_are_computed_once():
    launches = [Launch(k, "k", (Address(f"t{k + 1}"), Address(f"t{k}")), ()) for k in range(3)]
    rows = []
    for _ in launches:
        reads = RowAccess(1, False, 1, 63, ROW, -ROW, 2 * ROW)
        rows.append(KernelRows(64, 1, (RowAccess(0, True, 0, 64, ROW, 0, ROW), reads)))
    tiles = list(GroupRows(launches, rows, ["t1", "t2"]).tiles(range(16), 16))
    for k in range(3):
        assert sum(end - first for t in tiles for first, end in t.iterations[k]) == 64


def test_union_of_intervals():
    assert merged([(5, 7), (0, 2), (2, 3), (9, 9), (6, 8)]) == [(0, 3), (5, 8)]


def test_difference_of_intervals():
    assert without([(0, 4), (6, 9)], (2, 7)) == [(0, 2), (7, 9)]
    assert without([(0, 4)], None) == [(0, 4)] and without([(1, 3)], (0, 9)) == []
