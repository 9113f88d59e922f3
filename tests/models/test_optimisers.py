"""Optimiser steps and gradient clipping over many tensors: eager's results in few launches."""

import pytest
import torch
from torch import nn

import tofuse

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own

SHAPES = [(), (1,), (7,), (64, 64), (1023,), (500, 3), (0,), (31, 401), (5001,)]
TOLERANCES = {torch.bfloat16: 2e-2}

STEPS = [
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("Adam", {"lr": 0.1, "amsgrad": True, "foreach": True}),
    ("AdamW", {"lr": 0.1, "foreach": False}),
    ("AdamW", {"lr": torch.tensor(0.1), "capturable": False, "foreach": False}),
    ("ASGD", {"lr": 0.1, "foreach": True}),
]


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(s, generator=generator) for s in SHAPES]
    tensors.append(torch.randn(64, 32, generator=generator).t())
    tensors.append(torch.randn(64, 32, generator=generator).bfloat16())
    params = [nn.Parameter(t) for t in tensors]
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
    return params


def assert_all_close(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        tolerance = TOLERANCES.get(a.dtype)
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("name", "options"), STEPS)
def test_optimiser_steps(name, options):
    torch._dynamo.reset()
    actual, expected = parameters(), parameters()
    ours = getattr(torch.optim, name)(actual, **options)
    eager = getattr(torch.optim, name)(expected, **options)
    step = tofuse.compile(lambda: ours.step(), strict=True)
    for _ in range(3):
        step()
        eager.step()
        assert_all_close(actual, expected)
        for a, b in zip(actual, expected, strict=True):
            states = [
                [v for v in o.state[p].values() if torch.is_tensor(v)]
                for o, p in ((ours, a), (eager, b))
            ]
            assert_all_close(*states)
            for p in (a, b):
                assert p.grad is not None
                p.grad.mul_(0.9)


@pytest.mark.parametrize("foreach", [False, True])
def test_gradient_clipping(foreach):
    torch._dynamo.reset()
    actual, expected = parameters(), parameters()
    clip = tofuse.compile(
        lambda: nn.utils.clip_grad_norm_(actual, 1.0, foreach=foreach), strict=True
    )
    for _ in range(2):
        eager = nn.utils.clip_grad_norm_(expected, 1.0, foreach=foreach)
        torch.testing.assert_close(clip(), eager)
        assert_all_close([p.grad for p in actual], [p.grad for p in expected])


def test_sixty_tensors_take_one_launch_and_no_memory():
    torch._dynamo.reset()
    params = [nn.Parameter(torch.randn(2000 + 37 * k)) for k in range(60)]
    for p in params:
        p.grad = torch.randn_like(p)
    optimiser = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    optimiser.step()
    report = tofuse.explain(lambda: optimiser.step())()
    assert len(report.regions) == 60 and report.launches == 1
    assert len({k.source for k in report.kernels}) == 1
    plan = next(g.plan for g in report.graphs if g.launches)
    assert "allocate" not in plan and "copy_" not in plan
    assert "60 regions in one launch, of one kernel" in str(report)


def test_one_scale_for_many_sizes_is_computed_once():
    def f(scale, *tensors):
        factor = 1 / (scale.exp() + 1)
        return [t * factor for t in tensors]

    tensors = [torch.randn(50 + k) for k in range(40)]
    torch._dynamo.reset()
    report = tofuse.explain(f)(torch.tensor(0.3), *tensors)
    assert report.launches == 2
    assert any("computed once" in v.rule for v in report.verdicts)
    args = (torch.tensor(0.3), *tensors)
    torch.testing.assert_close(tofuse.compile(f)(*args), f(*args))


@pytest.mark.parametrize("count", [20, 70])
def test_concat_of_many_tensors(count):
    def f(*tensors):
        return torch.stack([t.sum() for t in tensors]).norm(), torch.cat(tensors) + 1

    tensors = [torch.randn(k + 1) for k in range(count)]
    torch._dynamo.reset()
    torch.testing.assert_close(tofuse.compile(f, strict=True)(*tensors), f(*tensors))


@pytest.mark.parametrize("weight", [0.3, 0.5, -0.2, 2.0, "tensor"])
def test_lerp_is_exact_at_weight_one(weight):
    a, b = torch.randn(1000), torch.randn(1000)
    w = torch.rand(1000) if weight == "tensor" else weight
    torch._dynamo.reset()
    run = tofuse.compile(lambda x, y, z: torch.lerp(x, y, z), strict=True)
    torch.testing.assert_close(run(a, b, w), torch.lerp(a, b, w))
    torch.testing.assert_close(run(a, b, 1.0), b, rtol=0, atol=0)


def test_addcmul_and_addcdiv():
    def f(a, b, c):
        return torch.addcmul(a, b, c, value=-0.5), torch.addcdiv(a, b, c.abs() + 1, value=2)

    args = [torch.randn(37, 5), torch.randn(5), torch.randn(37, 1)]
    torch._dynamo.reset()
    torch.testing.assert_close(tofuse.compile(f, strict=True)(*args), f(*args))
