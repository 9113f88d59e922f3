"""Writes in place give the values computed from them eager's strides."""

import pytest
import torch

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore:index_reduce"),  # torch calls it beta
]

MASK = torch.tensor([True, False, True, True, False])
GRID = torch.rand(4, 5) > 0.5
ROWS = torch.tensor([2, 0])
PLACES = torch.tensor([[0, 2, 1, 3, 0], [1, 1, 0, 0, 2]])


def masked_number(x):
    x[GRID] = 2.5


def masked_integer(x):
    x[MASK[:4]] = 7


def masked_row(x):
    x[MASK[:4]] = torch.arange(5.0)


WRITES = {
    "mask of elements = number": masked_number,
    "mask of rows = number": masked_integer,
    "mask of rows = row": masked_row,
    "addmm_": lambda x: x.addmm_(x.detach() @ x.detach().T, x.detach() * 2),
    "baddbmm_": lambda x: x[None].baddbmm_(torch.ones(1, 4, 3), torch.ones(1, 3, 5)),
    "copy_": lambda x: x.copy_(x.detach().sin()),
    "cumprod_": lambda x: x.cumprod_(1),
    "cumsum_": lambda x: x.cumsum_(0),
    "fill_": lambda x: x.fill_(2.0),
    "index_add_": lambda x: x.index_add_(0, ROWS, torch.ones(2, 5), alpha=2),
    "index_copy_": lambda x: x.index_copy_(0, ROWS, torch.ones(2, 5)),
    "index_fill_": lambda x: x.index_fill_(1, ROWS, -1.0),
    "index_reduce_": lambda x: x.index_reduce_(0, ROWS, torch.ones(2, 5), "mean"),
    "masked_fill_": lambda x: x.masked_fill_(MASK, 3),
    "masked_scatter_": lambda x: x.masked_scatter_(GRID, torch.arange(20.0)),
    "renorm_": lambda x: x.renorm_(2, 0, 1.0),
    "scatter_": lambda x: x.scatter_(0, PLACES, 9.0),
    "scatter_add_": lambda x: x.scatter_add_(0, PLACES, torch.ones(2, 5)),
    "scatter_reduce_": lambda x: x.scatter_reduce_(0, PLACES, torch.ones(2, 5), "amax"),
    "transpose_": lambda x: x.transpose_(0, 1),
    "tril_": lambda x: x.tril_(),
    "triu_": lambda x: x.triu_(1),
}
LAYOUTS = {
    "transposed": lambda x: x.T.contiguous().T,
    "strided by 2": lambda x: torch.stack((x, x), -1)[..., 0],
    "contiguous": lambda x: x.clone(),
}
CAPTURES = pytest.mark.parametrize("capture", ["dynamo", "trace"])


@CAPTURES
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("write", WRITES)
def test_results_after_a_write_have_eagers_strides(write, layout, capture):
    def program(x):
        WRITES[write](x)
        return x + 1, x.sin()

    x = LAYOUTS[layout](torch.randn(4, 5))
    assert_as_eager(program, x, options={"capture": capture})


@CAPTURES
@pytest.mark.parametrize("write", [w for w in WRITES if w not in ("index_reduce_", "transpose_")])
def test_gradients_of_writes_into_a_transposed_intermediate(write, capture):
    def program(x):
        y = (x * 2).T.contiguous().T
        WRITES[write](y)
        return y.exp(), y

    x = torch.randn(4, 5).requires_grad_()
    assert_as_eager(program, x, options={"capture": capture})


def test_writes_are_fused_with_what_reads_them():
    def program(x):
        x.masked_fill_(MASK, 3)
        return x.sin() + 1

    x = torch.randn(4, 5).T.contiguous().T
    (graph,) = tofuse.explain(program)(x.clone()).graphs
    assert len(graph.kernels) == 1
    assert tofuse.compile(program, dynamic=True)(x.clone()).stride() == x.stride()


def several_masks(x):
    y = x * 2
    y[y > 1] = 0.5
    y[x[:, 0] > 0] = x.new_ones(x.shape[1])
    y.clamp_(-1, 1)
    return y.cumsum_(-1).tril(1), y + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(7, 13), (1, 1), (1, 31), (0, 5), (17, 2)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_several_writes_of_other_sizes_and_dtypes(layout, shape, dtype):
    x = LAYOUTS[layout](torch.randn(shape, dtype=dtype))
    tolerance = 4e-2 if dtype.itemsize == 2 else 2e-5
    assert_as_eager(several_masks, x, rtol=tolerance, atol=tolerance)


def test_sizes_stay_symbolic():
    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return tofuse.api.dynamo_backend(gm, inputs)

    def program(x):
        x.masked_fill_(x > 1, 0)
        return x * 2

    compiled = torch.compile(program, backend=backend, dynamic=True)
    for rows in (5, 7, 9, 16):
        x = torch.randn(4, rows).T
        expected = program(x.clone(memory_format=torch.preserve_format))
        result = compiled(x)
        assert torch.equal(result, expected) and result.stride() == expected.stride()
    assert len(graphs) == 1


RANDOM = {
    "bernoulli": lambda x: x.bernoulli_(0.5),
    "normal": lambda x: x.normal_(),
    "uniform": lambda x: x.uniform_(),
    "exponential": lambda x: x.exponential_(),
}


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_random_numbers_written_into_a_transposed_tensor_have_no_gradient(name, capture):
    def program(x):
        y = (x * 2).T
        RANDOM[name](y[1:])
        return y + x.T

    x = torch.randn(4, 3, requires_grad=True)
    result = tofuse.compile(program, capture=capture)(x)
    (gradient,) = torch.autograd.grad(result.sum(), x)
    assert torch.equal(gradient, torch.tensor([3.0, 1, 1]).expand(4, 3))
    assert result.stride() == program(x).stride()


UNDER_AUTOCAST = {
    "addmm_": lambda x, y: x.addmm_(y, y),
    "addr_": lambda x, y: x.addr_(y[0], y[1]),
    "index_copy_": lambda x, y: x.index_copy_(0, torch.zeros(1, dtype=torch.int64), y[:1]),
    "cumsum_": lambda x, y: x.cumsum_(0),
    "pow_": lambda x, y: x.pow_(2.0),
    "masked_fill_": lambda x, y: x.masked_fill_(y > 0.5, 1.0),
}


@pytest.mark.parametrize("name", UNDER_AUTOCAST)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_autocast_leaves_writes_in_place_alone(capture, dtype, name):
    """It casts operands of `addmm`, and not of `addmm_`; `index_copy` refuses float16."""

    def program(x, y):
        z = (x * 1).mT
        with torch.autocast("cpu", dtype=torch.bfloat16):
            UNDER_AUTOCAST[name](z, y)
        return z

    x, y = (torch.rand(8, 8).to(dtype) for _ in range(2))
    got, expected = tofuse.compile(program, capture=capture)(x, y), program(x, y)
    assert got.dtype == expected.dtype and got.stride() == expected.stride()
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
