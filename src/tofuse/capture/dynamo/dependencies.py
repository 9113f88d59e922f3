"""What a capture depends on beside its guards, so that another process can compare it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType

from tofuse.capture.dynamo.code_names import (
    ATTRIBUTE_READERS,
    code_names,
    computes_names,
    nested_codes,
)
from tofuse.capture.dynamo.environment_reads import ENVIRONMENT_FILES
from tofuse.capture.dynamo.graph_breaks import WRAPPER_FILE
from tofuse.capture.dynamo.lookups import DYNAMO, FollowedCode, Scope
from tofuse.capture.dynamo.references import (
    Reference,
    code_line,
    code_place,
    is_own_file,
    is_released,
    reference_to,
)
from tofuse.capture.dynamo.survey import Survey, survey
from tofuse.errors import UnsupportedError

IMPLIED_FILES = {WRAPPER_FILE, *ENVIRONMENT_FILES}
MAX_SURVEYS = 16


@dataclass(frozen=True)
class Dependencies:
    """What tracing looked up, as digests; see `Survey`.

    `unnamed` are objects that the program calls or reads, though no name in the code leads to them,
    such as functions of torch.
    """

    unnamed: tuple[Reference, ...]
    scope: Scope
    digests: Mapping[str, str]

    def changes(self, roots: Sequence[object]) -> list[str]:
        """Return the holders of names whose digests differ here; see `survey` for the roots.

        Raises LookupError, AttributeError or UnsupportedError if a lookup fails here.
        """
        unnamed = [reference.resolve() for reference in self.unnamed]
        found = survey([*roots, *unnamed], self.scope, {}).digests
        holders = dict.fromkeys((*self.digests, *found))
        return [x for x in holders if self.digests.get(x) != found.get(x)]


def dependencies(
    roots: Sequence[object],
    traced: Sequence[CodeType],
    read: Sequence[object],
    names: Collection[str] = (),
) -> Dependencies:
    """Return what the code of a capture depends on.

    `roots` are the functions and classes that guards lead to, `traced` the code that Dynamo has
    traced, `read` the Python functions that the program calls, and objects that guards read,
    `names` attributes that the program reads. Raises UnsupportedError if no name leads to code that
    was traced.
    """
    called = [x.__code__ for x in read if isinstance(x, FunctionType)]
    codes = list({id(code): code for code in (*traced, *called)}.values())
    unnamed = {id(x): (x, reference_to(x)) for x in read}
    found, scope = _survey_all([*roots, *read], codes, names)
    reached = {id(part) for code, _ in found.codes for part in nested_codes(code)}
    missing = [code for code in codes if id(code) not in reached and not _is_implied(code)]
    if missing:
        unnamed.update((id(x), (x, reference_to(x))) for x in map(_released_function, missing))
        found, scope = _survey_all([*roots, *(x for x, _ in unnamed.values())], codes, names)
    references = tuple(reference for _, reference in unnamed.values())
    return Dependencies(references, scope, found.digests)


def _survey_all(
    roots: Sequence[object], codes: Sequence[CodeType], names: Collection[str]
) -> tuple[Survey, Scope]:
    """Return the survey of all names in traced code and in the code that they lead to."""
    traced = frozenset(map(code_place, codes))
    results: dict[int, object] = {}
    followed = {id(code): (code, True) for code in codes}
    for _ in range(MAX_SURVEYS):
        scope = _scope_of(traced, followed.values(), names)
        found = survey(roots, scope, results)
        new = {id(code): (code, is_traced) for code, is_traced in found.codes}
        if new.keys() <= followed.keys():
            return found, scope
        followed = {**new, **followed}
    raise UnsupportedError("the program looks up too many names to compare them")


def _scope_of(
    traced: frozenset[str], codes: Iterable[FollowedCode], others: Collection[str]
) -> Scope:
    """Return the scope of the names in code, and of others."""
    names, caught = set(others), set[str]()
    computes = False
    for code, is_traced in codes:
        read = code_names(code)
        names |= read.names | read.texts
        computes = computes or computes_names(code)
        if is_traced and is_released(code.co_filename):
            continue
        if not is_traced or read.catches:
            caught |= read.names
        if is_own_file(code.co_filename) and not ATTRIBUTE_READERS.isdisjoint(read.names):
            caught |= read.names | read.texts  # `hasattr` catches what a property raises
    return Scope(traced, frozenset(names), computes, frozenset(caught))


def _is_implied(code: CodeType) -> bool:
    """Return whether code needs no name that leads to it, because other code implies it.

    Such are Dynamo's versions of built-in functions, our wrapper of the function, and what
    `os.environ` holds.
    """
    return code.co_filename.startswith(DYNAMO) or code.co_filename in IMPLIED_FILES


def _released_function(code: CodeType) -> FunctionType:
    """Return the function of Python or torch that code belongs to, by the code's name."""
    name = str(getattr(code, "co_qualname", code.co_name))
    if is_released(code.co_filename):
        for module in _modules_of(code.co_filename):
            found: object = module
            for part in name.split("."):
                found = getattr(found, part, None)
            if isinstance(found, FunctionType) and found.__code__ is code:
                return found
    raise UnsupportedError(f"no name leads to the code of {name} ({code_line(code)})")


def _modules_of(file: str) -> Iterator[object]:
    frozen = file.removeprefix("<frozen ").removesuffix(">")
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == file or name == frozen:
            yield module
