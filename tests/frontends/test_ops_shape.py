"""Shape ops against torch."""

import pytest
import torch

from tests.frontends.support import build_definition, check, run
from tofuse.errors import DefinitionError
from tofuse.nvfuser import DataType, FusionDefinition

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)


def tensor(*shape, dtype=torch.float32):
    torch.manual_seed(0)
    x = torch.randn(shape)
    return x > 0 if dtype == torch.bool else (x * 4).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_views(dtype):
    check(
        lambda fd, x: [
            fd.ops.reshape(x, [6, 4]),
            fd.ops.reshape(x, [-1, 2]),
            fd.ops.permute(x, [2, 0, 1]),
            fd.ops.broadcast(x, [False, True, False, False, True]),
            fd.ops.broadcast_in_dim(x, [2, 5, 3, 4], [0, 2, 3]),
            fd.ops.slice(x, [0, 1, 0], [2, 3, 4], [1, 1, 1]),
            fd.ops.slice(x, [1, 0, 0], [2, 9, 3]),
            fd.ops.cat([x, x], 1),
            fd.ops.stride_order(x, [0, 1, 2]),
            fd.ops.triu(x, 1),
        ],
        lambda x: [
            x.reshape(6, 4),
            x.reshape(-1, 2),
            x.permute(2, 0, 1),
            x[:, None, :, :, None],
            x[:, None].expand(2, 5, 3, 4),
            x[:, 1:],
            x[1:, :, :3],
            torch.cat([x, x], 1),
            x,
            x.triu(1),
        ],
        [tensor(2, 3, 4, dtype=dtype)],
        static_sizes=True,
    )


def test_views_and_pads_of_complex_tensors():
    """No kernel has their type: PyTorch computes them."""
    check(
        lambda fd, x: [
            fd.ops.expand(x, [2, 3, 4]),
            fd.ops.broadcast_in_dim(x, [3, 5, 4], [0, 2]),
            fd.ops.pad(x, [1, -2, 0, 3], 2.0),
            fd.ops.stride_order(x, [0, 1]),
        ],
        lambda x: [
            x.expand(2, 3, 4),
            x[:, None].expand(3, 5, 4),
            torch.nn.functional.pad(x, [1, -2, 0, 3], value=2.0),
            x,
        ],
        [torch.randn(3, 4, dtype=torch.complex64)],
    )


def test_expand_and_squeeze():
    check(
        lambda fd, x: [
            fd.ops.expand(x, [4, 3, 5]),
            fd.ops.expand(x, [2, -1, 3, -1]),
            fd.ops.squeeze(x, [0]),
            fd.ops.squeeze(x, [True, False, False]),
        ],
        lambda x: [x.expand(4, 3, 5), x.expand(2, -1, 3, -1), x[0], x[0]],
        [tensor(1, 3, 5)],
    )


def test_squeeze_of_a_single_number():
    check(
        lambda fd, t: [fd.ops.squeeze(fd.ops.sum(t), d) for d in ([0], [-1], 0, [])],
        lambda t: [t.sum()] * 4,
        [torch.randn(3)],
    )


def test_pad():
    check(
        lambda fd, x, y: [
            fd.ops.pad(x, [1, 2]),
            fd.ops.pad(x, [0, 1, 2, 0], 7.0),
            fd.ops.pad(x, [-1, 2]),
            fd.ops.pad(y, [1, 1], 3),
        ],
        lambda x, y: [
            torch.nn.functional.pad(x, [1, 2]),
            torch.nn.functional.pad(x, [0, 1, 2, 0], value=7.0),
            torch.nn.functional.pad(x, [-1, 2]),
            torch.nn.functional.pad(y, [1, 1], value=3),
        ],
        [tensor(3, 4), tensor(5, dtype=torch.int64)],
    )


def test_padding_and_triangles_by_inputs():
    given, whole = tensor(3, 4), tensor(3, 4, dtype=torch.int64)
    with FusionDefinition() as fd:
        x, w = fd.from_pytorch(given), fd.from_pytorch(whole)
        a, n = fd.define_scalar(DataType.Double), fd.define_scalar(DataType.Int)
        fd.add_output(fd.ops.pad(x, [1, 2, 0, 1], a))
        fd.add_output(fd.ops.pad(x, [-1, 2], fd.ops.mul(a, 2.0)))
        fd.add_output(fd.ops.pad(w, [0, 1], n))
        fd.add_output(fd.ops.triu(x, n))
    for value, k in ((0.5, 1), (float("inf"), -1), (float("nan"), 9)):
        wanted = [
            torch.nn.functional.pad(given, [1, 2, 0, 1], value=value),
            torch.nn.functional.pad(given, [-1, 2], value=2 * value),
            torch.nn.functional.pad(whole, [0, 1], value=k),
            given.triu(k),
        ]
        torch.testing.assert_close(fd.execute([given, whole, value, k]), wanted, equal_nan=True)


