"""The seed programs, as a user would write them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DROP = 0.1  # drop probability of the bias-dropout-add-norm programs
EPSILON = 1e-12


def complex_activation(x: Tensor, y: Tensor) -> Tensor:
    """Six elementwise kernels in eager; x and y are both used by the last ones."""
    wave = torch.sin(x)
    carrier = torch.cos(y)
    modulated = wave * carrier
    shifted = modulated + x
    gated = shifted * y
    return torch.relu(gated)


def mlp_unused_product(x: Tensor, gate: Tensor, spare: Tensor, down: Tensor) -> Tensor:
    """Three matrix products, one of which is not used."""
    hidden = x @ gate
    _unused = x @ spare
    return F.relu(hidden) @ down


def split_stack(x: Tensor, rows: int, width: int) -> Tensor:
    """Norm and tanh of each slice, stack, then project each row to one number."""
    norm = nn.LayerNorm(width, eps=0.0, elementwise_affine=False, device=x.device)
    pieces = []
    for piece in torch.split(x, rows * width):
        pieces.append(torch.tanh(norm(piece.view(rows, width))))
    stacked = torch.stack(pieces)
    project = nn.Linear(width, 1, device=x.device)
    return F.relu(project(stacked))


def combined(x: Tensor, rows: int, width: int) -> Tensor:
    """Compute the same as `split_stack` on one three-dimensional view."""
    norm = nn.LayerNorm(width, eps=0.0, elementwise_affine=False, device=x.device)
    bounded = torch.tanh(norm(x.view(-1, rows, width)))
    project = nn.Linear(width, 1, device=x.device)
    return F.relu(project(bounded))


def split_stack_weights(x: Tensor, weight: Tensor, bias: Tensor, rows: int) -> Tensor:
    """`split_stack` with the projection's weights as arguments, as one graph without a module."""
    width = weight.shape[1]
    pieces = [piece.view(rows, width) for piece in torch.split(x, rows * width)]
    bounded = [torch.tanh(F.layer_norm(piece, (width,), eps=0.0)) for piece in pieces]
    return F.relu(F.linear(torch.stack(bounded), weight, bias))


def combined_weights(x: Tensor, weight: Tensor, bias: Tensor, rows: int) -> Tensor:
    """`combined` with the projection's weights as arguments."""
    width = weight.shape[1]
    bounded = torch.tanh(F.layer_norm(x.view(-1, rows, width), (width,), eps=0.0))
    return F.relu(F.linear(bounded, weight, bias))


def composite_tail(dropped: Tensor, residual: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
    """Add and normalize with PyTorch's layer norm."""
    return F.layer_norm(dropped + residual, (residual.size(-1),), weight, shift)


def primitive_tail(dropped: Tensor, residual: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
    """Add and normalize in primitive arithmetic."""
    summed = dropped + residual
    mean = summed.mean(-1, keepdim=True)
    spread = summed - mean
    variance = (spread * spread).mean(-1, keepdim=True)
    return weight * ((summed - mean) / torch.sqrt(variance + EPSILON)) + shift


def rms_tail(dropped: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    """Add and divide by the root mean square."""
    summed = dropped + residual
    power = summed.mul(summed).mean(-1, keepdim=True)
    return weight * (summed / torch.sqrt(power + EPSILON))


def composite(x: Tensor, bias: Tensor, residual: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
    """Bias, dropout, add, layer norm."""
    dropped = F.dropout(x + bias, DROP, training=True)
    return composite_tail(dropped, residual, weight, shift)


def primitive(x: Tensor, bias: Tensor, residual: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
    """Bias, dropout, add, layer norm in primitive arithmetic."""
    dropped = F.dropout(x + bias, DROP, training=True)
    return primitive_tail(dropped, residual, weight, shift)


def rms(x: Tensor, bias: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    """Bias, dropout, add, root-mean-square norm."""
    dropped = F.dropout(x + bias, DROP, training=True)
    return rms_tail(dropped, residual, weight)


def composite_keep_all(
    x: Tensor, bias: Tensor, residual: Tensor, weight: Tensor, shift: Tensor
) -> Tensor:
    """Bias, dropout with probability zero, add, layer norm."""
    dropped = F.dropout(x + bias, 0.0, training=True)
    return composite_tail(dropped, residual, weight, shift)


def gelu(x: Tensor) -> Tensor:
    """Exact gelu in primitive arithmetic: x / 2 * (1 + erf(x / sqrt(2)))."""
    half = x * 0.5
    bell = torch.erf(x * 0.707107) + 1.0
    return half * bell


def gelu_bookends(x: Tensor, batch: int) -> Tensor:
    """The same gelu between a view and its inverse."""
    rows, width = x.shape
    grouped = x.view(batch, rows // batch, width)
    return gelu(grouped).view(rows, width)


def gelu_bookends_kept(x: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """The same; the first view is also an output, and aliases the input."""
    rows, width = x.shape
    grouped = x.view(batch, rows // batch, width)
    return grouped, gelu(grouped).view(rows, width)


def heads_to_rows(x: Tensor, heads: int) -> Tensor:
    """Concatenate the heads of attention: views around one transpose."""
    merged, length, width = x.shape
    batch = merged // heads
    split = x.view(batch, heads, length, width)
    swapped = split.permute(0, 2, 1, 3).contiguous()
    joined = swapped.view(batch, length, heads * width)
    return joined.view(batch * length, heads * width)


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last dimension."""
    return F.softmax(x, dim=-1)


def lone_view(x: Tensor, batch: int) -> Tensor:
    """A single view, which needs no work."""
    return x.view(batch, x.shape[0] // batch, x.shape[1])


def lone_reshape(x: Tensor) -> Tensor:
    """A single reshape that needs no copy."""
    return x.reshape(-1)


def view_chain(x: Tensor, batch: int, first: bool, middle: bool, last: bool) -> Tensor:
    """Double, then square, with optional views before, between and after."""
    if first:
        x = swap_view(x, batch)
    x = x + x
    if middle:
        x = swap_view(x, batch)
    x = x * x
    if last:
        x = swap_view(x, batch)
    return x


def swap_view(x: Tensor, batch: int) -> Tensor:
    """Turn [rows, width] into [batch, rows / batch, width] and back."""
    if x.dim() == 2:
        return x.view(batch, x.shape[0] // batch, x.shape[1])
    return x.view(-1, x.shape[-1])
