"""Frozen parameters: what is kept, and when it is computed again."""

import gc
import weakref

import pytest
import torch
from torch import nn

import tofuse
from tofuse.torch_internals.packed_convolutions import can_pack

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.skipif(not can_pack(torch.float32), reason="this torch packs no weights"),
]


def layers():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 4, 3)
    ).eval()


def replace_data(weight):
    weight.data = weight.data * 2
    weight.data = weight.data * 0.7  # perhaps where the data was at first


def replace_weights(conv):
    for _ in range(2):
        conv.weight = None  # its memory is free for the next one
        conv.weight = nn.Parameter(torch.randn(4, 8, 3, 3))


def frozen(model, **options):
    return tofuse.compile(model, freeze=True, hand_back=False, **options)


def check(compiled, model, x):
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "write",
    [
        lambda m: m[0].weight.mul_(2),
        lambda m: m[3].bias.add_(1),
        lambda m: m[1].running_var.mul_(3),
        lambda m: m[1].weight.zero_(),
        lambda m: m.load_state_dict(layers().state_dict()),
        lambda m: setattr(m[0].weight, "data", torch.randn(8, 3, 3, 3)),
        lambda m: setattr(m[0], "weight", nn.Parameter(torch.randn(8, 3, 3, 3))),
        lambda m: torch.nn.init.normal_(m[0].weight),
        lambda m: replace_weights(m[3]),
        lambda m: [m[3].load_state_dict(layers()[3].state_dict(), assign=True) for _ in range(2)],
        lambda m: replace_data(m[3].weight),
    ],
)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_writes_are_seen(write, mode):
    model, x = layers(), torch.randn(2, 3, 12, 12)
    compiled = frozen(model)
    with mode():
        for _ in range(2):
            check(compiled, model, x)
    with torch.no_grad():
        write(model)
    with mode():
        check(compiled, model, x)
        check(compiled, model, x)


def test_training_steps_between_calls():
    model, x = layers(), torch.randn(2, 3, 12, 12)
    compiled, optimizer = frozen(model), torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model.train()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            check(compiled, model, x)


def test_models_share_code():
    models, x = [layers() for _ in range(3)], torch.randn(2, 3, 12, 12)
    call = tofuse.compile(lambda model, x: model(x), freeze=True, hand_back=False)
    with torch.no_grad():
        for _ in range(2):
            for model in models:
                torch.testing.assert_close(call(model, x), model(x), rtol=1e-4, atol=1e-4)


def test_tensors_that_count_no_writes():
    x = torch.randn(2, 3, 12, 12)
    with torch.inference_mode():
        model = layers()
        compiled = frozen(model)
        check(compiled, model, x)
        model[0].weight.mul_(2)
        check(compiled, model, x)


def test_weights_die_with_their_model():
    model, x = layers(), torch.randn(2, 3, 12, 12)
    call = tofuse.compile(lambda model, x: model(x), freeze=True, hand_back=False)
    with torch.no_grad():
        call(model, x)
    weight = weakref.ref(model[0].weight)
    del model
    gc.collect()
    assert weight() is None


def test_arguments_are_not_frozen():
    w, x = torch.randn(8, 3, 3, 3), torch.randn(2, 3, 12, 12)
    conv = frozen(lambda x, w: torch.conv2d(x, w).relu())
    for _ in range(2):
        torch.testing.assert_close(conv(x, w), torch.conv2d(x, w).relu(), rtol=1e-4, atol=1e-4)
    report = tofuse.explain(lambda x, w: torch.conv2d(x, w).relu(), freeze=True)(x, w)
    assert "packed" not in " ".join(n for g in report.graphs for n in g.notes)
