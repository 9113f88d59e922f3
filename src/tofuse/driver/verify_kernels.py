"""Compare every result of a kernel with the reference, in the program's precision and in f64."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tofuse.analysis.alias import is_view
from tofuse.backends.cpu.llvm.load import CODE
from tofuse.backends.cuda.runtime.cuda import empty_on, seed_address, synchronize
from tofuse.backends.launcher import KernelLauncher
from tofuse.driver.codegen import CodegenContext, generate_kernels
from tofuse.driver.load_kernels import linking_of, load_kernels
from tofuse.errors import VerifyError
from tofuse.ir.dims import Dim, evaluate
from tofuse.ir.graph import Graph, Op, Value
from tofuse.ir.region import Region
from tofuse.ir.types import DType
from tofuse.ops.f64_reference import to_f64
from tofuse.ops.reference import TO_TORCH, run_graph
from tofuse.plan.kernel_binding import KernelBinding
from tofuse.report.repro import region_graph, repro_folder, write_mismatch_repro
from tofuse.runtime.execute import address, with_memory

Sizes = Mapping[str, int]
Inputs = Sequence[Tensor]


@dataclass(frozen=True, eq=False)
class VerifiedKernel:
    """A region's kernel, whose results are compared with the reference in each call.

    A wrong result raises VerifyError, which names the first wrong operation.
    """

    region: Region
    binding: KernelBinding
    launch_kernel: KernelLauncher
    context: CodegenContext

    def __call__(self, inputs: Inputs, **sizes: int) -> tuple[Tensor, ...]:
        inputs = [_readable(t, v) for t, v in zip(inputs, self.region.inputs, strict=True)]
        results = self.launch(inputs, sizes)
        synchronize()  # raises for an index out of range on a GPU, which has no reference
        mismatch = self.mismatch(inputs, sizes, results)
        if mismatch is not None:
            raise VerifyError(self.explain(inputs, sizes, mismatch))
        return results

    def explain(self, inputs: Inputs, sizes: Sizes, mismatch: str) -> str:
        """Return the mismatch, the first wrong operation, and the path of a repro."""
        text = f"kernel {self.region.name} gives a wrong result: {mismatch}"
        op = self.first_wrong(inputs, sizes)
        if op is None:
            text += "; each operation is right by itself: tofuse.bisect finds the wrong fusion"
        else:
            at = f", {op.loc}: {op.loc.code}" if op.loc is not None else ""
            text += f"; the first wrong operation is {op.result.name} = {op.kind}{at}"
        folder = self.context.config.dump
        inputs_text = save_inputs(inputs, repro_folder(folder), self.region.name)
        graph = region_graph(self.region, self.context.partition.aliases.memrefs)
        path = write_mismatch_repro(graph, inputs_text, sizes, text, folder)
        return text if path is None else f"{text}; {path} reproduces it"

    def first_wrong(self, inputs: Inputs, sizes: Sizes) -> Op | None:
        """Return the first operation that is wrong in a kernel of it and its operands' ops."""
        values = dict(zip(self.region.inputs, inputs, strict=True))
        for k, op in enumerate(self.region.ops):
            if is_view(op):
                continue
            kernel = self._part(_slice_for(self.region, op, f"{self.region.name}_{k}"))
            if kernel is None:
                continue
            operands = [values[v] for v in kernel.region.inputs]
            if kernel.mismatch(operands, sizes, kernel.launch(operands, sizes)) is not None:
                return op
        return None

    def _part(self, region: Region) -> VerifiedKernel | None:
        """Return the kernel of a part of the region; None if it does not compile."""
        generated, _ = generate_kernels({region: None}, self.context)
        compiling = [g for g in generated if g.error is None]
        loaded = load_kernels(compiling, self.context, linking_of(CODE, self.context.config))
        if region not in loaded.bindings:
            return None
        return VerifiedKernel(region, loaded.bindings[region], loaded.launchers[0], self.context)

    def launch(self, inputs: Inputs, sizes: Sizes) -> tuple[Tensor, ...]:
        """Run the kernel without a comparison."""
        memrefs = self.context.partition.aliases.memrefs
        results = {v: _empty_result(v, memrefs[v].strides, sizes) for v in self.region.outputs}
        addresses = {v: t.data_ptr() for v, t in results.items()}
        for v, t in zip(self.region.inputs, inputs, strict=True):
            memref = memrefs.get(v)
            if memref is not None and memref.root not in addresses:
                offset = evaluate(memref.offset, sizes) * t.element_size()
                addresses[memref.root] = address(t) - offset
        words = [addresses[v] for v in self.binding.arguments]
        tensors = dict(zip(self.region.inputs, inputs, strict=True))
        for k in self.launch_kernel.host_seeds:  # in GPU memory while a graph is captured
            words[k] = seed_address(tensors[self.binding.arguments[k]])
        self.launch_kernel(*words, *[evaluate(s, sizes) for s in self.binding.sizes])
        return tuple(results.values())

    def mismatch(self, inputs: Inputs, sizes: Sizes, results: Sequence[Tensor]) -> str | None:
        """Describe the first wrong result; None if all are right. The reference runs on the CPU."""
        graph = Graph(self.region.inputs, self.region.ops, self.region.outputs)
        inputs, results = [t.cpu() for t in inputs], [t.cpu() for t in results]
        values = dict(zip(self.region.inputs, inputs, strict=True))
        reference = run_graph(graph, values, sizes)
        f64_graph, f64_value = to_f64(graph)
        f64_inputs = {
            f64_value[v]: t.double() if t.dtype.is_floating_point else t for v, t in values.items()
        }
        exact = run_graph(f64_graph, f64_inputs, sizes)
        if any(v.dtype is DType.F64 for v in graph.values()):
            f64_inputs = {v: _perturbed(t) for v, t in f64_inputs.items()}
            perturbed = run_graph(f64_graph, f64_inputs, sizes)
        else:
            perturbed = exact
        tolerance = tolerance_of(graph.values())
        for v, t in zip(self.region.outputs, results, strict=True):
            x = f64_value[v]
            reason = describe_mismatch(t, reference[v], exact[x], tolerance, perturbed[x])
            if reason is not None:
                return f"{v.name} {reason}"
        return None


