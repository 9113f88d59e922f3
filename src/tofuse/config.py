"""Options of the compiler, and the only reader of environment variables."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Union

from platformdirs import user_cache_dir

from tofuse.errors import OptionError, did_you_mean

PACKAGE = Path(__file__).parent  # the folder of tofuse's source
Option = Union[bool, str, float, None, Path, tuple[str, ...]]  # noqa: UP007  (evaluated at run time)
# For developers: private names of torch to do without, as if it lacked them (TOFUSE_WITHOUT).
ABSENT_TORCH_NAMES = frozenset(os.environ.get("TOFUSE_WITHOUT", "").split(","))
# As in torch: each launch on a GPU is waited for, so that errors come from the launch they are of.
CUDA_LAUNCH_BLOCKING = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"
STAGES = ("definition", "graph", "regions", "loops", "source", "plan")


@dataclass(frozen=True)
class Config:
    """The options of `tofuse.compile`, one per field.

    The key of a program on disk contains the fields with a `repr`.
    """

    dynamic: bool | None = None  # symbolic sizes: True all, False none, None as torch decides
    # compile static programs for sizes that recur; None: programs whose bits stay the same
    specialize: bool | None = None
    capture: str = "dynamo"  # "trace": once, as a pure function; see tofuse.capture.trace
    fullgraph: bool = False  # a graph break is an error
    freeze: bool = False  # writes of parameters show in their version or address
    precision: str = "fast"  # "eager": round half precision after every op, as eager does
    fuel: int | None = None  # stop after this number of fusions; see tofuse.bisect
    verify: bool = False  # compare every kernel's results with the reference at every run
    strict: bool = False  # a kernel that does not compile is an error, not a warning
    hand_back: bool = True  # eager runs the kinds of calls that are no faster compiled
    show: tuple[str, ...] = ()  # stages to print while compiling, from STAGES
    # limit of the memory pool for results; None: a quarter of RAM
    pool_bytes: int | None = field(default=None, repr=False)
    memory_budget: float | None = None  # for saved tensors: a fraction up to 1, or bytes
    executors: tuple[str, ...] = ("llvm", "aten")  # in order of preference
    tune: str = "off"  # "measure": time candidates for every region and choose the fastest
    background: bool = field(default=False, repr=False, compare=False)  # eager runs meanwhile
    mode: str = field(default="default", repr=False, compare=False)  # of torch.compile; see MODES
    machine: Path | None = None  # file of machine costs instead of calibrated or assumed ones
    # folder of the cache on disk; None: the user's cache
    cache_dir: Path | None = field(default=None, repr=False)
    dump: Path | None = None  # folder to write every stage's text to
    # Words of torch.compile, which it gets. They are no part of what is compiled.
    name: str | None = field(default=None, repr=False, compare=False)  # in logs
    recompile_limit: int | None = field(default=None, repr=False, compare=False)  # None: 256
    isolate_recompiles: bool = field(default=False, repr=False, compare=False)  # a limit per call

    @property
    def packs_weights(self) -> bool:
        """Whether calls of parameters alone may be kept, and computed with other roundings."""
        return self.freeze and not self.rounds_as_eager

    @property
    def rounds_as_eager(self) -> bool:
        """Whether half precision is rounded after every op."""
        return self.precision == "eager"


# Arguments of torch.compile itself: not among its `options`.
ARGUMENTS_OF_TORCH = (
    "dynamic",
    "fullgraph",
    "name",
    "recompile_limit",
    "isolate_recompiles",
)

# What torch.compile's modes mean: the default of `tune`, and whether CUDA graphs are recorded.
MODES = {
    "default": "off",
    "reduce-overhead": "off",
    "max-autotune": "measure",
    "max-autotune-no-cudagraphs": "measure",
}
GRAPH_MODES = ("reduce-overhead", "max-autotune")


def user_cache() -> Path:
    """Return the folder of the user's cache; one for temporary files if the user has no home."""
    with suppress(RuntimeError):  # in other releases of platformdirs, "~" stays in the path
        folder = Path(user_cache_dir("tofuse"))
        if folder.is_absolute():
            return folder
    return Path(tempfile.gettempdir()) / f"tofuse-{os.getuid()}"


FLAGS = {"0": False, "1": True}  # of the environment
FROM_ENVIRONMENT = (
    "hand_back",
    "tune",
    "show",
    "pool_bytes",
    "executors",
    "machine",
    "cache_dir",
    "dump",
)


def make_config(options: Mapping[str, Option]) -> Config:
    """Return the configuration: options override environment variables, which override defaults.

    Raises OptionError for an unknown option or an invalid value.
    """
    variables = {name: f"TOFUSE_{name.upper()}" for name in FROM_ENVIRONMENT if name not in options}
    environment = {name: text for name, v in variables.items() if (text := os.environ.get(v))}
    try:
        return _config({**environment, **options})
    except OptionError as error:
        _config(options)  # raises if the options alone are invalid
        names = ", ".join(variables[name] for name in environment)
        raise OptionError(f"{error}; the environment sets {names}") from None


