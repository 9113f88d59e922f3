"""The table of first steps."""

import torch

from suites.harness import Result
from suites.start.models import MODELS
from suites.start.table import CONTENDERS, list_cases, page


def test_models_take_their_batches():
    for make in MODELS.values():
        trained = make()
        with torch.no_grad():
            assert trained.model(*trained.batch).isfinite().all()


def test_the_page_has_first_tenth_and_slowest_steps():
    steps = ["1.5", *["0.010"] * 8, "0.020", *["0.010"] * 29, "0.500"]
    data: dict[str, str | int | float | list[str]] = {name: steps for name, _, _ in CONTENDERS}
    case = list_cases()[0]
    text = page({case: Result(case, "ok", "", data)})
    assert "| tofuse, warm | 1.50 | 20.0 | 500.0 | 10.0 |" in text
