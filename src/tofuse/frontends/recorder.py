"""Record a definition's inputs, ops and outputs, and check each as the user writes it."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from traceback import walk_stack

import torch

from tofuse.capture.fx.devices import on_host
from tofuse.capture.lower.builder import Unsupported
from tofuse.config import PACKAGE
from tofuse.errors import DefinitionError, did_you_mean
from tofuse.frontends.datatypes import DataType, datatype, number_type
from tofuse.frontends.define_tensor import (
    Contiguity,
    as_strides,
    strided_input,
    tensor_input,
)
from tofuse.frontends.definition import (
    RULES,
    SYNONYMS,
    AddOutput,
    Argument,
    DefineScalar,
    DefineVector,
    Environment,
    OpCall,
    Ref,
    Statement,
    lower_statement,
    lower_statements,
    parameters,
)
from tofuse.frontends.items import Lowered, Node, describe
from tofuse.frontends.lowering import Lowering, SizesMustBeEqual
from tofuse.frontends.proxies import PROXIES, ArithmeticProxy, Proxy, Scalar, Tensor, Vector
from tofuse.ir.graph import Loc

# what rules raise on arguments of another kind than they expect
WRONG_ARGUMENTS = (
    TypeError, ValueError, AssertionError, AttributeError, LookupError, ArithmeticError,
    Unsupported,
)  # fmt: skip


class Ops:
    """`fd.ops`: one method per op, which appends the op and returns its results."""

    def __init__(self, fd: Recorder) -> None:
        self._fd = fd

    def __getattr__(self, name: str) -> Callable[..., Tensor]:
        if name not in RULES:
            raise AttributeError(f"there is no op {name!r}{did_you_mean(name, RULES)}")

        def op(*args: object, **kwargs: object) -> Tensor:
            return self._fd.record(name, *args, **kwargs)

        op.__name__ = name
        op.__doc__ = getattr(RULES[name], "func", RULES[name]).__doc__
        return op

    def __dir__(self) -> list[str]:
        return sorted(RULES)


class Recorder:
    """The statements so far, each lowered at once so that errors appear at the user's line."""

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.ops: Ops = Ops(self)
        self.statements: list[Statement] = []
        self.is_open: bool = False
        self.is_closed: bool = False
        self._low, self._env = Lowering(), Environment()

    # -- inputs and outputs ----------------------------------------------------------------------

    def define_tensor(
        self,
        shape: Sequence[int] | int | None = None,
        contiguity: Contiguity = False,
        dtype: DataType | torch.dtype = DataType.Float,
        is_cpu: bool = False,
        stride_order: Sequence[int] = (),
        *,
        sizes: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        static_sizes: bool = False,
        symbolic_sizes: Sequence[int] | None = None,
        contiguous: Contiguity | None = None,
    ) -> Tensor:
        """Define an input tensor by shape and contiguity, or by sizes and strides.

        In a shape, -1 is a symbolic size and 1 a broadcast dimension. In `stride_order`, a larger
        number is slower. `contiguity` lists the dimensions from slowest to fastest: True if one
        follows the next faster one without a gap, None if it is broadcast or expanded.
        """
        loc, result = self._begin("define_tensor"), self._ref("T")
        extents = symbolic_sizes if shape is None else shape
        flags = contiguity if contiguous is None else contiguous
        if isinstance(extents, (list, tuple)) and (by_position := as_strides(flags)) is not None:
            sizes, strides = extents, by_position
        try:
            if sizes is not None and strides is not None:
                statement = strided_input(result, loc, sizes, strides, dtype, static_sizes, is_cpu)
            elif extents is not None:
                statement = tensor_input(result, loc, extents, flags, dtype, is_cpu, stride_order)
            else:
                raise DefinitionError("give a shape, or sizes and strides")
        except DefinitionError as e:
            raise self._low.error(str(e)) from None
        return self._append(statement)[0]  # type: ignore[return-value]  # a T

    def from_pytorch(self, tensor: torch.Tensor, static_sizes: bool = False) -> Tensor:
        """Define an input with the rank, layout and dtype of this tensor."""
        scalar_on_cpu = tensor.dim() == 0 and on_host(tensor)
        return self.define_tensor(
            sizes=tuple(tensor.shape),
            strides=tuple(tensor.stride()),
            dtype=datatype(tensor.dtype),
            static_sizes=static_sizes,
            is_cpu=scalar_on_cpu,
        )

    def define_scalar(
        self,
        value: bool | int | float | complex | DataType | None = None,
        dtype: DataType | torch.dtype | None = None,
    ) -> Scalar:
        """Define a constant if a value is given, else a scalar input."""
        loc, result = self._begin("define_scalar"), self._ref("S")
        if isinstance(value, DataType):
            value, dtype = None, value
        if dtype is None:
            dtype = DataType.Double if value is None else number_type(value)
        statement = DefineScalar(result, value, datatype(dtype), loc)
        return self._append(statement)[0]  # type: ignore[return-value]  # an S

    define_constant = define_scalar

    def define_vector(
        self, values: int | Sequence[ArithmeticProxy | int], dtype: DataType = DataType.Int
    ) -> Vector:
        """Define a vector of these entries, or an input of that many integers."""
        loc, result = self._begin("define_vector"), self._ref("V")
        if isinstance(values, int):
            statement = DefineVector(result, None, values, loc)
        else:
            statement = DefineVector(result, tuple(map(self._argument, values)), len(values), loc)
        return self._append(statement)[0]  # type: ignore[return-value]  # a V

    def add_output(
        self,
        output: Proxy,
        alias_input: Proxy | None = None,
        stride_order: Sequence[int] = (),
    ) -> None:
        """Add an output. With `alias_input`, it is written into that input and not returned."""
        loc = self._begin("add_output")
        source, alias = map(self._argument, (output, alias_input))
        if not isinstance(source, Ref) or not isinstance(alias, (Ref, type(None))):
            raise self._low.error(f"{output!r} is not defined by this FusionDefinition")
        self._append(AddOutput(source, alias, tuple(stride_order), loc))

    def permute(self, arg: Proxy, dims: Sequence[int] | None = None) -> Tensor:
        """Append `fd.ops.permute` (nvFuser's interface of 2022)."""
        return self.record("permute", arg, dims)

    # -- ops -------------------------------------------------------------------------------------

    def record(self, name: str, *args: object, **kwargs: object) -> Tensor:
        """Append an op; return a Tensor, Scalar or Vector, or a tuple if it has several results.

        Raises DefinitionError, with the op and the user's line, if the arguments are wrong.
        """
        loc = self._begin(name)
        signature = parameters(name)
        for keyword in [k for k in kwargs if k not in signature.parameters]:
            known = [s for s in SYNONYMS.get(keyword, ()) if s in signature.parameters]
            if known and known[0] not in kwargs:
                kwargs[known[0]] = kwargs.pop(keyword)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as e:
            raise self._low.error(f"{e}; its signature is {name}{signature}") from None
        given = bound.arguments
        typed = "dtype" in signature.parameters
        if typed and isinstance(given.get("dims"), (DataType, torch.dtype)):  # sum(x, Double)
            given["dtype"] = given.pop("dims")
        for key, value in given.items():
            flag = signature.parameters[key].annotation == "bool"
            if flag and not isinstance(value, int):  # 0 and 1 are flags, too
                raise self._low.error(f"{key} must be True or False, not {describe(value)}")
        arguments = tuple((k, self._argument(v)) for k, v in given.items())
        op_count = len(self._low.builder.ops)
        try:
            proxies = self._append(OpCall(name, arguments, (), loc))
        except (DefinitionError, NotImplementedError):
            del self._low.builder.ops[op_count:]
            raise
        except WRONG_ARGUMENTS as e:
            raise self._low.error(f"wrong arguments: {e}") from e
        return proxies[0] if len(proxies) == 1 else proxies  # type: ignore[return-value]  # see above

    def lowered_value(self, ref: Ref) -> Lowered:
        """Return the lowered value of a reference."""
        return self._env[ref.index]

    # -- helpers ---------------------------------------------------------------------------------

    def _begin(self, op: str) -> Loc | None:
        """Begin a statement; return the user's line. DefinitionError outside the `with` block."""
        self._low.begin_op(op, _user_line())
        if not self.is_open:
            raise self._low.error("use it inside `with FusionDefinition() as fd:`")
        return self._low.builder.loc

    def _ref(self, kind: str) -> Ref:
        return Ref(len(self._env), kind)

    def _append(self, statement: Statement) -> tuple[Proxy, ...]:
        """Append a statement; return proxies for its results."""
        first = len(self._env)
        try:
            lower_statement(self._low, statement, self._env)
        except SizesMustBeEqual as required:
            low = self._low.with_equality(required.equality)
            self._low, self._env = lower_statements(low, [*self.statements, statement])
        refs = tuple(Ref(first + k, _kind(item)) for k, item in enumerate(self._env[first:]))
        if isinstance(statement, OpCall):
            statement = replace(statement, results=refs)
        self.statements.append(statement)
        proxies = (None if ref.kind == "N" else PROXIES[ref.kind](self, ref) for ref in refs)
        return tuple(proxies)  # type: ignore[arg-type]  # None for results that are left out

    def _argument(self, value: object) -> Argument:
        """Convert an argument for a statement: proxies become references."""
        if isinstance(value, Proxy):
            if value.fd is not self:
                raise self._low.error(f"{value!r} belongs to another FusionDefinition")
            return value.ref
        if isinstance(value, (list, tuple)):
            return tuple(map(self._argument, value))
        if value is None or isinstance(
            value, (bool, int, float, complex, str, DataType, torch.dtype)
        ):
            return value
        raise self._low.error(
            f"an argument is a {type(value).__name__}; arguments must be tensors and scalars of "
            "the definition, or constants"
        )


def _user_line() -> Loc | None:
    """Return the location of the innermost frame outside the package."""
    for frame, line in walk_stack(sys._getframe()):
        file = frame.f_code.co_filename
        if not file.startswith(str(PACKAGE)):
            return Loc(file, line, linecache.getline(file, line).strip())
    return None


def _kind(item: Lowered) -> str:
    if item is None:
        return "N"
    if isinstance(item, tuple):
        return "V"
    return "T" if isinstance(item, Node) and not item.scalar else "S"