def _config(options: Mapping[str, Option]) -> Config:
    known = [f.name for f in fields(Config)]
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known, f"options are {', '.join(known)}")
            raise OptionError(f"tofuse has no option {name!r}{hint}")
    precision = options.get("precision", "fast")
    if precision not in ("fast", "eager"):
        raise OptionError(f"precision must be 'fast' or 'eager', not {precision!r}")
    capture = options.get("capture", "dynamo")
    if capture not in ("dynamo", "trace"):
        raise OptionError(f"capture must be 'dynamo' or 'trace', not {capture!r}")
    mode = options.get("mode") or "default"
    if mode not in MODES:
        hint = did_you_mean(str(mode), MODES)
        raise OptionError(f"mode must be one of {', '.join(MODES)}, not {mode!r}{hint}")
    tune = options.get("tune") or MODES[str(mode)]
    if tune not in ("off", "measure"):
        raise OptionError(f"tune must be 'off' or 'measure', not {tune!r}")
    fuel = _fuel(options.get("fuel"))
    return Config(
        dynamic=None if options.get("dynamic") is None else _flag(options, "dynamic"),
        specialize=_specialize(options, fuel),
        capture=str(capture),
        fullgraph=_flag(options, "fullgraph"),
        freeze=_flag(options, "freeze"),
        precision=str(precision),
        verify=_flag(options, "verify"),
        fuel=fuel,
        strict=_flag(options, "strict"),
        hand_back=_flag(options, "hand_back", default=True),
        show=_stages(options.get("show")),
        pool_bytes=_pool_bytes(options),
        memory_budget=_memory_budget(options),
        executors=_executors(options),
        tune=str(tune),
        background=_flag(options, "background"),
        mode=str(mode),
        machine=_path(options.get("machine")),
        cache_dir=_path(options.get("cache_dir")),
        dump=_path(options.get("dump")),
        name=None if options.get("name") is None else str(options["name"]),
        recompile_limit=_recompile_limit(options.get("recompile_limit")),
        isolate_recompiles=_flag(options, "isolate_recompiles"),
    )


def _flag(options: Mapping[str, Option], name: str, *, default: bool = False) -> bool:
    value = options.get(name, default)
    value = FLAGS.get(value, value) if isinstance(value, str) else value
    if not isinstance(value, bool):
        legal = "True, False or None" if name in ("dynamic", "specialize") else "True or False"
        raise OptionError(f"{name} must be {legal}, not {value!r}")
    return value


def _specialize(options: Mapping[str, Option], fuel: int | None) -> bool | None:
    if options.get("specialize") is None and fuel is None:
        return None
    # fuel counts the fusions of one compilation
    return _flag(options, "specialize") and fuel is None


def _names(value: Option) -> tuple[str, ...] | None:
    """Return the names in a sequence or in comma-separated text; None for anything else."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(n, str) for n in names):
        return None
    return tuple(n.strip() for n in names if n.strip())


def _stages(value: Option) -> tuple[str, ...]:
    names = _names("" if value is None else value)
    if names is None:
        raise OptionError(f"show must be names of stages such as 'graph,plan', not {value!r}")
    for s in names:
        if s not in STAGES:
            raise OptionError(f"there is no stage {s!r} to show; stages are {', '.join(STAGES)}")
    return names


def _executors(options: Mapping[str, Option]) -> tuple[str, ...]:
    value = options.get("executors")
    names = _names("llvm,aten" if value is None else value)
    if not names:
        raise OptionError(
            f"executors must be a tuple of names such as ('llvm', 'aten'), not {value!r}"
        )
    return names


def _path(value: Option) -> Path | None:
    return Path(str(value)) if value else None


def _fuel(value: Option) -> int | None:
    if value is None:
        return None
    if isinstance(value, str) or not str(value).isdigit():
        raise OptionError(f"fuel must be a number of fusions, or None for all, not {value!r}")
    return int(str(value))


def _recompile_limit(value: Option) -> int | None:
    if value is None or (isinstance(value, int) and value is not True and value > 0):
        return value
    raise OptionError(f"recompile_limit must be a number of programs, or None, not {value!r}")


def _pool_bytes(options: Mapping[str, Option]) -> int:
    value = options.get("pool_bytes")
    if value is None:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
    try:
        size = int(str(value))
    except ValueError:
        size = -1
    if size < 0:
        raise OptionError(f"pool_bytes must be a number of bytes (0: no pool), not {value!r}")
    return size


def _memory_budget(options: Mapping[str, Option]) -> float | None:
    """Return a fraction (0 to 1) of the default saved bytes, or a number of bytes above 1."""
    value = options.get("memory_budget")
    if value is None:
        return None
    if not isinstance(value, (bool, str, Path, tuple)):
        if 0 <= value <= 1:
            return float(value)
        if value > 1 and str(value).isdigit():
            return int(value)
    raise OptionError(
        "memory_budget must be a fraction from 0 (save only arguments) to 1 (the default), or an "
        f"integer number of bytes, not {value!r}"
    )


def environment_variables(names: Collection[str] | None) -> dict[str, str | None]:
    """Return the values of variables of the environment; of all variables for None."""
    return {name: os.environ.get(name) for name in (os.environ if names is None else names)}


# The objects through which programs read the environment.
ENVIRONMENT_OBJECTS: Mapping[str, object] = {
    name: vars(os)[name]
    for name in ("environ", "environb", "getenv", "getenvb")
    if name in vars(os)  # not all systems have all
}
