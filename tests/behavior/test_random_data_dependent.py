"""Random programs whose sizes and numbers depend on data, against eager."""

import random
import warnings

import pytest
import torch

import tofuse
from tests.support.eager import assert_same, copies, outcome

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def rows(x, i, n):
    return x[i.nonzero()[:, 0]]


def masked_rows(x, i, n):
    return x[i > 0]


def masked(x, i, n):
    return torch.masked_select(x, x > 0).unsqueeze(1).expand(-1, 3)


def masked_elements(x, i, n):
    return x.sin()[x < 0.5][:, None] * torch.ones(3)


def unique(x, i, n):
    values, _, counts = torch.unique(i, return_inverse=True, return_counts=True)
    return (values * counts)[:, None] + x.mean(0)


def repeated(x, i, n):
    return torch.repeat_interleave(x, i.clamp(0, 2), dim=0)


def split(x, i, n):
    a, b = (i > 0).sum().item(), (i <= 0).sum().item()
    return torch.split(x, [a, b])[0] * 2


def narrowed(x, i, n):
    k = n.item()
    torch._check(k >= 0)
    torch._check(k <= x.shape[0])
    return x.narrow(0, 0, k)


def sliced(x, i, n):
    k = n.item()
    torch._check(k >= 0)
    torch._check(k < x.shape[0])
    return x[k:].exp()


def created(x, i, n):
    k = n.item()
    torch._check(k >= 0)
    return torch.cat([x.new_ones(k, 3), torch.zeros(k, 3), x])


def ranged(x, i, n):
    k = n.item()
    torch._check(k >= 0)
    return torch.arange(k, dtype=x.dtype)[:, None] * x.new_ones(3) + x.sum(0)


def expanded(x, i, n):
    k = n.item()
    torch._check(k >= 0)
    return x.mean(0, keepdim=True).expand(k, 3)


def numbered(x, i, n):
    return x * n.item() - i.float().mean().item()


PRODUCERS = [
    rows, masked_rows, masked, masked_elements, unique, repeated, split, narrowed, sliced, created,
    ranged, expanded, numbered,
]  # fmt: skip


def softmax(z, x):
    return torch.softmax(z, 1)


def normalized(z, x):
    return (z - z.mean(1, keepdim=True)) * (z.var(1, keepdim=True) + 1).rsqrt()


def joined(z, x):
    return torch.cat([z, x.cos(), z * 2])


def transposed(z, x):
    return (z.t().contiguous() + 1).t()


def product(z, x):
    return torch.relu(z @ (x.t() @ x))


def indexed(z, x):
    return z[:, torch.tensor([2, 0, 1])] + z


def flattened(z, x):
    return (z.reshape(-1) * 2).view(-1, 3)


def cumulated(z, x):
    return z.cumsum(0)


def centered(z, x):
    return z - z.sum(0)


def again(z, x):
    return z[z[:, 0] > 0.25] + 1


def padded(z, x):
    return torch.nn.functional.pad(z, (0, 0, 1, 2)).tanh()


def flipped(z, x):
    return z.flip(0) * torch.arange(z.shape[0])[:, None]


CONSUMERS = [
    softmax, normalized, joined, transposed, product, indexed, flattened, cumulated, centered,
    again, padded, flipped,
]  # fmt: skip


def program(seed):
    """Return a program of random producers, each with consumers, and the options to compile it."""
    rng = random.Random(seed)
    chains = [
        (rng.choice(PRODUCERS), rng.choices(CONSUMERS, k=rng.randint(1, 3)))
        for _ in range(rng.randint(1, 3))
    ]
    join, write, reduce = (rng.random() < 0.4 for _ in range(3))

    def fn(x, i, n, w):
        results = []
        for produce, consumers in chains:
            z = produce(x, i, n)
            for consume in consumers:
                z = consume(z, x)
            results.append(z.sum(0) if reduce else z)
        if join:
            results.append(torch.cat([z.reshape(-1, 3) for z in results]).sum(0))
        if write:
            w.mul_(2).add_(results[0].sum().detach())
        return results

    names = [p.__name__ + "".join(f".{c.__name__}" for c in cs) for p, cs in chains]
    return fn, rng, f"{' '.join(names)} join={join} write={write} reduce={reduce}"


def arguments(rng, grad):
    length = rng.choice([1, 2, 5, 7, 8])
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    x = torch.randn(length, 3, generator=generator)
    if rng.random() < 0.3:
        x = torch.randn(3, length, generator=generator).t()
    i = torch.randint(-1, 3, (length,), generator=generator)
    if rng.random() < 0.2:
        i = i * 0
    n = torch.tensor(rng.randrange(length))
    return x.detach().requires_grad_(grad), i, n, torch.ones(3)


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_are_as_eager(seed):
    fn, rng, text = program(seed)
    options = {"dynamic": rng.choice([None, False, True])}
    grad = rng.random() < 0.6
    compiled = tofuse.compile(fn, fullgraph=True, strict=True, **options)
    settings = {"capture_dynamic_output_shape_ops": True, "capture_scalar_outputs": True}
    print(text, options, "gradients" if grad else "")
    with torch._dynamo.config.patch(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="tofuse")
        for _ in range(3):
            args = arguments(rng, grad)
            mine, theirs = copies(args), copies(args)
            assert_same(outcome(compiled, mine, {}), outcome(fn, theirs, {}), rtol=1e-4, atol=1e-5)
