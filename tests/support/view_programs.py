"""Random programs of views, writes and escapes, as a graph and as eager tensors side by side."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from tofuse.ir.call_arguments import CallArgument, CallArguments, OperandRef
from tofuse.ir.graph import Attr, Graph, Op, Value
from tofuse.ir.types import DType, TensorType
from tofuse.ops.result_types import infer_type

LENGTH = 7  # ops of a program, at most


@dataclass
class ViewProgram:
    """A program under construction: the graph's ops, and the tensor that eager has for each."""

    choose: random.Random
    tensors: dict[Value, torch.Tensor] = field(default_factory=dict)
    inputs: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)

    def run(self) -> Graph:
        for k in range(self.choose.randint(1, 2)):
            shape = tuple(self.choose.choice((1, 2, 3, 4, 6)) for _ in range(3))
            tensor = torch.empty(shape)
            if self.choose.random() < 0.3:
                tensor = torch.empty(shape[::-1]).permute(2, 1, 0)
            v = Value(TensorType(shape, DType.F32), f"x{k}", tensor.stride())
            self.inputs.append(v)
            self.tensors[v] = tensor
        for _ in range(self.choose.randint(1, LENGTH)):
            x = self.choose.choice([*self.tensors][-4:])
            self.choose.choice(STEPS)(self, x)
        count = min(3, len(self.tensors))
        self.outputs = self.choose.sample([*self.tensors], self.choose.randint(1, count))
        return Graph(tuple(self.inputs), tuple(self.ops), tuple(self.outputs))

    def add(self, kind: str, x: Value, tensor: torch.Tensor, **attrs: Attr) -> None:
        result = Value(infer_type(kind, (x,), attrs), f"v{len(self.ops)}")
        op = Op(kind, (x,), (result,), tuple(attrs.items()))
        assert result.shape == tuple(tensor.shape), (op, tensor.shape)
        self.ops.append(op)
        self.tensors[result] = tensor

    def add_library_call(
        self, x: Value, target: str, tensor: torch.Tensor, *args: CallArgument
    ) -> None:
        shape = tuple(tensor.shape)
        arguments = CallArguments((OperandRef(0), *args))
        attrs: dict[str, Attr] = {"target": target, "args": arguments}
        attrs |= {"shape": shape, "dtype": x.dtype}
        result = Value(TensorType(shape, DType.F32), f"v{len(self.ops)}", tensor.stride())
        self.ops.append(Op("opaque", (x,), (result,), tuple(attrs.items())))
        self.tensors[result] = tensor


def slice_step(program: ViewProgram, x: Value) -> None:
    choose, index, start, step, shape = program.choose, [], [], [], []
    for n in program.tensors[x].shape:
        a, s = choose.randrange(n), choose.choice((1, 1, 2, 3))
        b = choose.randint(a + 1, n)
        index.append(slice(a, b, s))
        start.append(a)
        step.append(s)
        shape.append(len(range(a, b, s)))
    bounds = {"start": tuple(start), "step": tuple(step), "shape": tuple(shape)}
    program.add("slice", x, program.tensors[x][tuple(index)], **bounds, dtype=x.dtype)


def permute_step(program: ViewProgram, x: Value) -> None:
    dims = program.choose.sample(range(len(x.shape)), len(x.shape))
    program.add("permute", x, program.tensors[x].permute(dims), dims=tuple(dims))


def reshape_step(program: ViewProgram, x: Value) -> None:
    """Of any kind, such as squeeze, flatten and split; in eager it is a view or a copy."""
    factors = [p for n in program.tensors[x].shape for p in ((2, 2) if n == 4 else (n,)) if p != 1]
    if program.choose.random() < 0.2:
        program.choose.shuffle(factors)
    shape: list[int] = []
    for p in factors:
        if shape and program.choose.random() < 0.5:
            shape[-1] *= p
        else:
            shape.append(p)
    if program.choose.random() < 0.4:
        shape.insert(program.choose.randint(0, len(shape)), 1)
    program.add("reshape", x, program.tensors[x].reshape(shape), shape=tuple(shape))


def expand_step(program: ViewProgram, x: Value) -> None:
    shape, dims, tensor = [], [], program.tensors[x]
    for n in tensor.shape:
        if program.choose.random() < 0.3:
            shape.append(program.choose.choice((1, 2, 3)))
            tensor = tensor.unsqueeze(len(shape) - 1)
        dims.append(len(shape))
        shape.append(n)
    if program.choose.random() < 0.1 or not shape:
        shape.append(2)
        tensor = tensor.unsqueeze(-1)
    program.add("broadcast", x, tensor.expand(shape), shape=tuple(shape), dims=tuple(dims))


def compute_step(program: ViewProgram, x: Value) -> None:
    tensor = torch.empty(program.tensors[x].shape)
    program.add("exp", x, tensor)


def library_view_step(program: ViewProgram, x: Value) -> None:
    """A view that PyTorch's own operator makes."""
    name, *args = program.choose.choice((("alias",), ("detach",), ("unsqueeze", 0)))
    target = f"aten.{name}.default"
    result = getattr(torch.ops.aten, name).default(program.tensors[x], *args)
    program.add_library_call(x, target, result, *args)


def as_strided_step(program: ViewProgram, x: Value) -> None:
    """A window on the whole storage, wherever its operand begins."""
    size = program.tensors[x].untyped_storage().nbytes() // 4
    n = program.choose.randint(1, size)
    step = program.choose.randint(1, max(1, size // n))
    start = program.choose.randint(0, size - 1 - (n - 1) * step) if (n - 1) * step < size else 0
    result = torch.ops.aten.as_strided.default(program.tensors[x], [n], [step], start)
    program.add_library_call(x, "aten.as_strided.default", result, (n,), (step,), start)


def library_step(program: ViewProgram, x: Value) -> None:
    result = torch.empty(program.tensors[x].shape)
    program.add_library_call(x, "aten.cumsum.default", result, 0)


STEPS: tuple[Callable[[ViewProgram, Value], None], ...] = (
    *(slice_step, permute_step, reshape_step, expand_step) * 2,
    *(compute_step, library_view_step, as_strided_step, library_step),
)


def random_view_program(seed: int) -> tuple[Graph, dict[Value, torch.Tensor]]:
    """Return a graph, and eager's tensor for each of its values."""
    program = ViewProgram(random.Random(seed))
    return program.run(), program.tensors
