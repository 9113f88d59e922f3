"""The operators of torch's OpInfo database, compiled: eager's values, gradients and strides.

The first samples of every fourteenth operator, each in another dtype; of all with `pytest --full`.
`make opinfo` runs every sample in every layout.
"""

import warnings

import pytest
import torch

from suites.operators.calls import calls_of
from suites.operators.check import Checker
from suites.operators.known import known_difference
from suites.opinfo import operators

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
SAMPLES = 2
EVERY = 14


def choose_cases(full):
    """Return (name, operator, dtype) of each case: each operator in one dtype, or in all."""
    chosen = []
    for k, (name, op) in enumerate(operators().items()):
        dtypes = [d for d in DTYPES if d in op.supported_dtypes("cpu")]
        if full:
            chosen += [(name, op, d) for d in dtypes]
        elif k % EVERY == 0 and dtypes:
            chosen.append((name, op, dtypes[(k // EVERY) % len(dtypes)]))
    return chosen


@pytest.mark.filterwarnings("ignore")
def test_operators_are_as_eager(request):
    chosen = choose_cases(request.config.getoption("--full"))
    assert len(chosen) > 40
    failures, compared = {}, 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, op, dtype in chosen:
            case = f"{name}/{str(dtype).removeprefix('torch.')}/contiguous"
            found = Checker().check(calls_of(op, dtype, "contiguous")[:SAMPLES])
            compared += found.calls - found.refused
            if found.failures and known_difference(case, found.failures) is None:
                failures[case] = found.failures
    assert not failures
    assert compared > 1.6 * len(chosen)
