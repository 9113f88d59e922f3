"""FusionDefinition: interface forms, sizes, layouts, aliases, errors, text."""

import pytest
import torch

import tofuse
import tofuse.nvfuser as nvfuser
from tests.frontends.support import build_definition, definition_from_text
from tofuse.errors import DefinitionError, VerifyError
from tofuse.nvfuser import DataType, Fusion, FusionDefinition


def gelu(fd, x):
    """Return x * 0.5 * (1 + erf(x / sqrt(2)))."""
    half = fd.ops.mul(x, fd.define_constant(0.5))
    scaled = fd.ops.mul(x, fd.define_constant(0.707107))
    return fd.ops.mul(half, fd.ops.add(fd.ops.erf(scaled), fd.define_constant(1.0)))


def eager_gelu(x):
    return x * 0.5 * (torch.erf(x * 0.707107) + 1.0)


def input_of_2022(fd, rank):
    return fd.define_tensor(
        symbolic_sizes=[-1] * rank, contiguous=[True] * rank, dtype=DataType.Float
    )


@pytest.mark.parametrize("keep", [False, True])
def test_gelu_between_views_is_one_kernel(keep):
    fs = Fusion()
    with FusionDefinition(fs) as fd:
        flat = input_of_2022(fd, 2)
        grouped = fd.ops.view(flat, original_shape=[32, 24], new_shape=[4, 8, 24])
        result = fd.ops.view(gelu(fd, grouped), original_shape=[4, 8, 24], new_shape=[32, 24])
        if keep:
            fd.add_output(grouped)
        fd.add_output(result)
    x = torch.randn(32, 24)
    outputs = fs.execute([x])
    torch.testing.assert_close(outputs[-1], eager_gelu(x))
    assert len(fd.kernels()) == 1
    if keep:
        assert outputs[0].shape == (4, 8, 24) and outputs[0].data_ptr() == x.data_ptr()


def test_gelu_without_views_is_one_kernel():
    with FusionDefinition() as fd:
        fd.add_output(gelu(fd, input_of_2022(fd, 3)))
    x = torch.randn(4, 8, 24)
    torch.testing.assert_close(fd.execute([x]), [eager_gelu(x)])
    assert len(fd.kernels()) == 1


def test_transpose_between_views_is_one_kernel():
    with FusionDefinition() as fd:
        heads = input_of_2022(fd, 3)
        split = fd.ops.view(heads, original_shape=[24, 8, 6], new_shape=[2, 12, 8, 6])
        swapped = fd.ops.set(fd.ops.permute(split, dims=[0, 2, 1, 3]))
        joined = fd.ops.view(swapped, original_shape=[2, 8, 12, 6], new_shape=[2, 8, 72])
        fd.add_output(fd.ops.view(joined, original_shape=[2, 8, 72], new_shape=[16, 72]))
    x = torch.randn(24, 8, 6)
    wanted = x.view(2, 12, 8, 6).permute(0, 2, 1, 3).reshape(16, 72)
    assert torch.equal(fd.execute([x])[0], wanted)
    assert len(fd.kernels()) == 1


@pytest.mark.parametrize("views", range(8))
def test_view_chain_is_one_kernel(views):
    with FusionDefinition() as fd:
        shapes = [[32, 24], [4, 8, 24]]
        x = input_of_2022(fd, 2)
        for step in (1, 2, 4):
            if views & step:
                x = fd.ops.view(x, original_shape=shapes[0], new_shape=shapes[1])
                shapes.reverse()
            if step == 1:
                x = fd.ops.add(x, x)
            if step == 2:
                x = fd.ops.mul(x, x)
        fd.add_output(x)
    given = torch.randn(32, 24)
    (result,) = fd.execute([given])
    torch.testing.assert_close(result, ((given + given) ** 2).view(shapes[0]))
    assert len(fd.kernels()) == 1


def test_symbolic_sizes_compile_once():
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], [True, True]) for _ in range(2))
        mean = fd.ops.truediv(fd.ops.sum(x, [1], keepdim=True), x.size(1))
        fd.add_output(fd.ops.mul(fd.ops.sub(x, mean), y))
    for rows, width in ((64, 128), (62, 130), (3, 7), (100, 33), (2, 2)):
        a, b = torch.randn(rows, width), torch.randn(rows, width)
        torch.testing.assert_close(fd.execute([a, b]), [(a - a.mean(1, keepdim=True)) * b])
    assert fd.compilations == 1
    for rows, width in ((1, 5), (5, 1), (0, 5), (1, 1)):
        a, b = torch.randn(rows, width), torch.randn(rows, width)
        torch.testing.assert_close(fd.execute([a, b]), [(a - a.mean(1, keepdim=True)) * b])


