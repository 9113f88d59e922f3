"""Run programs in processes that lack private names of torch, each process other names.

    python -m tests.support.run_without name,name name ...

Each argument is the list of names that one process lacks. Prints the tracebacks of those that fail.
"""

import os
import sys
import tempfile
import traceback
import warnings

import torch
import torch._dynamo
import torch._functorch.aot_autograd
import torch._functorch.partitioners
import torch._functorch.predispatch
from torch.nn import functional as F

EVERYTHING = "PyTorch runs every program"  # as in tofuse.torch_internals.private_names
TRACING = f"{EVERYTHING} with capture='trace'"


def normalized(x, w):
    return F.gelu(F.layer_norm(x @ w, x.shape[-1:])) + x


def pooled(x):
    return F.max_pool1d(x, 2).relu() * (x.shape[-1] // 2)


def branches(x):
    return torch.stack([torch.tanh(x[:, k]) * 2 for k in range(8)])


def written(x, y):
    x.add_(y)
    return x * 2, x[1:]


def check(compiled, eager, *inputs):
    """Compare results and gradients with eager's, several times: memory is used again."""
    for _ in range(3):
        results = []
        for call in (compiled, eager):
            copies = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
            outputs = call(*copies)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            if outputs[0].requires_grad:
                sum(o.square().sum() for o in outputs).backward()
            results.append([*outputs, *copies, *(x.grad for x in copies if x.grad is not None)])
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs)


def run_programs(names):
    import tofuse
    import tofuse.public  # looks all names up
    from tofuse.torch_internals.private_names import missing_names

    missing = {n.name: n.lost for n in missing_names()}
    assert {*names} <= {*missing}, f"not looked up: {names}"
    x, w = torch.randn(256, 256, requires_grad=True), torch.randn(256, 256, requires_grad=True)
    report = tofuse.explain(normalized)(x.detach(), w.detach())
    captured = EVERYTHING not in missing.values()
    assert bool(report.kernels) == captured
    noted = [n for n in names if missing[n] and (captured or missing[n] == EVERYTHING)]
    assert all(name in str(report) for name in noted)
    check(tofuse.compile(normalized), normalized, x, w)
    check(tofuse.memory_efficient_fusion(normalized), normalized, x, w)
    check(torch.compile(written, backend="tofuse"), written, x.detach(), w.detach())
    if not captured or TRACING in missing.values():
        return
    layer = torch.nn.Sequential(torch.nn.Linear(256, 8), torch.nn.Tanh())
    check(tofuse.compile(layer), layer, x)
    check(tofuse.compile(branches), branches, torch.randn(64, 8, 32, requires_grad=True))
    symbolic = tofuse.compile(pooled, dynamic=True)
    for size in (32, 48):
        check(symbolic, pooled, torch.randn(2, 3, size, requires_grad=True))


def run_in_fork(names):
    """Return whether the programs are right in a child of this process."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            os.environ.update(TOFUSE_WITHOUT=",".join(names), TOFUSE_CACHE_DIR=folder)
            run_programs(names)
    except BaseException:
        print(f"without {names}:\n{traceback.format_exc()}", flush=True)
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    right = [run_in_fork(argument.split(",")) for argument in sys.argv[1:]]
    sys.exit(not all(right))
