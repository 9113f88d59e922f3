"""Small versions of real models: three training steps and inference, compared with eager."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import nn

import tofuse
from tests.support.golden import assert_golden
from tofuse.config import make_config
from tofuse.driver.compile import compile_reporting

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo", "sixteen_lanes"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
WIDTH, HEADS = 64, 4
Options = dict[str, Any]  # arguments of a configuration class
SIZES: Options = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 4 * WIDTH,
}


def tokens():
    return torch.randint(0, 200, (2, 24))


def bert():
    ids = tokens()
    zero: Options = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = hf.BertModel(hf.BertConfig(vocab_size=200, **zero, **SIZES))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return model, lambda m: m(**inputs).last_hidden_state.square().mean()


def llama():
    ids = tokens()
    model = hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=200, num_key_value_heads=2, **SIZES))
    return model, lambda m: m(input_ids=ids, labels=ids, use_cache=False).loss


def gpt2():
    ids = tokens()
    zero: Options = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = hf.GPT2Config(vocab_size=200, n_embd=WIDTH, n_layer=2, n_head=HEADS, **zero)
    model = hf.GPT2LMHeadModel(config)
    return model, lambda m: m(input_ids=ids, labels=ids, use_cache=False).loss


def t5():
    ids = tokens()
    sizes: Options = {
        "d_model": WIDTH,
        "num_layers": 2,
        "num_heads": HEADS,
        "d_ff": 4 * WIDTH,
        "d_kv": 16,
    }
    sizes |= {"decoder_start_token_id": 0}
    config = hf.T5Config(vocab_size=200, dropout_rate=0.0, **sizes)
    return hf.T5ForConditionalGeneration(config), lambda m: m(input_ids=ids, labels=ids).loss


def vit():
    zero: Options = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = hf.ViTModel(hf.ViTConfig(image_size=32, patch_size=8, **zero, **SIZES))
    images = torch.randn(2, 3, 32, 32)
    return model, lambda m: m(pixel_values=images).last_hidden_state.square().mean()


class Block(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)])
        self.short = nn.Conv2d(inner, outer, 1, stride) if inner != outer else nn.Identity()

    def forward(self, x):
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.short(x))


def resnet():
    stem = (nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    model = nn.Sequential(*stem, Block(8, 8, 1), Block(8, 16, 2), *head)
    x, y = torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))
    return model, lambda m: F.cross_entropy(m(x), y)


BUILDERS = (bert, llama, gpt2, t5, vit, resnet)


@pytest.mark.parametrize("build", BUILDERS, ids=lambda b: b.__name__)
def test_training_and_inference(build, request):
    torch.manual_seed(1)
    model, loss_of = build()
    eager = copy.deepcopy(model)
    compiled, report = compile_reporting(model, make_config({}))
    optimisers = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (model, eager)]
    for m in (model, eager):
        m.train()
    for _ in range(3):
        for optimiser in optimisers:
            optimiser.zero_grad()
        got, expected = loss_of(compiled), loss_of(eager)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        got.backward()
        expected.backward()
        for (name, p), q in zip(model.named_parameters(), eager.parameters(), strict=True):
            if q.grad is None:  # AOTAutograd gives zeros instead of None for unused outputs
                assert p.grad is None or not p.grad.any(), name
                p.grad = None
            else:
                scale = q.grad.abs().max().item() + 1e-4
                torch.testing.assert_close(p.grad, q.grad, rtol=1e-2, atol=2e-3 * scale)
                assert p.grad.stride() == p.stride() or not p.is_contiguous(), name
                q.grad.copy_(p.grad)  # prevents the accumulation of rounding errors
        for optimiser in optimisers:
            optimiser.step()
    for (name, b), c in zip(model.named_buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(b, c, rtol=1e-4, atol=1e-4, msg=name)
    for m in (model, eager):
        m.eval()
    with torch.no_grad():
        torch.testing.assert_close(loss_of(compiled), loss_of(eager), rtol=1e-4, atol=1e-5)
    assert_golden(f"model_{build.__name__}", report, request.config.getoption("--accept"))


SHAPES = [(16, 8), (16,), (3, 5, 2), (1,), (7, 7), ()]


def parameters():
    torch.manual_seed(3)
    params = [nn.Parameter(torch.randn(s)) for s in SHAPES]
    for p in params:
        p.grad = torch.randn_like(p)
    return params


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("options", [{}, {"amsgrad": True}, {"maximize": True}], ids=str)
def test_an_optimiser_step(foreach, options):
    actual, expected = parameters(), parameters()
    ours = torch.optim.AdamW(actual, lr=0.05, foreach=foreach, **options)
    eager = torch.optim.AdamW(expected, lr=0.05, foreach=foreach, **options)
    step = tofuse.compile(lambda: ours.step())
    for _ in range(3):
        step()
        eager.step()
    for p, q in zip(actual, expected, strict=True):
        torch.testing.assert_close(p, q)


def adamw(state, step, rate=0.05, decay=0.01):
    params, grads, means, squares = state
    for p, g, m, v in zip(params, grads, means, squares, strict=True):
        m.lerp_(g, 0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        p.mul_(1 - rate * decay)
        size = rate / (1 - 0.9**step)
        p.addcdiv_(m, (v / (1 - 0.999**step)).sqrt() + 1e-8, value=-size)


def test_a_hand_written_optimiser_step():
    def state():
        torch.manual_seed(3)
        return [[torch.randn(s) for s in SHAPES] for _ in range(3)] + [
            [torch.rand(s) for s in SHAPES]
        ]

    actual, expected = state(), state()
    compiled = tofuse.compile(adamw)
    for step in range(1, 4):
        compiled(actual, step)
        adamw(expected, step)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b)
    report = tofuse.explain(adamw)(state(), 4)
    assert not report.library_calls
