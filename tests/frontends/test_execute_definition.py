"""Outputs that are written into inputs."""

import pytest
import torch

from tofuse.nvfuser import DataType, FusionDefinition

LAYOUTS = {
    "contiguous": lambda: torch.randn(3, 4),
    "transposed": lambda: torch.randn(4, 3).t(),
    "with gaps": lambda: torch.randn(6, 10)[::2, 1:9:2],
    "a gap before the slowest": lambda: torch.randn(30).as_strided((3, 4), (1, 5), 2),
    "no elements": lambda: torch.randn(3, 0),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_update_in_place(name):
    x = LAYOUTS[name]()
    wanted = x.relu()
    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        positive = fd.ops.where(fd.ops.gt(t, 0.0), t, 0.0)
        fd.add_output(positive, t)
        fd.add_output(positive)
        fd.add_output(fd.ops.mul(positive, 2.0))
    place = x.data_ptr()
    out, double = fd.execute([x])
    assert x.data_ptr() == place and torch.equal(x, wanted) and torch.equal(double, 2 * wanted)
    assert torch.equal(out, x) and out.data_ptr() == place and out.stride() == x.stride()
    fd.execute([x])
    assert torch.equal(x, wanted)


def test_an_output_that_is_also_written_into_an_input_shares_its_memory():
    x, half = torch.randn(4), torch.randn(4).half()
    with FusionDefinition() as fd:
        a, b = fd.from_pytorch(x), fd.from_pytorch(half)
        total = fd.ops.add(a, b)
        fd.add_output(total)
        fd.add_output(total, a)
        fd.add_output(total, b)  # of another type: converted
        fd.add_output(fd.ops.set(total))
    wanted = x + half
    shared, copied = fd.execute([x, half])
    shared.add_(1.0)
    assert torch.equal(x, wanted + 1.0) and torch.equal(half, wanted.half())
    assert torch.equal(copied, wanted)


def test_inputs_that_exchange_their_contents():
    x, y = torch.randn(3, 3), torch.randn(3, 3)
    with FusionDefinition() as fd:
        a, b = fd.from_pytorch(x), fd.from_pytorch(y)
        fd.add_output(fd.ops.permute(b, [1, 0]), a)
        fd.add_output(fd.ops.permute(a, [1, 0]), b)
    wanted = [y.t().clone(), x.t().clone()]
    assert fd.execute([x, y]) == []
    assert torch.equal(x, wanted[0]) and torch.equal(y, wanted[1])
    with FusionDefinition() as fd:
        a = fd.from_pytorch(x)
        fd.add_output(fd.ops.permute(a, [1, 0]), a)
    wanted = [x.t().clone()]
    fd.execute([x])
    assert torch.equal(x, wanted[0])


def test_updates_of_leaves_and_of_expanded_inputs():
    leaf, row = torch.zeros(3, requires_grad=True), torch.zeros(3).expand(2, 3)
    for x in (leaf, row):
        with FusionDefinition() as fd:
            t = fd.define_tensor([-1] * x.dim(), dtype=DataType.Float)
            out = fd.ops.add(t, 1.0)
            fd.add_output(out, t)
            fd.add_output(out)
        if x is row:
            with pytest.raises(RuntimeError, match="single memory location"):
                fd.execute([x])
            continue
        (shared,) = fd.execute([x])
        assert not shared.requires_grad and torch.equal(x.detach(), torch.ones(3))
