"""A digest of what names in traced code lead to, for each class, module and scope that has them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tofuse.capture.dynamo.lookups import FollowedCode, Scope, Surveyor


@dataclass(frozen=True)
class Survey:
    """A digest of what names lead to, by the class, module, global scope or environment with them.

    `codes` are those whose names were followed.
    """

    digests: Mapping[str, str]
    codes: Sequence[FollowedCode]


def survey(roots: Sequence[object], scope: Scope, results: dict[int, object]) -> Survey:
    """Describe what code looks up, beginning with functions and classes.

    Attributes of the scope's names and special methods of classes are described. `results` receives
    the results of functions that are assumed constant, by id, so that surveys call each once.
    Raises UnsupportedError if a lookup has no description.
    """
    surveyor = Surveyor(scope, results)
    texts = [surveyor.describe(root) for root in roots]
    surveyor.found["roots"] = {str(k): text for k, text in enumerate(texts)}
    surveyor.follow()
    surveyor.check_constants()
    surveyor.describe_abstract_classes()
    surveyor.found["environment"] = surveyor.environment.texts()
    digests = {holder: _digest(found) for holder, found in surveyor.found.items()}
    return Survey(digests, surveyor.codes)


def _digest(texts: Mapping[str, str]) -> str:
    content = "\0".join(f"{name}\0{text}" for name, text in sorted(texts.items()))
    return hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()[:24]
