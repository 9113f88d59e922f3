"""Writing a definition down: inputs, ops and outputs, each checked where the user wrote it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

import torch

from tofuse.errors import DefinitionError
from tofuse.frontends.caller_location import user_line
from tofuse.frontends.datatypes import DataType, datatype, number_type
from tofuse.frontends.define_tensor import (
    Contiguity,
    as_strides,
    strided_input,
    tensor_input,
)
from tofuse.frontends.handles import HANDLES, Handle, Scalar, Tensor, Vector
from tofuse.frontends.lowering import Lowered, Lowering, Node, located
from tofuse.frontends.program import (
    RULES,
    SYNONYMS,
    AddOutput,
    Argument,
    Call,
    DefineScalar,
    DefineVector,
    Environment,
    Ref,
    Statement,
    lower,
    parameters,
)
from tofuse.ir.graph import Loc


class Ops:
    """`fd.ops`: every op as a method that appends it and returns its results."""

    def __init__(self, fd: Recording) -> None:
        self._fd = fd

    def __getattr__(self, name: str) -> Callable[..., Tensor]:
        if name not in RULES:
            near = difflib.get_close_matches(name, RULES, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise AttributeError(f"there is no op {name!r}{hint}")

        def op(*args: object, **kwargs: object) -> Tensor:
            return self._fd.record(name, *args, **kwargs)

        op.__name__ = name
        op.__doc__ = RULES[name].__doc__
        return op

    def __dir__(self) -> list[str]:
        return sorted(RULES)


class Recording:
    """The statements so far. They are lowered as they come, which finds what does not fit."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ops = Ops(self)
        self.statements: list[Statement] = []
        self.open, self.closed = False, False
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
        """An input tensor, by shape and contiguity, or by sizes and strides.

        In a shape -1 is symbolic and 1 broadcasts. `contiguity` says for each dimension whether
        it follows densely on the next faster one; in `stride_order` a larger number is slower.
        """
        loc, result = self._line("define_tensor"), self._ref("T")
        extents = symbolic_sizes if shape is None else shape
        flags = contiguity if contiguous is None else contiguous
        if isinstance(extents, (list, tuple)) and (by_position := as_strides(flags)) is not None:
            sizes, strides = extents, by_position
        try:
            if sizes is not None and strides is not None:
                made = strided_input(result, loc, sizes, strides, dtype, static_sizes, is_cpu)
            elif extents is not None:
                made = tensor_input(result, loc, extents, flags, dtype, is_cpu, stride_order)
            else:
                raise DefinitionError("it needs a shape, or sizes and strides")
        except DefinitionError as e:
            raise DefinitionError(located("define_tensor", loc, str(e))) from None
        return self._append(made, (result,))[0]  # type: ignore[return-value]  # a T

    def from_pytorch(self, tensor: torch.Tensor, static_sizes: bool = False) -> Tensor:
        """An input like this tensor."""
        scalar_on_cpu = tensor.dim() == 0 and tensor.device.type == "cpu"
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
        """A constant where a value is given, else an input."""
        loc, result = self._line("define_scalar"), self._ref("S")
        if isinstance(value, DataType):
            value, dtype = None, value
        if dtype is None:
            dtype = DataType.Double if value is None else number_type(value)
        made = DefineScalar(result, value, datatype(dtype), loc)
        return self._append(made, (result,))[0]  # type: ignore[return-value]  # an S

    define_constant = define_scalar

    def define_vector(
        self, values: int | Sequence[Scalar | int], dtype: DataType = DataType.Int
    ) -> Vector:
        """Given entries, or so many integers as an input."""
        loc, result = self._line("define_vector"), self._ref("V")
        entries = (
            None
            if isinstance(values, int)
            else tuple(self._given(v, loc, "define_vector") for v in values)
        )
        size = values if isinstance(values, int) else len(values)
        made = DefineVector(result, entries, size, loc)
        return self._append(made, (result,))[0]  # type: ignore[return-value]  # a V

    def add_output(
        self,
        output: Handle,
        alias_input: Handle | None = None,
        stride_order: Sequence[int] = (),
    ) -> None:
        """A result. With `alias_input` it is written into that input and not returned."""
        loc = self._line("add_output")
        refs = [self._given(h, loc, "add_output") for h in (output, alias_input) if h is not None]
        if not all(isinstance(r, Ref) for r in refs):
            message = f"{output!r} is not defined by this FusionDefinition"
            raise DefinitionError(located("add_output", loc, message))
        alias = refs[1] if len(refs) > 1 else None
        made = AddOutput(refs[0], alias, tuple(stride_order), loc)  # type: ignore[arg-type]
        self._append(made, ())

    def permute(self, arg: Handle, dims: Sequence[int] | None = None) -> Tensor:
        """The spelling of 2022 for `fd.ops.permute`."""
        return self.record("permute", arg, dims)

    # -- ops -------------------------------------------------------------------------------------

    def record(self, name: str, *args: object, **kwargs: object) -> Tensor:
        """Append an op; DefinitionError names it and the user's line where it does not fit.

        Returns a Tensor, a Scalar or a Vector; a tuple of them where the op has several results.
        """
        loc = self._line(name)
        signature = parameters(name)
        for given in list(kwargs):
            if given not in signature.parameters:
                other = next(
                    (s for s in SYNONYMS.get(given, ()) if s in signature.parameters), None
                )
                if other is not None and other not in kwargs:
                    kwargs[other] = kwargs.pop(given)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as e:
            raise DefinitionError(located(name, loc, f"{e}; it is {name}{signature}")) from None
        arguments = tuple((k, self._given(v, loc, name)) for k, v in bound.arguments.items())
        call = Call(name, arguments, (), loc)
        mark = len(self._low.build.ops)
        try:
            made = lower(self._low, call, self._env)
        except (DefinitionError, NotImplementedError):
            del self._low.build.ops[mark:]
            raise
        except (TypeError, ValueError, AssertionError, AttributeError, KeyError) as e:
            raise DefinitionError(located(name, loc, f"its arguments do not fit: {e}")) from e
        first = len(self._env)
        refs = tuple(Ref(first + k, _kind(item)) for k, item in enumerate(made))
        self._env |= {ref.index: item for ref, item in zip(refs, made, strict=True)}
        self.statements.append(Call(name, arguments, refs, loc))
        handles = tuple(HANDLES[ref.kind](self, ref) for ref in refs)
        return handles[0] if len(handles) == 1 else handles  # type: ignore[return-value]  # see above

    def lowered(self, ref: Ref) -> Lowered:
        """What a handle stands for."""
        return self._env[ref.index]

    # -- helpers ---------------------------------------------------------------------------------

    def _line(self, op: str) -> Loc | None:
        """The user's line; DefinitionError outside the context."""
        loc = user_line()
        if not self.open:
            message = "it belongs inside `with FusionDefinition() as fd:`"
            raise DefinitionError(located(op, loc, message))
        return loc

    def _ref(self, kind: str) -> Ref:
        return Ref(len(self._env), kind)

    def _append(self, statement: Statement, results: tuple[Ref, ...]) -> list[Handle]:
        lower(self._low, statement, self._env)
        self.statements.append(statement)
        return [HANDLES[ref.kind](self, ref) for ref in results]

    def _given(self, value: object, loc: Loc | None, op: str) -> Argument:
        """An argument as a statement keeps it: handles by number."""
        if isinstance(value, Handle):
            if value.fd is not self:
                message = f"{value!r} belongs to another FusionDefinition"
                raise DefinitionError(located(op, loc, message))
            return value.ref
        if isinstance(value, (list, tuple)):
            return tuple(self._given(v, loc, op) for v in value)
        if value is None or isinstance(
            value, (bool, int, float, complex, str, DataType, torch.dtype)
        ):
            return value
        message = f"an argument is {type(value).__name__}, where tensors of the definition belong"
        raise DefinitionError(located(op, loc, message))


def _kind(item: Lowered) -> str:
    if isinstance(item, tuple):
        return "V"
    return "T" if isinstance(item, Node) and not item.scalar else "S"
