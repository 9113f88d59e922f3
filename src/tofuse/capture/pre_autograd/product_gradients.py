"""Products and cumulative products whose gradients take linear time.

PyTorch looks for zeros in the data to choose a formula for the gradient. A graph cannot, so torch
traces the formula for zeros: scans and concats, or a loop over the elements. The formulas here are
right with and without zeros, and kernels compute them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import guard_or_false

from tofuse.capture.pre_autograd.replace_functions import Replacements, replace_calls
from tofuse.torch_internals.dispatch import is_traceable_wrapper_subclass
from tofuse.torch_internals.transforms import forward_mode_active, transforms_active


def product_gradients(gm: GraphModule) -> tuple[GraphModule, tuple[str, ...]]:
    """Replace in place the products of a program by `PRODUCTS`, not those of programs inside it."""
    replace_calls(gm, PRODUCTS)
    return gm, ()


def prod(
    input: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    axis: int | None = None,
    keepdims: bool = False,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return the product; arguments as PyTorch's, some with numpy's names, too."""
    dim, keepdim = axis if dim is None else dim, keepdim or keepdims
    if out is not None or not _is_trained(input, dtype, dim or 0):
        along = () if dim is None else (dim, keepdim)
        return torch.prod(input, *along, dtype=dtype, **({} if out is None else {"out": out}))
    result: Tensor = _Product.apply(_converted(input, dtype), dim)
    return result if keepdim or dim is None else result.squeeze(dim)


def cumprod(
    input: Tensor,
    dim: int | None = None,
    *,
    axis: int | None = None,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return the cumulative product; arguments as PyTorch's, some with numpy's names, too."""
    along = axis if dim is None else dim
    assert along is not None
    if out is None and _is_trained(input, dtype, along) and not _has_size(input, along, 1):
        result: Tensor = _CumulativeProduct.apply(_converted(input, dtype), along)
        return result
    return torch.cumprod(input, along, dtype=dtype, out=out)


def _converted(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    return x if dtype is None else x.to(dtype)


def _is_trained(x: Tensor, dtype: torch.dtype | None, dim: object) -> bool:
    """Return whether autograd, and nothing else, differentiates a product of real numbers."""
    if not isinstance(dim, int) or not x.dim() or _has_size(x, dim, 0):
        return False
    if transforms_active() or forward_mode_active() or is_traceable_wrapper_subclass(x):
        return False
    is_real = x.is_floating_point() and (dtype is None or dtype.is_floating_point)
    return is_real and x.requires_grad and torch.is_grad_enabled()


def _has_size(x: Tensor, dim: int, size: int) -> bool:
    return guard_or_false(x.shape[dim] == size)


def _differentiable_gradient(result: Tensor, x: Tensor, grad: Tensor) -> Tensor:
    return torch.autograd.grad(result, x, grad, create_graph=True)[0]


class _Context(FunctionCtx):
    saved_tensors: tuple[Tensor, Tensor]  # the operand and the result
    dim: int
    along: tuple[()] | tuple[int, bool]  # `dim` and `keepdim`, or nothing


class _Product(torch.autograd.Function):
    """The product of all elements, or along a dimension, which then has size 1."""

    @staticmethod
    def forward(ctx: _Context, x: Tensor, dim: int | None) -> Tensor:
        ctx.along = () if dim is None else (dim, True)
        result = torch.prod(x, *ctx.along)
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor, None]:
        """Multiply by the product of the other elements, for each element.

        If the tensor has no zero, that is the product divided by the element, as in eager; it is
        NaN for the only infinite element of a row. Of a product with two zeros of all elements,
        all gradients are zero in eager, even if others are NaN.
        """
        (x, product), along = ctx.saved_tensors, ctx.along
        if torch.is_grad_enabled():  # torch's formula can be differentiated
            return _differentiable_gradient(torch.prod(x, *along), x, grad), None
        is_zero, is_special = x == 0, ~torch.isfinite(x)
        zeros = is_zero.sum(*along, dtype=torch.int32)
        specials = is_special.sum(*along, dtype=torch.int32)
        nonzero = torch.where(is_zero, 1.0, x).prod(*along)
        finite = torch.where(is_zero | is_special, 1.0, x).prod(*along)
        # few values for each row are saved: of all specials and a zero, of the others at the only
        # zero, and of the others at the only special
        with_zero = torch.where(specials > 0, torch.nan, 0.0)
        product = torch.where(zeros == 0, product, with_zero)
        at_zero = torch.where(zeros == 1, nonzero, with_zero)
        at_special = torch.where(zeros == 0, finite, 0.0)
        at_special = torch.where(specials > 1, torch.nan, at_special)
        exact = torch.where(torch.isnan(at_special), product * torch.sign(x), at_special)
        others = torch.where(is_special & is_zero.any(), exact, product / x)
        gradient = grad * torch.where(is_zero, at_zero, others)
        return gradient if along else torch.where(zeros > 1, 0.0, gradient), None


class _CumulativeProduct(torch.autograd.Function):
    """The products of the elements up to each along a dimension of at least two."""

    @staticmethod
    def forward(ctx: _Context, x: Tensor, dim: int) -> Tensor:
        result = torch.cumprod(x, dim)
        ctx.save_for_backward(x, result)
        ctx.dim = dim % x.dim()
        return result

    @staticmethod
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor, None]:
        """Divide sums of the products by the element before a row's first zero, as eager does.

        The gradient at the first zero is a sum over the products with a one in its place, up to the
        second zero. After the first zero, gradients are zero.
        """
        (x, products), dim = ctx.saved_tensors, ctx.dim
        if torch.is_grad_enabled():  # torch's formula can be differentiated
            return _differentiable_gradient(torch.cumprod(x, dim), x, grad), None
        size = x.shape[dim]
        index = torch.arange(size, device=x.device).view(-1, *[1] * (x.dim() - 1 - dim))
        first = torch.where(x == 0, index, size).amin(dim, keepdim=True)
        second = torch.where((x == 0) & (index > first), index, size).amin(dim, keepdim=True)
        is_before = size - 1 - index < first
        terms = torch.where(is_before, products.flip(dim) * grad.flip(dim), 0.0)
        before = terms.cumsum(dim).flip(dim) / x
        scan = torch.where(index == first, 1.0, x).cumprod(dim)
        terms = torch.where((index >= first) & (index < second), scan * grad, 0.0)
        at_zero = torch.where(index == first, terms.sum(dim, keepdim=True), 0.0)
        return torch.where(index < first, before, at_zero), None


PRODUCTS: Replacements = {
    torch.prod: prod,
    Tensor.prod: prod,
    torch.cumprod: cumprod,
    Tensor.cumprod: cumprod,
}
