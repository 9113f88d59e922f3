"""Fake tensors: tensors without memory, on which programs are traced."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from tofuse.torch_internals.private_names import EVERYTHING, essential, lacking, private, stand_in

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
else:
    FakeTensor, FakeTensorMode = essential(
        "torch._subclasses.fake_tensor", "FakeTensor", "FakeTensorMode"
    )


def _error(name: str) -> type[Exception]:
    """Return a class of errors of fake tensors, or a class that no error has."""
    return private(
        "torch._subclasses.fake_tensor", name, "errors of tracing are less clear", stand_in(name)
    )


DataDependentOutputException = _error("DataDependentOutputException")
DynamicOutputShapeException = _error("DynamicOutputShapeException")
UnsupportedOperatorException = _error("UnsupportedOperatorException")
unset_fake_temporarily: Callable[[], AbstractContextManager[object]] = private(
    "torch._subclasses.fake_tensor", "unset_fake_temporarily", EVERYTHING, lacking
)
# an object without tensors that a program takes, such as the mesh of a DTensor
FakeScriptObject: type = private(
    "torch._library.fake_class_registry",
    "FakeScriptObject",
    "PyTorch runs programs that take objects, such as DTensors",
    stand_in("FakeScriptObject"),
)
