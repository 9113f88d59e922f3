"""The benchmark of a concat into a norm checks the numbers and prints a row for each count."""

import pytest

from benchmarks import concat_norm


@pytest.mark.usefixtures("fresh_dynamo")
def test_each_count_has_a_row(capsys):
    concat_norm.main(rows=4, width=32, seconds=0.001)
    rows = capsys.readouterr().out.splitlines()
    assert all(any(f" {count} " in row for row in rows) for count in concat_norm.COUNTS)
