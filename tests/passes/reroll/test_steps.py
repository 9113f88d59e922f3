"""What looks like the steps of a loop and is none keeps eager's results."""

import pytest
import torch

import tofuse
from tests.support.loops import compare

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
SHAPES = ((3, 20, 5), (1, 17, 1), (2, 18, 70), (4, 19, 32))


def with_a_product(x):
    weight = torch.linspace(-1, 1, x.shape[-1] ** 2, dtype=x.dtype).view(x.shape[-1], -1)
    h = torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        h = torch.tanh(h @ weight + x[:, t])
    return h


def with_another_step(x):
    y = torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        y = y * 0.5 + (x[:, t].sin() if t == 7 else x[:, t])
    return y


def with_uneven_slices(x):
    y = torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        y = y * 0.5 + x[:, t * t % x.shape[1]]
    return y


def with_windows(x):
    y, outputs = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1] - 2):
        y = y * 0.5 + x[:, t : t + 3].sum(1)
        outputs.append(y)
    return torch.stack(outputs, 1)


def with_all_states_read_alone(x):
    y, total = torch.zeros_like(x[:, 0]), 0.0
    states = []
    for t in range(x.shape[1]):
        y = y * 0.5 + x[:, t]
        states.append(y)
    for k, state in enumerate(states):
        total = total + state * k
    return total


def of_lanes_that_mix(x):
    h = x[:, 0]
    for t in range(x.shape[1]):
        h = h.roll(1, -1) + x[:, t]
    return h


def with_numbers_of_the_step(x):
    y = torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        y = y * 0.5 + torch.arange(t, t + x.shape[2])
    return y


def with_other_views(x):
    views = [x[:, t].T.contiguous().T if t % 2 else x[:, t].flip(0) for t in range(x.shape[1])]
    y, outputs = torch.zeros_like(x[:, 0]), [x[:, 0, :1]]
    for view in views:
        y = y * 0.5 + view
        outputs.append(y[:, :1] if len(outputs) % 2 else y[:, -1:])
    return torch.stack(outputs)


def with_other_slices(x):
    y, outputs = torch.zeros_like(x[:, 0]), [x[:, 0]]
    width = max(1, x.shape[2] // 2)
    for t in range(x.shape[1]):
        y = y * 0.5 + x[:, t]
        outputs.append(y)
    views = [z[:, ::2][:, :width] if t == 5 else z[:, :width] for t, z in enumerate(outputs)]
    return torch.stack(views)


def shifted_by_a_step(x):
    y, outputs = x[:, 0], [x[:, 0]]
    for t in range(x.shape[1]):
        y = y * 0.5 + x[:, t]
        outputs.append(y)
    return torch.stack([outputs[1].sin(), *outputs[1:-1]])


def of_signed_zeros(x):
    a = b = x[:, 0]
    for _ in range(10):
        a = torch.copysign(a.sin(), torch.tensor(0.0)) + 0.1
        b = torch.copysign(b.sin(), torch.tensor(-0.0)) + 0.1
    return a, b


def of_two_lengths(x):
    a, b, first, second = x[:, 0], x[:, 0], [], []
    for _ in range(10):
        a = torch.sin(a * 0.5) + 0.1
        first.append(a)
    for _ in range(25):
        b = torch.sin(b * 0.5) + 0.1
        second.append(b)
    return torch.stack(second) * torch.stack(first).amax(0) if x.numel() else torch.stack(second)


def from_another_dtype(x):
    h, outputs = torch.full(x[:, 0].shape, 0.7), []
    for t in range(x.shape[1]):
        a = h.double()
        b = a + (x[:, t] * 3).round()
        h = b.to(torch.int32)
        outputs.append(h)
    return torch.stack(outputs)


def with_sorted_constants(x):
    y = torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        y = y * 0.5 + x[:, t] * x[:, 0].sort(-1)[0]
    return y


def with_a_middle_step_returned(x):
    y, outputs = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        y = y * 0.5 + x[:, t]
        outputs.append(y)
    return outputs[3], outputs[7]


def of_one_element(x):
    y, outputs = x.new_zeros(()), []
    for t in range(x.shape[1]):
        y = y * 0.5 + x[..., t, 0].sum()
        outputs.append(y)
    return torch.stack(outputs)


OTHERS = (
    *(with_a_product, with_another_step, with_uneven_slices, with_windows),
    *(with_all_states_read_alone, of_lanes_that_mix, with_numbers_of_the_step, with_other_views),
    *(with_other_slices, shifted_by_a_step, of_signed_zeros, of_two_lengths, from_another_dtype),
    *(with_sorted_constants, with_a_middle_step_returned, of_one_element),
)


@pytest.mark.parametrize("f", OTHERS, ids=lambda f: f.__name__)
def test_what_is_no_loop_of_elements_stays(f):
    for shape in SHAPES:
        compare(f, torch.randn(shape), rtol=1e-4, atol=1e-4)


def test_an_unrolled_loop_has_a_remark():
    verdicts = tofuse.explain(with_a_product, capture="trace")(torch.randn(3, 12, 5)).verdicts
    assert any(v.rule.startswith("12 steps of a loop stay unrolled: ") for v in verdicts)


def test_a_step_returned_alone_owns_its_memory():
    x = torch.randn(4, 30, 5)
    for y in tofuse.compile(with_a_middle_step_returned, capture="trace")(x):
        assert y.storage_offset() == 0
        assert y.untyped_storage().nbytes() <= 2 * y.nbytes