def test_reshape_to_computed_sizes():
    with FusionDefinition() as fd:
        x, n = fd.define_tensor([-1, -1], True), fd.define_scalar(None, DataType.Int)
        rows, columns = x.size(0), x.size(1)
        for size in (
            fd.ops.div(columns, n),
            fd.ops.cast(fd.ops.div(columns, n), DataType.Int),
            fd.ops.add(fd.ops.div(columns, n), fd.ops.remainder(columns, n)),
            fd.ops.sub(fd.ops.div(columns, n), fd.ops.fmod(columns, n)),
        ):
            fd.add_output(fd.ops.reshape(x, [rows, n, size]))
        vector = fd.define_vector([fd.ops.mul(rows, n), fd.ops.div(columns, n)])
        fd.add_output(fd.ops.reshape(x, vector))
        fd.add_output(fd.ops.expand(fd.ops.sum(x, [1], True), [rows, fd.ops.maximum(n, rows)]))
    for shape, n_now in (((3, 8), 2), ((1, 6), 3), ((2, 5), 5), ((4, 0), 2)):
        given = torch.randn(shape)
        outputs = fd.execute([given, n_now])
        for out in outputs[:4]:
            assert torch.equal(out, given.reshape(shape[0], n_now, shape[1] // n_now))
        assert torch.equal(outputs[4], given.reshape(shape[0] * n_now, shape[1] // n_now))
        assert outputs[5].shape == (shape[0], max(n_now, shape[0]))


def test_sizes_computed_by_any_ops_on_integer_inputs():
    with FusionDefinition() as fd:
        n, x = fd.define_scalar(None, DataType.Int), fd.define_tensor([-1, -1], True)
        width = fd.ops.mul(192, fd.ops.reciprocal(n))  # a Float
        has_rest = fd.ops.bitwise_and(
            fd.ops.ne(fd.ops.signbit(n), False), fd.ops.ne(fd.ops.fmod(192, n), 0)
        )
        width = fd.ops.sub(width, fd.ops.cast(has_rest, DataType.Int))
        fd.add_output(fd.ops.sum(fd.ops.reshape(x, [n, width]), [1]))
        root = fd.ops.cast(fd.ops.sqrt(fd.ops.mul(x.size(0), 1.0)), DataType.Int)
        fd.add_output(fd.ops.expand(fd.ops.sum(x, [1], True), [-1, root]))
    for rows, groups in ((24, 4), (16, 3), (1, 192), (48, 64)):
        given = torch.randn(rows, 192 // rows)
        total, wide = fd.execute([groups, given])
        torch.testing.assert_close(total, given.reshape(groups, -1).sum(1))
        assert wide.shape == (rows, int(rows**0.5))
    with FusionDefinition() as fd:
        x, a = fd.define_tensor([-1, -1], True), fd.define_scalar(DataType.Double)
        for size in (a, fd.ops.mul(a, 2.0), 2.5, fd.define_scalar(2.5)):
            with pytest.raises(DefinitionError, match="new_shape must be an integer, not"):
                fd.ops.reshape(x, [size])


def test_cat_of_symbolic_sizes():
    check(
        lambda fd, x, y: [fd.ops.cat([x, y]), fd.ops.add(fd.ops.cat([x, y], 0), 1.0)],
        lambda x, y: [torch.cat([x, y]), torch.cat([x, y]) + 1],
        [tensor(3, 4), tensor(5, 4)],
    )


def test_sizes_as_scalar_outputs():
    def body(fd, x):
        n = fd.ops.size(x, 0)
        twice = fd.ops.mul(n, 2)
        shape = x.shape()
        flat = fd.ops.reshape(x, [fd.ops.mul(n, shape[1])])
        wide = fd.ops.broadcast_in_dim(flat, [twice, fd.ops.mul(n, x.size(1))], [1])
        return flat, wide, twice, shape, fd.ops.mul(x, n)

    for rows in (3, 7):
        x = tensor(rows, 4)
        flat, wide, twice, shape, product = run(body, [x])
        torch.testing.assert_close(flat, x.reshape(-1))
        torch.testing.assert_close(wide, x.reshape(1, -1).expand(2 * rows, -1))
        assert twice == 2 * rows and shape == [rows, 4]
        torch.testing.assert_close(product, x * rows)


def test_vectors_and_scalars_as_shapes():
    x = tensor(3, 4)
    outputs = run(lambda fd, t, a, b: fd.ops.reshape(t, fd.define_vector([a, 2, b])), [x, 2, 3])
    torch.testing.assert_close(outputs, [x.reshape(2, 2, 3)])

    def body(fd, t):
        shape = fd.define_vector(2)
        return fd.ops.reshape(t, shape), fd.ops.at(shape, 1), shape[0]

    fd = build_definition(body, [x])
    for shape in ([6, 2], [2, 6]):
        assert fd.execute([x, shape])[0].shape == tuple(shape)
        outputs = fd.execute([x, *shape])
        assert outputs[1:] == [shape[1], shape[0]]


def test_output_stride_order():
    x = tensor(3, 4, 5)
    with_order = build_definition(lambda fd, t: fd.ops.stride_order(fd.ops.exp(t), [0, 2, 1]), [x])
    (y,) = with_order.execute([x])
    assert y.stride() == (1, 15, 3)
    torch.testing.assert_close(y, x.exp())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda fd, x: fd.ops.reshape(x, [7, 2]), r"reshape: a tensor of shape \[3, 4\]"),
        (lambda fd, x: fd.ops.reshape(x, [-1, 5]), "reshape: .* not a multiple of 5"),
        (lambda fd, x: fd.ops.permute(x, [0]), "permute: dims must be a permutation of the 2"),
        (lambda fd, x: fd.ops.permute(x, [0, 0]), "permute: .* twice"),
        (lambda fd, x: fd.ops.permute(x, [0, 2]), "permute: an entry of dims is 2, out of range"),
        (lambda fd, x: fd.ops.broadcast(x, [False]), "broadcast: is_broadcast_dim has 1"),
        (lambda fd, x: fd.ops.broadcast_in_dim(x, [3, 5], [0, 1]), "broadcast_in_dim: .* 4 and 5"),
        (lambda fd, x: fd.ops.expand(x, [3]), "expand: a tensor of rank 2"),
        (lambda fd, x: fd.ops.squeeze(x, [0]), "squeeze: dimension 0 .* 3 and 1"),
        (lambda fd, x: fd.ops.slice(x, [0], [1]), "slice: 1 starts, 1 ends"),
        (lambda fd, x: fd.ops.slice(x, [2, 0], [1, 4]), "slice: dimension 0 starts at 2"),
        (lambda fd, x: fd.ops.cat([x, fd.ops.sum(x, [0])]), "cat: tensors of ranks 2 and 1"),
        (lambda fd, x: fd.ops.cat([x, fd.ops.permute(x, [1, 0])]), "cat: .* 4 and 3"),
        (lambda fd, x: fd.ops.pad(x, [1]), "pad: pad_widths has 1 entries"),
        (lambda fd, x: fd.ops.pad(x, [1, 1], 1 + 2j), "pad: the value must be a real number"),
        (
            lambda fd, x: fd.ops.pad(x, [1, 1], fd.define_scalar(DataType.ComplexDouble)),
            "pad: the value must be a real number",
        ),
        (lambda fd, x: fd.ops.size(x, 2), "size: dim is 2, out of range"),
        (
            lambda fd, x: fd.ops.triu(fd.ops.sum(x, [0])),
            "triu: the tensor must have at least rank 2, not 1",
        ),
        (lambda fd, x: fd.ops.cast(x, "float"), "cast: "),
    ],
)
def test_wrong_shapes_raise(body, message):
    with pytest.raises(DefinitionError, match=message) as error:
        build_definition(body, [tensor(3, 4)], static_sizes=True)
    assert "test_ops_shape.py" in str(error.value)


def test_cast_to_null_raises():
    with pytest.raises(DefinitionError, match="cast"):
        build_definition(lambda fd, x: fd.ops.cast(x, DataType.Null), [tensor(3)])


def test_older_parameter_names():
    x = tensor(3, 4)
    check(
        lambda fd, t: [
            fd.ops.reshape(t, original_shape=[3, 4], new_shape=[12]),
            fd.ops.squeeze(fd.ops.reshape(t, [1, 3, 4]), original_shape=[1, 3, 4], dims=[0]),
            fd.ops.broadcast_in_dim(t, output_shape=[2, 3, 4], broadcast_dims=[1, 2]),
            fd.ops.sum(t, axes=[1], keepdim=True),
            fd.ops.full(size=[2], arg=1.0, dtype=DataType.Float),
            fd.permute(t, dims=[1, 0]),
        ],
        lambda t: [
            t.reshape(12),
            t,
            t.expand(2, 3, 4),
            t.sum(1, keepdim=True),
            torch.ones(2),
            t.t(),
        ],
        [x],
    )


def test_computed_sizes_and_integer_inputs_that_must_equal_a_size_are_checked():
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([-1]), fd.define_tensor([-1])
        n = fd.define_scalar(dtype=DataType.Int)
        half = fd.ops.full([fd.ops.div(a.size(0), 2)], 1.0, DataType.Float)
        fd.add_output(fd.ops.add(b, half))
        fd.add_output(fd.ops.add(a, fd.ops.full([n], 1.0, DataType.Float)))
    x, y = torch.randn(10), torch.randn(5)
    torch.testing.assert_close(fd.execute([x, y, 10]), [y + 1, x + 1])
    with pytest.raises(DefinitionError, match="add: a size computed from the inputs is 5, not 7"):
        fd.execute([x, torch.randn(7), 10])
    with pytest.raises(DefinitionError, match="add: input 2 is 7, not 10"):
        fd.execute([x, y, 7])