def _readable(t: Tensor, value: Value) -> Tensor:
    """Return a tensor with memory and of the dtype that the kernel reads.

    A PyTorch operator may return another dtype than torch predicted.
    """
    dtype = TO_TORCH.get(value.dtype, t.dtype)
    return with_memory(t if t.dtype is dtype else t.to(dtype), mutated=False)


def _slice_for(region: Region, last: Op, name: str) -> Region:
    """Return a region of an op and all ops of the region that it depends on."""
    needed = {*last.results}
    ops: list[Op] = []
    for op in reversed(region.ops):
        if not needed.isdisjoint(op.results):
            needed.update(op.inputs)
            ops.append(op)
    return Region(name, tuple(reversed(ops)), last.results)


def _perturbed(x: Tensor) -> Tensor:
    """Return a float64 tensor whose elements differ by a unit in the last place, up or down."""
    if not x.is_floating_point():
        return x
    signs = torch.ones(x.numel(), dtype=x.dtype)
    signs[::2] = -1
    return x * (1 + torch.finfo(x.dtype).eps * signs.reshape(x.shape))


def tolerance_of(values: Iterable[Value]) -> float:
    """Return the relative error that is allowed where these values are computed."""
    return max(_TOLERANCES.get(v.dtype, 0.0) for v in values)


def describe_mismatch(
    got: Tensor, reference: Tensor, exact: Tensor, tolerance: float, perturbed: Tensor | None = None
) -> str | None:
    """Describe how a result differs from the reference by more than rounding; None if it does not.

    `reference` is in the program's precision, `exact` in float64. Allowed are eight times the
    largest error of the reference, plus `tolerance` times the value and the mean magnitude. In
    float64, the reference has no error: that of `perturbed` counts, the reference for inputs that
    differ in the last place, if it is small.
    """
    if got.numel() == 0:
        return None
    if not got.dtype.is_floating_point:
        wrong = (got != reference) & (got != exact.to(got.dtype))
        # rounding may move a value across the threshold of a comparison
        count = int(wrong.sum())
        few = count <= (0.01 * got.numel() if tolerance else 0)
        return None if few else f"differs in {count} of {got.numel()} elements"
    a, b, e = got.double(), reference.double(), exact.double()
    reference_error = (b - e).abs().nan_to_num(0.0, 0.0, 0.0).max()
    magnitude = e.abs().nan_to_num(0.0, 0.0, 0.0).mean()
    if perturbed is not None:
        noise = (perturbed.double() - e).abs().nan_to_num(0.0, 0.0, 0.0).max()
        reference_error += noise if noise < _TOLERANCES[DType.F64] else 0.0
    limit = 8 * reference_error + tolerance * (e.abs() + magnitude)
    right = ((a - e).abs() <= limit) | (a == e) | (a == b)
    right |= (a.isnan() & (b.isnan() | e.isnan())) | ~(b.isfinite() & e.isfinite())
    if bool(right.all()):
        return None
    at = tuple((~right).nonzero()[0].tolist())
    count = int((~right).sum())
    where = f"at {list(at)} it is {a[at]:.6g}, and {e[at]:.6g} in float64" if at else f"is {a:.6g}"
    return f"is wrong in {count} of {got.numel()} elements: {where}"


def save_inputs(inputs: Inputs, folder: Path, name: str) -> str:
    """Write inputs to a file and return Python text that loads them; text of ones if that fails."""
    path = folder / f"{name}.pt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        torch.save([t.detach() for t in inputs], path)
    except OSError:
        ones = (f"torch.ones({list(t.shape)}, dtype={t.dtype})" for t in inputs)
        return f"[{', '.join(ones)}]"
    return f"torch.load({str(path)!r}, weights_only=True)"


def _empty_result(v: Value, strides: Sequence[Dim], sizes: Sizes) -> Tensor:
    shape = [evaluate(d, sizes) for d in v.shape]
    layout = [evaluate(s, sizes) for s in strides]
    if not v.type.on_host:
        return empty_on(v.type.device)(tuple(shape), tuple(layout), TO_TORCH[v.dtype])
    return torch.empty_strided(shape, layout, dtype=TO_TORCH[v.dtype])


_TOLERANCES = {
    DType.F64: 1e-9,
    DType.F32: 1e-4,
    DType.F16: 4e-3,
    DType.BF16: 3e-2,
    DType.F8E4M3: 0.13,
    DType.F8E5M2: 0.26,
}
