"""`make gpu-check` on three kernels, and its table."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="triton is not installed"
    ),
    pytest.mark.usefixtures("fresh_dynamo"),
]


def test_kernels_of_a_training_step():
    from suites.gpu.compile import Row
    from suites.gpu_check import run_case

    result = run_case("layer_norm_4096/bf16/sm_90")
    assert not result.failed
    assert result.data["kernels"] == result.data["texts"] == 2
    texts = result.data["rows"]
    assert isinstance(texts, list)
    rows = list(map(Row.parse, texts))
    assert [row.launch.rsplit("/", 2)[1] for row in rows] == ["forward", "backward", "backward"]
    for row in rows:
        assert row.capability == 90 and 0 < row.registers <= 255
        assert 0 < row.wide <= row.accesses and 0 < row.occupancy <= 100
    assert any(row.barriers for row in rows)  # the backward sums rows in a loop


def test_the_kept_table_breaks_no_limit():
    from suites.gpu.exceptions import EXCEPTIONS
    from suites.gpu.table import Table, faults

    table = Table.read()
    assert faults(table, table, partial=False) == []
    for known in EXCEPTIONS:
        assert any(known.covers(r.launch, r.capability) for r in table.rows.values()), known


def test_table_shows_what_changed(tmp_path: Path):
    from suites.gpu.compile import Row
    from suites.gpu.table import Table, faults

    row = Row("a/f32/forward/0", 90, 32, 4, 0, 0, 512, 100, 8, 2112, 4, 4, 0)
    table = Table({row.name: row}, {"encoder_1/f32/sm_90": "3 kernels of 2 texts"})
    assert faults(table, table, partial=False) == []
    table.write(tmp_path / "table.txt")
    assert Table.read(tmp_path / "table.txt") == table
    spilled = replace(row, stack=64, local=128, occupancy=12)
    (stack, local, occupancy, changed) = faults(
        replace(table, rows={row.name: spilled}), table, partial=False
    )
    assert "64 bytes of stack" in stack and "128 bytes of local" in local
    assert "occupancy 12 %" in occupancy and "the table says" in changed
    assert faults(Table({}, {}), table, partial=True) == []
    assert faults(Table({}, {}), table, partial=False) == [f"{row.name}: only in the table"]
    counted = replace(table, counts={"encoder_1/f32/sm_90": "3 kernels of 3 texts"})
    assert len(faults(counted, table, partial=True)) == 1
    assert table.updated(Table({}, {}), {"a/f32/sm_90"}).rows == {}
