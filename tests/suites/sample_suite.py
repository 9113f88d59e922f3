"""A suite whose cases pass, fail, kill their process, and hang."""

import os
import time

from suites.harness import Result


def list_cases():
    return ["passes", "fails", "kills its process", "hangs", "passes, too"]


def run_case(case):
    print("what a case prints is no answer")
    if case == "fails":
        raise ValueError("one is not two")
    if case == "kills its process":
        os.abort()
    if case == "hangs":
        time.sleep(60)
    return Result(case, "same")
