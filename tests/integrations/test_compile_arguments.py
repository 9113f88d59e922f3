"""Options of `tofuse.compile` as arguments of torch.compile, and frameworks that are missing."""

import subprocess
import sys

import pytest

from tofuse.config import Option
from tofuse.errors import OptionError
from tofuse.integrations.compile_arguments import compile_arguments


def test_words_of_torch_compile_are_its_arguments():
    assert compile_arguments({}) == {"backend": "tofuse"}
    options: dict[str, Option] = {
        "dynamic": True,
        "precision": "eager",
        "recompile_limit": 16,
        "name": "mine",
    }
    assert compile_arguments(options) == {
        "backend": "tofuse",
        "dynamic": True,
        "recompile_limit": 16,
        "name": "mine",
        "options": {"precision": "eager"},
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precison": "eager"}, "did you mean 'precision'\\?"),
        ({"precision": "exact"}, "precision must be 'fast' or 'eager'"),
        ({"capture": "trace"}, "leave out 'capture'"),
        ({"mode": "max-autotun"}, "did you mean 'max-autotune'\\?"),
    ],
)
def test_wrong_options_are_refused_at_once(options, message):
    with pytest.raises(OptionError, match=message):
        compile_arguments(options)


@pytest.mark.parametrize("framework", ["accelerate", "transformers"])
def test_a_missing_framework_says_what_to_install(framework):
    program = (
        f"import sys; sys.modules['{framework}'] = None\nimport tofuse.integrations.{framework}"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: tofuse.integrations.{framework} needs {framework}: pip")


def test_tofuse_imports_no_framework():
    program = (
        "import sys, tofuse, tofuse.integrations, tofuse.cli.main\n"
        "found = {name.split('.')[0] for name in sys.modules}\n"
        "print({'accelerate', 'transformers', 'lightning'} & found)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
