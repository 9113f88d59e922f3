"""Programs of writes, views and reductions over layouts, sizes of 0 and 1, and dtypes."""

import pytest
import torch
import torch.nn.functional as F

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def scan(x, y):
    total = x.clone()
    total.cumsum_(-1)
    total[..., ::2].mul_(0.5)
    dots = torch.einsum("...i,...i->...", total, y)
    return total, dots.unsqueeze(-1) * F.softplus(x), total.movedim(0, -1)


def spectrum(x, y):
    z = torch.complex(x.float(), y.float())
    w = z.conj() * z.abs().clamp_min(0.1)
    part = w.imag
    part.add_(1)
    return part * 2, w.real.sum(-1), torch.view_as_real(w)


def classes(x, y):
    larger = x > y
    chosen = torch.where(larger, x, y).masked_fill_(~larger, -1)
    codes = F.one_hot(larger.long().sum(-1) % 5, 5)
    return chosen.tril(), codes, torch.isin(larger.long(), torch.tensor([1]))


LAYOUTS = {
    "transposed": lambda t: t.T.clone().T,
    "strided by 2": lambda t: torch.stack([t, t], -1)[..., 0],
    "with an offset": lambda t: torch.cat([t[:1], t])[t[:1].shape[0] :],
}


@pytest.mark.broad(9)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(1, 1), (23, 1), (0, 5), (11, 29)], ids=str)
@pytest.mark.parametrize("options", [{}, {"capture": "trace"}, {"dynamic": True}], ids=str)
def test_results_and_arguments_are_eagers(options, shape, layout):
    for function in (scan, spectrum, classes):
        for dtype in (torch.float32, torch.float16):
            x, y = (LAYOUTS[layout](torch.randn(shape).to(dtype)) for _ in range(2))
            mine, theirs = x.clone(), x.clone()
            compiled = tofuse.compile(function, **options)
            got, expected = compiled(mine, y), function(theirs, y)
            tolerance = 3e-2 if dtype == torch.float16 else 2e-4
            torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
            assert torch.equal(mine, theirs)
            for a, b in zip(got, expected, strict=True):
                pairs = zip(a.shape, a.stride(), b.stride(), strict=True)
                assert not a.numel() or all(s == t for n, s, t in pairs if n > 1)


COPIES = {
    "row by row": lambda x: (x * 2).clone(memory_format=torch.contiguous_format),
    "of a transpose": lambda x: (x * 2).mT.contiguous().mT,
    "a diagonal": lambda x: torch.diag_embed(x),
    "by empty_like": lambda x: torch.empty_like(x, memory_format=torch.contiguous_format).copy_(x),
}


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", [{}, {"capture": "trace"}, {"dynamic": True}], ids=str)
def test_views_of_one_copy_share_its_memory(options, layout, copy):
    def program(x):
        y = COPIES[copy](x)
        return y[1:], y[..., 1:], y.unflatten(1, (1, -1)), y.sum()

    x = LAYOUTS[layout](torch.randn(3, 5))
    got, expected = tofuse.compile(program, **options)(x), program(x)
    for a, b in zip(got, expected, strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b)
    starts = [t.untyped_storage().data_ptr() for t in got[:3]]
    assert len(set(starts)) == 1
    assert [t.storage_offset() for t in got] == [t.storage_offset() for t in expected]


def test_a_concat_of_complex_numbers_and_its_imaginary_part_share_memory():
    """Dynamo breaks the graph at `out=`, so that both are results of a program."""

    def program(x):
        y = torch.cat([x, x], 0)
        torch.add(y.imag, y.imag, out=y.imag)
        return y

    x = torch.randn(3, dtype=torch.complex64)
    torch.testing.assert_close(tofuse.compile(program)(x), program(x))
