"""CUDA graphs of plans on a GPU; `on_fake_gpu.py` has what needs none."""

import pytest
import torch
import torch.nn.functional as F

import tofuse

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def test_graphs_of_a_training_step_replay():
    def program(x, w):
        return F.dropout(F.gelu(x @ w), 0.5), (x * 2).sin()

    run = tofuse.compile(program, mode="reduce-overhead")
    w = torch.randn(64, 64, device="cuda", requires_grad=True)
    masks = []
    for _ in range(8):
        x = torch.randn(128, 64, device="cuda")
        w.grad = None
        out, sines = run(x, w)
        kept = out.detach() != 0
        masks.append(kept)
        out.sum().backward()
        want = F.gelu(x @ w)
        torch.testing.assert_close(out, torch.where(kept, 2 * want, 0), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(sines, (x * 2).sin())
        (grad,) = torch.autograd.grad((want * kept * 2).sum(), w)
        torch.testing.assert_close(w.grad, grad, rtol=1e-3, atol=1e-3)
    for k in range(1, 8):
        assert 0.45 < (masks[k] == masks[k - 1]).float().mean() < 0.55
