"""Hold a compiled program against eager: values, dtypes, strides, aliasing, mutation, gradients.

The strides of gradients are left out: autograd promises none, except for `.grad`.
"""

import torch
from torch.utils._pytree import tree_leaves, tree_map

import tofuse


def tensors(tree):
    return [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]


def copies(tree):
    """The same tree with tensors of its own: same strides, aliases among them kept."""
    storages: dict[int, torch.UntypedStorage] = {}

    def copy(t):
        if not isinstance(t, torch.Tensor):
            return t
        if t.layout is not torch.strided or t.device.type != "cpu" or t.is_quantized:
            return t.detach().clone().requires_grad_(t.requires_grad)
        held = t.untyped_storage()
        mine = storages.setdefault(held._cdata, held.clone())
        new = torch.empty(0, dtype=t.dtype)
        new.set_(mine, t.storage_offset(), t.shape, t.stride())
        return new.requires_grad_(t.requires_grad)

    return tree_map(copy, tree)


def outcome(fn, args, kwargs, seed=0):
    """Outputs, gradients of the arguments (or None), the arguments afterwards."""
    torch.manual_seed(seed)
    outputs = fn(*args, **kwargs)
    wanted = [t for t in tensors((args, kwargs)) if t.requires_grad and t.is_leaf]
    sources = [t for t in tensors(outputs) if t.requires_grad]
    grads: tuple[torch.Tensor, ...] = ()
    if sources and wanted:
        weights = [torch.linspace(-1, 1, t.numel()).reshape(t.shape).to(t.dtype) for t in sources]
        grads = torch.autograd.grad(sources, wanted, weights, allow_unused=True)
    return outputs, grads, args


def assert_as_eager(fn, *args, rtol=2e-5, atol=2e-5, calls=2, options=None, **kwargs):
    """Compiled and eager agree on copies of the arguments, and again at a second call."""
    compiled = tofuse.compile(fn, **(options or {}))
    for _ in range(calls):
        mine, theirs = copies((args, kwargs)), copies((args, kwargs))
        assert_same(outcome(compiled, *mine), outcome(fn, *theirs), rtol=rtol, atol=atol)
    return compiled


def assert_same(got, expected, *, rtol=2e-5, atol=2e-5):
    """Two outcomes of `outcome` agree."""
    for name, a, b in zip(("outputs", "gradients", "arguments"), got, expected, strict=True):
        mine, theirs = tree_leaves(a), tree_leaves(b)
        assert len(mine) == len(theirs), name
        for x, y in zip(mine, theirs, strict=True):
            assert type(x) is type(y), (name, x, y)
            if isinstance(x, torch.Tensor):
                assert_same_tensor(x, y, name, rtol, atol)
            else:
                assert x == y or x != x, name
    shared = [
        [_sharing(o, tensors(args)) for o in tensors(out)] for out, _, args in (got, expected)
    ]
    assert shared[0] == shared[1], "outputs alias other arguments than eager's"


def assert_same_tensor(x, y, name="result", rtol=0.0, atol=0.0):
    facts = [(t.dtype, t.shape, t.device, t.requires_grad, t.layout) for t in (x, y)]
    assert facts[0] == facts[1], name
    if name != "gradients" and x.layout is torch.strided and x.numel() > 1:
        assert _strides(x) == _strides(y), (name, x.stride(), y.stride())
    if rtol == atol == 0 and x.layout is torch.strided:
        assert bits(x) == bits(y), (name, x, y)
    else:
        torch.testing.assert_close(x, y, rtol=rtol, atol=atol, equal_nan=True, msg=_named(name))


def bits(t):
    """The bytes of a tensor, so that -0.0 differs from 0.0; all nans are one."""
    t = t.detach().contiguous()
    if t.is_floating_point():
        t = torch.where(t.isnan(), torch.full_like(t, float("nan")), t)
    return t.reshape(-1).view(torch.uint8).tolist() if t.numel() else []


def _named(name):
    return lambda message: f"{name}: {message}"


def _strides(t):
    return [s for s, extent in zip(t.stride(), t.shape, strict=True) if extent > 1]


def _sharing(output, arguments):
    """Places of the arguments whose memory an output shares."""
    if output.layout is not torch.strided or output.device.type == "meta":
        return []
    mine = output.untyped_storage()._cdata
    strided = [a for a in arguments if a.layout is torch.strided and a.device.type != "meta"]
    return [k for k, a in enumerate(strided) if a.untyped_storage()._cdata == mine]


def kernels(fn, *args, **options):
    """Names of the kernels of one call, forward then backward."""
    return [k.name for k in tofuse.explain(fn, **options)(*copies(args)).kernels]