def test_expanded_input():
    given = torch.randn(4, 1).expand(4, 8)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.from_pytorch(given)))
    torch.testing.assert_close(fd.execute([given]), [-given])


def test_sizes_required_equal_are_checked():
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], [True, True]) for _ in range(2))
        fd.add_output(fd.ops.add(x, y))
    fd.execute([torch.ones(3, 4), torch.ones(3, 4)])
    with pytest.raises(DefinitionError, match="add: input 1 has 5 elements") as error:
        fd.execute([torch.ones(3, 4), torch.ones(3, 5)])
    assert "test_fusion_definition.py" in str(error.value)
    with pytest.raises(DefinitionError):
        fd.execute([torch.ones(3, 4), torch.ones(1, 4)])


def test_reshape_of_symbolic_sizes():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], [True, True])
        fd.add_output(fd.ops.mul(fd.ops.reshape(fd.ops.add(x, 1.0), [-1, 6]), 2.0))
    for shape in ((4, 12), (3, 6), (2, 3)):
        given = torch.randn(shape)
        torch.testing.assert_close(fd.execute([given]), [((given + 1) * 2).reshape(-1, 6)])
        assert len(fd.kernels()) == 1
    with pytest.raises(DefinitionError, match="reshape: a tensor of shape"):
        fd.execute([torch.randn(5, 5)])


@pytest.mark.parametrize("contiguity", [False, [False, False, False]])
def test_any_input_layout(contiguity):
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1], contiguity)
        fd.add_output(fd.ops.add(x, 1.0))
        fd.add_output(fd.ops.sum(x, [1]))
    big = torch.randn(8, 9, 10)
    for given in (
        big,
        big.transpose(0, 2),
        big[::2, 1:5, ::3],
        torch.randn(8, 1, 10).expand(8, 9, 10),
        big.permute(1, 2, 0),
        torch.randn(4, 1, 3).transpose(0, 2),
    ):
        torch.testing.assert_close(fd.execute([given]), [given + 1, given.sum(1)])
    before = fd.compilations
    other = torch.randn(5, 6, 7).transpose(0, 2)
    torch.testing.assert_close(fd.execute([other]), [other + 1, other.sum(1)])
    assert fd.compilations == before


def test_stride_order_of_inputs():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], [True, True], stride_order=[0, 1])
        fd.add_output(fd.ops.exp(x))
    given = torch.randn(4, 5).t()
    torch.testing.assert_close(fd.execute([given]), [given.exp()])
    with pytest.raises(DefinitionError, match="not contiguous at dimension"):
        fd.execute([torch.randn(4, 5)])


def test_sizes_and_strides():
    x = torch.randn(4, 5).t()
    with FusionDefinition() as fd:
        t = fd.define_tensor(sizes=[5, 4], strides=[1, 5], dtype=DataType.Float)
        assert t.ndim == 2 and t.dtype is DataType.Float
        fd.add_output(fd.ops.relu(t))
    torch.testing.assert_close(fd.execute([x]), [x.relu()])
    assert "stride_order=[0, 1]" in repr(fd)
    by_position = build_definition(lambda fd: fd.ops.relu(fd.define_tensor([5, 4], [1, 5])), [])
    torch.testing.assert_close(by_position.execute([x]), [x.relu()])


def test_broadcast_dimensions_of_inputs():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], [True, True])
        row = fd.define_tensor([1, -1], [None, True])
        fd.add_output(fd.ops.mul(x, row))
    given, line = torch.randn(3, 4), torch.randn(1, 4)
    torch.testing.assert_close(fd.execute([given, line]), [given * line])
    with pytest.raises(
        DefinitionError, match=r"input 1 \(T1\) has 3 elements at dimension 0, not 1"
    ):
        fd.execute([given, given])


