"""The scaling benchmark prints a row for every program."""

import pytest

from benchmarks import scaling


def test_table_has_a_row_for_every_program(capsys: pytest.CaptureFixture[str]):
    scaling.main(["--samples", "1", "--scale", "0.04"])
    text = capsys.readouterr().out
    assert all(heading in text for heading in ("program", "size", "ms", "ratio of sizes"))
    rows = {name: line for line in text.splitlines() for name in scaling.CASES if name in line}
    assert rows.keys() == scaling.CASES.keys()
    assert all("2.00" in line for line in rows.values())


@pytest.mark.parametrize("ms, linear", [((10.0, 49.0), True), ((10.0, 51.0), False)])
def test_limit_of_growth(ms: tuple[float, float], linear: bool):
    assert scaling.Row("program", (100, 200), ms).is_linear is linear
