"""Complex, sparse, quantized, nested and other special tensors."""

import pytest
import torch
from torch.autograd import forward_ad

import tofuse
from tests.support.eager import assert_as_eager, copies

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
X = torch.linspace(-2, 2, 48).reshape(6, 8)
Y = torch.linspace(-1, 1, 24).reshape(8, 3)
C = torch.complex(X, X.flip(0))

PROGRAMS = {
    "complex": (lambda x: (x * 2).abs() + x.real, (C,)),
    "conjugate": (lambda x: x.conj() * 2, (C,)),
    "conjugate bit": (lambda x: x * 2, (C.conj(),)),
    "negative bit": (lambda x: x * 2 + 1, (C.conj().imag,)),
    "fft": (lambda x: torch.fft.rfft(x * 2).abs() + 1, (X,)),
    "sparse": (lambda x: x * 2, (X.relu().to_sparse(),)),
    "sparse to dense": (lambda x: x.to_dense() * 2 + 1, (X.relu().to_sparse(),)),
    "sparse product": (lambda x, y: torch.sparse.mm(x, y).relu(), (X.relu().to_sparse(), Y)),
    "csr": (lambda x, y: (x @ y).relu() + 1, (X.relu().to_sparse(), Y)),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_complex_and_sparse_tensors(name):
    """pytorch 191330"""
    fn, args = PROGRAMS[name]
    if name == "csr":
        args = args[0].to_sparse_csr(), args[1]
    assert_as_eager(fn, *args)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
@pytest.mark.parametrize("name", ["to_sparse", "to_sparse_csr"])
def test_sparse_results_of_trace_mode(name):
    """Sparse results have no strides, and must not be restrided."""

    def fn(x):
        return getattr(x.relu() * 2, name)(), x + 1

    compiled = tofuse.compile(fn, strict=True, capture="trace")
    for _ in range(2):
        torch.testing.assert_close(compiled(X), fn(X))


def test_complex_gradients():
    """pytorch 191330"""
    x = X.clone().requires_grad_()
    assert_as_eager(lambda x: (torch.view_as_complex(x.view(6, 4, 2)) * 1j).abs() + 1, x)


def test_library_calls_have_a_verdict():
    """pytorch 191330"""
    report = tofuse.explain(lambda x: (x.sqrt().tanh() * 2 + x).abs() * 2 + 1)(C)
    assert any(not v.fused and v.rule for v in report.verdicts)
    assert {"aten.sqrt.default", "aten.tanh.default"} <= {c.name for c in report.library_calls}
    assert report.kernels  # the ops after the absolute value are real


@pytest.mark.filterwarnings("ignore:.*quantize.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*quantiz.*:UserWarning")
def test_quantized_tensors():
    """pytorch 191330"""
    q = torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)

    def f(x):
        return torch.quantize_per_tensor(x * 2, 0.1, 0, torch.qint8).dequantize() * 2

    assert torch.equal(tofuse.compile(lambda q: q.dequantize() * 2)(q), q.dequantize() * 2)
    assert torch.equal(tofuse.compile(f)(X), f(X))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype:UserWarning")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors(layout):
    """pytorch 191330"""
    nested = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=layout)
    got = tofuse.compile(lambda n: (n * 2).relu())(nested)
    for a, b in zip(got.unbind(), nested.unbind(), strict=True):
        assert torch.equal(a, (b * 2).relu())


UNSUPPORTED_DTYPES = (
    "float8_e4m3fn",
    "float8_e5m2",
    "uint16",
    "uint32",
    "uint64",
    "complex128",
    "complex32",
)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize("name", UNSUPPORTED_DTYPES)
def test_dtypes_without_kernels(name):
    """pytorch 191330"""
    dtype = getattr(torch, name)
    wide = torch.complex64 if dtype.is_complex else torch.float32
    assert_as_eager(lambda x: x.to(wide) * 2, torch.ones(4).to(dtype), rtol=0, atol=0)
    assert_as_eager(lambda x: (x * 2).to(dtype), torch.ones(4, dtype=wide), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_forward_mode_runs_in_eager(capture):
    """Kernels have no forward derivatives, and a result without one would be wrong."""
    compiled = tofuse.compile(lambda x: x.sin() * x, strict=True, capture=capture)
    x = torch.randn(3)
    compiled(x)
    with forward_ad.dual_level():
        _, tangent = forward_ad.unpack_dual(compiled(forward_ad.make_dual(x, torch.ones(3))))
    torch.testing.assert_close(tangent, x.cos() * x + x.sin())


def test_subclasses_and_parameters_keep_their_types():
    """pytorch 191330"""

    class Sub(torch.Tensor):
        pass

    x = torch.randn(3).as_subclass(Sub)
    assert type(tofuse.compile(lambda x: x * 2)(x)) is Sub
    p = torch.nn.Parameter(torch.randn(3))
    tofuse.compile(lambda x: x * 2)(p).sum().backward()
    assert p.grad is not None and torch.equal(p.grad, torch.full((3,), 2.0))


def test_meta_tensors_run_in_pytorch():
    """pytorch 191330"""
    x = torch.empty(3, 4, device="meta")
    report = tofuse.explain(lambda x: x * 2 + 1)(x)
    assert not report.kernels and len(report.library_calls) == 2
    assert tofuse.compile(lambda x: x * 2 + 1)(*copies((x,))).device.type == "meta"


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="a build without oneDNN")
def test_onednn_tensors_run_in_pytorch():
    def f(x):
        return x.to_mkldnn().relu().to_dense() * 2

    x = torch.randn(3, 4)
    assert torch.equal(tofuse.compile(f)(x), f(x))
    (graph,) = tofuse.explain(lambda x: (x.relu() * x).to_dense())(x.to_mkldnn()).graphs
    assert "oneDNN" in graph.notes[0]