def test_scalar_inputs():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], [True])
        a, n, flag = (
            fd.define_scalar(dtype=d) for d in (DataType.Double, DataType.Int, DataType.Bool)
        )
        fd.add_output(fd.ops.add(fd.ops.mul(x, a), n))
        fd.add_output(fd.ops.where(flag, x, 0.0))
        fd.add_output(fd.ops.mul(n, 3))
        fd.add_output(fd.ops.mul(a, 3))
    given = torch.randn(5)
    for factor, whole, choice in ((0.5, 2, True), (-1.5, -7, False), (3, 0, True)):
        outputs = fd.execute([given, factor, whole, choice])
        torch.testing.assert_close(outputs[0], given * factor + whole)
        torch.testing.assert_close(outputs[1], given if choice else given * 0)
        assert outputs[2] == 3 * whole and float(outputs[3]) == 3 * factor
    assert fd.compilations == 1


def test_aliased_output_is_written_into_its_input():
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1], [True]) for _ in range(2))
        total = fd.ops.add(x, y)
        fd.add_output(total, x)
        fd.add_output(y, alias_input=y)
        fd.add_output(fd.ops.mul(total, 2.0))
    a, b = torch.randn(6), torch.randn(6)
    wanted = a + b
    (double,) = fd.execute([a, b])
    torch.testing.assert_close((a, double), (wanted, wanted * 2))


def test_outputs_may_be_inputs_or_repeated():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], [True])
        y = fd.ops.exp(x)
        for output in (y, x, y):
            fd.add_output(output)
    given = torch.randn(4)
    outputs = fd.execute([given])
    assert outputs[1].data_ptr() == given.data_ptr()
    torch.testing.assert_close(outputs, [given.exp(), given, given.exp()])


def test_outputs_do_not_require_grad():
    x = torch.randn(4, 4, requires_grad=True)
    fd = build_definition(lambda fd, t: [fd.ops.exp(t), fd.ops.matmul(t, t)], [x])
    assert not any(t.requires_grad for t in fd.execute([x]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], r"takes 1 inputs \(T0\), not 0"),
        ([torch.ones(2, 3), torch.ones(2)], "takes 1 inputs"),
        (torch.ones(2, 3), "takes its inputs in a list, not a Tensor"),
        ([torch.ones(2, 3).double()], r"input 0 \(T0\) has dtype torch.float64, not Float"),
        ([torch.ones(2)], "has 1 dimensions, not 2"),
        ([torch.ones(3, 2).t()], "not contiguous at dimension"),
        ([torch.ones(2, 3).to_sparse()], "not a plain dense tensor"),
        ([3.0], "is float, not a tensor"),
    ],
)
def test_wrong_inputs_raise(given, message):
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.define_tensor([-1, -1], [True, True])))
    with pytest.raises(DefinitionError, match=message):
        fd.execute(given)


def test_errors_name_the_op_and_the_user_line():
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, -1]), fd.define_tensor([-1])
        with pytest.raises(DefinitionError, match="cat: tensors of ranks 2 and 1") as error:
            fd.ops.cat([x, y])
        text = str(error.value)
        assert "test_fusion_definition.py" in text and "fd.ops.cat([x, y])" in text
        with pytest.raises(DefinitionError, match="exp: too many positional"):
            fd.ops.exp(x, y)
        with pytest.raises(DefinitionError, match="exp: an argument is a Tensor"):
            fd.ops.exp(torch.ones(3))
        with pytest.raises(AttributeError, match="no op 'expp'; did you mean 'exp"):
            fd.ops.expp(x)
        with pytest.raises(DefinitionError, match="bitwise_and: it does not take Float"):
            fd.ops.bitwise_and(x, x)
        with pytest.raises(DefinitionError, match="add_output: 3 is not defined"):
            fd.add_output(3)  # type: ignore[arg-type]  # wrong on purpose
        with pytest.raises(DefinitionError, match="define_tensor: contiguity has 1 entries"):
            fd.define_tensor([-1, -1], [True])
        fd.add_output(fd.ops.exp(x))
    assert fd.validate_definition() == (True, "")
    with pytest.raises(DefinitionError, match="add: use it inside"):
        fd.ops.add(x, x)
    with pytest.raises(DefinitionError, match="define_tensor: use it inside"):
        fd.define_tensor([-1])
    with pytest.raises(DefinitionError, match="defined already"), fd:
        pass
    with FusionDefinition() as other:
        t = other.define_tensor([-1])
        with pytest.raises(DefinitionError, match="add: T0 belongs to another"):
            other.ops.add(t, x)


