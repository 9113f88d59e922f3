"""Old releases of torch are an error, new ones a warning, once."""

import pytest

from tofuse.driver.torch_release import NEWEST, OLDEST, check_torch
from tofuse.errors import UnsupportedError


@pytest.mark.parametrize("release", ["2.11.0", "2.13.0+cpu", "2.15.1a0+git12"])
def test_tested_releases(release):
    check_torch(release)


@pytest.mark.parametrize("release", ["1.13.1", "2.10.1+cu130"])
def test_older_releases_are_an_error(release):
    with pytest.raises(UnsupportedError, match=r"from 2\.11 on"):
        check_torch(release)


@pytest.mark.parametrize("release", [f"{NEWEST[0]}.{NEWEST[1] + 1}.0.dev1", "3.0.0"])
def test_a_newer_release_is_one_warning(release):
    with pytest.warns(UserWarning, match=r"2\.11 to .*not with"):
        check_torch(release)
    check_torch(release)  # a warning would be an error
    assert OLDEST < NEWEST
