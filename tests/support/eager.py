"""Comparison of a compiled program with eager: values, dtypes, strides, aliasing, gradients.

Strides of gradients are not compared: autograd guarantees none, except for `.grad`.
"""

import torch
from torch.utils._pytree import tree_leaves, tree_map

import tofuse


def tensors(tree):
    return [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]


def copies(tree):
    """Return a copy of the tree; strides and aliasing of its tensors are preserved."""
    storages: dict[int, torch.UntypedStorage] = {}

    def copy(t):
        if not isinstance(t, torch.Tensor):
            return t
        if t.layout is not torch.strided or t.device.type != "cpu" or t.is_quantized:
            return t.detach().clone().requires_grad_(t.requires_grad)
        storage = t.untyped_storage()
        copied = storages.setdefault(storage._cdata, storage.clone())
        new = torch.empty(0, dtype=t.dtype)
        new.set_(copied, t.storage_offset(), t.shape, t.stride())
        return new.requires_grad_(t.requires_grad)

    return tree_map(copy, tree)


def outcome(fn, args, kwargs, seed=0):
    """Return outputs, gradients of the arguments (or None), and the arguments after the call."""
    torch.manual_seed(seed)
    outputs = fn(*args, **kwargs)
    leaves = [t for t in tensors((args, kwargs)) if t.requires_grad and t.is_leaf]
    sources = [t for t in tensors(outputs) if t.requires_grad]
    grads: tuple[torch.Tensor, ...] = ()
    if sources and leaves:
        weights = [torch.linspace(-1, 1, t.numel()).reshape(t.shape).to(t) for t in sources]
        grads = torch.autograd.grad(sources, leaves, weights, allow_unused=True)
    return outputs, grads, args


def assert_as_eager(fn, *args, rtol=2e-5, atol=2e-5, calls=2, options=None, **kwargs):
    """Assert that compiled and eager agree on copies of the arguments, at each of `calls` calls."""
    compiled = tofuse.compile(fn, **(options or {}))
    for _ in range(calls):
        mine, theirs = copies((args, kwargs)), copies((args, kwargs))
        assert_same(outcome(compiled, *mine), outcome(fn, *theirs), rtol=rtol, atol=atol)
    return compiled


def assert_same(got, expected, *, rtol=2e-5, atol=2e-5):
    """Assert that two results of `outcome` agree."""
    for name, a, b in zip(("outputs", "gradients", "arguments"), got, expected, strict=True):
        mine, theirs = tree_leaves(a), tree_leaves(b)
        assert len(mine) == len(theirs), name
        for x, y in zip(mine, theirs, strict=True):
            assert type(x) is type(y), (name, x, y)
            if isinstance(x, torch.Tensor):
                assert_same_tensor(x, y, name, rtol, atol)
            else:
                assert x == y or x != x, name
    aliases = [
        [_aliased_arguments(o, tensors(args)) for o in tensors(out)]
        for out, _, args in (got, expected)
    ]
    assert aliases[0] == aliases[1], "outputs alias other arguments than eager's"


def assert_same_tensor(x, y, name="result", rtol=0.0, atol=0.0):
    properties = [(t.dtype, t.shape, t.device, t.requires_grad, t.layout) for t in (x, y)]
    assert properties[0] == properties[1], name
    if name != "gradients" and x.layout is torch.strided and x.numel() > 1:
        assert _strides(x) == _strides(y), (name, x.stride(), y.stride())
    if rtol == atol == 0 and x.layout is torch.strided:
        assert bits(x) == bits(y), (name, x, y)
    else:
        torch.testing.assert_close(x, y, rtol=rtol, atol=atol, equal_nan=True, msg=_prefix(name))


def bits(t):
    """Return the bytes of a tensor: -0.0 differs from 0.0, and all nans are equal."""
    t = t.detach().contiguous()
    if t.is_floating_point():
        t = torch.where(t.isnan(), torch.full_like(t, float("nan")), t)
    return t.reshape(-1).view(torch.uint8).tolist() if t.numel() else []


def _prefix(name):
    return lambda message: f"{name}: {message}"


def _strides(t):
    return [s for s, extent in zip(t.stride(), t.shape, strict=True) if extent > 1]


def _aliased_arguments(output, arguments):
    """Return the positions of the arguments whose memory an output shares."""
    if output.layout is not torch.strided or output.device.type == "meta":
        return []
    storage = output.untyped_storage()._cdata
    strided = [a for a in arguments if a.layout is torch.strided and a.device.type != "meta"]
    return [k for k, a in enumerate(strided) if a.untyped_storage()._cdata == storage]


def kernel_names(fn, *args, **options):
    """Return the names of the kernels of one call, forward then backward."""
    return [k.name for k in tofuse.explain(fn, **options)(*copies(args)).kernels]