def test_unfinished_and_empty_definitions():
    with pytest.raises(NotImplementedError, match="Fusion is empty!"):
        FusionDefinition().execute([])
    with FusionDefinition() as fd:
        pass
    assert fd.validate_definition() == (False, "Fusion is empty!")
    with pytest.raises(NotImplementedError, match="Fusion is empty!"):
        fd.execute([])
    with pytest.raises(NotImplementedError, match="Fusion is empty!"):
        Fusion().execute([])
    with FusionDefinition() as fd:
        fd.ops.exp(fd.define_tensor([-1]))
        with pytest.raises(DefinitionError, match="not finished"):
            fd.execute([torch.ones(3)])
    with pytest.raises(DefinitionError, match="has no output"):
        fd.execute([torch.ones(3)])


def test_validate():
    x = torch.randn(5, 6)
    fd = build_definition(lambda fd, t: fd.ops.sum(fd.ops.exp(t), [1]), [x])
    fd.validate([x])
    fd.validate([x], [x.exp().sum(1)])
    with pytest.raises(VerifyError, match="output 0 differs"):
        fd.validate([x], [x.exp().sum(1) + 1])
    with pytest.raises(VerifyError, match="output 0 has shape"):
        fd.validate([x], [x])


def test_repro_script_runs():
    x, n = torch.randn(5, 6).t(), 3
    fd = build_definition(lambda fd, t, k: fd.ops.mul(fd.ops.exp(t), k), [x, n])
    with pytest.raises(DefinitionError, match="save_repro_inputs"):
        fd.last_repro_script()
    fd.execute([x, n], save_repro_inputs=True)
    for text in (fd.repro_script_for([x, n]), fd.last_repro_script()):
        names: dict = {}
        exec(text, names)
        assert names["inputs"][0].stride() == x.stride()
        torch.testing.assert_close(names["outputs"][0], names["inputs"][0].exp() * 3)
    assert "inputs" not in fd.repro_script_for()


def test_repr_of_every_kind_of_argument():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 1], [True, None], DataType.BFloat16, True)
        limit = fd.define_scalar(float("inf"))
        fd.add_output(fd.ops.minimum(fd.ops.cast(x, torch.float32), limit), stride_order=[0, 1])
        fd.add_output(fd.ops.mul(x, complex(1, -2)))
        fd.add_output(fd.ops.full([2, 2], float("nan"), DataType.Double))
    given = torch.randn(3, 1).bfloat16()
    torch.testing.assert_close(
        definition_from_text(fd).execute([given]),
        fd.execute([given]),
        rtol=0,
        atol=0,
        equal_nan=True,
    )
    assert repr(definition_from_text(fd)) == repr(fd)


def test_segments_report_rules():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], [True, True])
        border = fd.ops.segment_set(fd.ops.exp(x))
        fd.add_output(fd.ops.add(fd.ops.matmul(border, border), 1.0))
    given = torch.randn(4, 4)
    torch.testing.assert_close(fd.execute([given]), [given.exp() @ given.exp() + 1])
    kinds = [s.kernel for s in fd.segments()]
    assert kinds.count(True) == 2 and kinds.count(False) == 2
    assert any("library call" in c for s in fd.segments() for c in s.cuts)
    assert len(fd.kernels()) == 2


def test_kernels_before_the_first_run():
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.define_tensor([-1, -1], [True, True])))
    assert len(fd.kernels()) == 1 and "exp" in fd.fusion_ir()


def test_stages_are_printed(monkeypatch, capsys):
    monkeypatch.setenv("TOFUSE_SHOW", "definition,graph,regions,source")
    x = torch.randn(5)
    build_definition(lambda fd, t: fd.ops.exp(t), [x]).execute([x])
    text = capsys.readouterr().out
    for part in ("def nvfuser_fusion(fd", "exp(", "define "):
        assert part in text


def test_definition_by_subclass():
    class Doubled(FusionDefinition):
        def definition(self):
            self.add_output(self.ops.add(x := self.define_tensor([-1], [True]), x))

    assert torch.equal(Doubled().execute([torch.ones(3)])[0], torch.full((3,), 2.0))


def test_public_names():
    assert tofuse.FusionDefinition is nvfuser.FusionDefinition
    assert tofuse.DataType is nvfuser.DataType and tofuse.Fusion is nvfuser.Fusion
    assert nvfuser.torch_dtype_to_nvfuser_dtype(torch.bfloat16) is DataType.BFloat16
