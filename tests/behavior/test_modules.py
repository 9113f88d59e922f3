"""Compiled modules are modules that share their state with the original."""

import copy
import pickle
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.compiler import is_compiling
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

import tofuse
from tofuse.capture.dynamo.hook_guards import NO_HOOKS_GUARD, recompile_for_hooks

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
ROOT = Path(__file__).resolve().parents[2]


class Net(nn.Module):
    bias: torch.Tensor

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("bias", torch.ones(4))
        self.p = 0.5

    def forward(self, x, *, factor=1):
        y = self.linear(x).relu() * factor + self.bias
        return F.dropout(y, self.p, self.training)


def assert_same(compiled, model, *args, **kwargs):
    torch.testing.assert_close(compiled(*args, **kwargs), model(*args, **kwargs))


def test_compiled_module_shares_state_with_the_original():
    net, x = Net(), torch.randn(3, 4)
    compiled = tofuse.compile(net)
    assert isinstance(compiled, Net) and type(compiled).__name__ == "Net"
    assert repr(compiled) == repr(net)
    net.eval()
    assert not compiled.training
    assert_same(compiled, net, x, factor=2)
    compiled.train()
    assert net.training and net.linear.training
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in net.parameters()]
    compiled.eval().to(torch.float64)
    assert net.linear.weight.dtype == torch.float64
    assert_same(compiled, net, x.double())
    compiled.load_state_dict({k: 2 * v for k, v in net.state_dict().items()})
    assert_same(compiled, net, x.double())
    net.bias.add_(1)
    assert_same(compiled, net, x.double())


def test_mode_change_of_the_original():
    net, x = Net(), torch.ones(50, 4)
    net.p = 0.9
    compiled = tofuse.compile(net)
    assert (compiled(x) == 0).any()
    net.eval()
    assert_same(compiled, net, x)


COPIES = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "average": lambda module: torch.optim.swa_utils.AveragedModel(module).module,
    "share_memory": lambda module: copy.deepcopy(module).share_memory(),
}


def is_compiled(module, x):
    """Whether a call of a module runs compiled code: its `forward` runs for the compiler alone."""
    calls = []
    module.register_forward_pre_hook(lambda module, args: calls.append(is_compiling()))
    module(x)
    return calls == [True]


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_copies_of_a_compiled_module_are_compiled(capture, name):
    net, x = nn.Sequential(nn.Linear(4, 2), nn.GELU()).eval(), torch.randn(3, 4)
    compiled = tofuse.compile(net, capture=capture)
    for module in (compiled, *([] if name == "copy" else [nn.Sequential(compiled)])):
        other = COPIES[name](module)
        torch.testing.assert_close(other(x), net(x))
        inner = other if module is compiled else other[0]
        assert isinstance(inner, nn.Sequential) and inner is not compiled
        if name != "copy":
            weights, old = (next(iter(n.parameters())) for n in (inner, net))
            with torch.no_grad():
                weights.zero_()
            assert old.any()
        if capture == "dynamo" and module is compiled:
            assert is_compiled(inner, x)


@tofuse.compile
def in_this_namespace(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def test_a_compiled_function_of_a_namespace_pickles():
    assert pickle.loads(pickle.dumps(in_this_namespace)) is in_this_namespace
    assert copy.deepcopy(in_this_namespace) is in_this_namespace


def test_a_saved_compiled_module_is_loaded_compiled(tmp_path):
    net, x = nn.Linear(4, 2), torch.randn(3, 4)
    torch.save(tofuse.compile(net, dynamic=True), tmp_path / "net.pt")
    other = torch.load(tmp_path / "net.pt", weights_only=False)
    assert_same(other, net, x)
    assert is_compiled(other, x)


def test_two_compilations_of_a_module_are_equal():
    net = Net()
    first, second = tofuse.compile(net), tofuse.compile(net, precision="eager")
    assert first == second and first == net and net == second and hash(first) == hash(second)
    assert first != Net() and tofuse.compile(Net()) != first


def test_a_compiled_module_is_equal_to_the_original():
    net = nn.Linear(4, 2)
    compiled = tofuse.compile(tofuse.compile(net))
    assert compiled == net and net == compiled and hash(net) == hash(compiled)
    assert compiled != nn.Linear(4, 2)
    assert weakref.WeakKeyDictionary({net: "state"})[compiled] == "state"
    assert len(list(nn.ModuleList([net, compiled]).modules())) == 2


def test_fsdp_finds_its_state():
    code = "from tests.behavior.test_modules import shard; shard()"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-2000:]


def shard():
    """Shard compiled blocks and compile sharded ones, in one process of gloo."""
    store = dist.HashStore()  # type: ignore[attr-defined]  # torch does not list it
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(2)]
    for block in blocks:
        fully_shard(block, mesh=mesh)
    net = nn.Sequential(*map(tofuse.compile, blocks))
    fully_shard(net, mesh=mesh)
    net(torch.randn(2, 8)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    for compiled in (net[0], tofuse.compile(net)):
        assert isinstance(compiled, FSDPModule)
        compiled.set_requires_gradient_sync(False)


def test_torch_modules_are_compiled():
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2), nn.Softmax(-1)).eval()
    report = tofuse.explain(net)(torch.randn(3, 4))
    assert len(report.forward.kernels) == 1
    lstm, x = nn.LSTM(4, 5, batch_first=True), torch.randn(2, 3, 4)
    torch.testing.assert_close(tofuse.compile(lstm)(x)[0], lstm(x)[0])


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_hooks_added_and_removed():
    net, x = Net().eval(), torch.randn(3, 4)
    compiled = tofuse.compile(net)
    compiled(x)
    handles = [
        net.register_forward_hook(lambda module, args, output: output * 2),
        net.linear.register_forward_hook(lambda module, args, output: output + 1),
        net.register_forward_pre_hook(lambda module, args: (args[0] * 3,)),
    ]
    assert_same(compiled, net, x)
    for handle in handles:
        handle.remove()
    assert_same(compiled, net, x)
    gradients: list[torch.Tensor] = []

    def record(module, inner, outer):
        gradients.append(outer[0].clone())

    net.linear.register_full_backward_hook(record)
    compiled(x).sum().backward()
    net(x).sum().backward()
    torch.testing.assert_close(*gradients)


def test_hooks_with_a_graph_break():
    class Broken(Net):
        def forward(self, x, *, factor=1.0):
            torch._dynamo.graph_break()
            return super().forward(x, factor=factor)

    net, x = Broken().eval(), torch.randn(3, 4)
    compiled = tofuse.compile(net)
    assert_same(compiled, net, x)
    nn.Linear(2, 2).register_forward_hook(lambda module, args, output: output)  # of another module
    assert_same(compiled, net, x)
    net.linear.register_forward_hook(lambda module, args, output: output + 1)
    assert_same(compiled, net, x)
    net.linear._forward_hooks.clear()
    assert_same(compiled, net, x)


def test_no_guards_on_empty_hooks():
    found: list[str] = []
    net = Net().eval()

    def compiled(keep):
        def record(guards):
            found.extend(g.guard_type for g, kept in zip(guards, keep(guards), strict=True) if kept)
            return [True for _ in guards]

        return torch.compile(net, backend="eager", options={"guard_filter_fn": record})

    recompile_for_hooks(compiled, lambda guards: None)(torch.randn(3, 4))
    assert found and NO_HOOKS_GUARD not in found


@pytest.mark.parametrize("attribute", ["T", "mT", "real", "data"])
def test_guards_on_new_tensors(attribute):
    def program(x):
        return torch.arange(getattr(x, attribute).shape[-1])

    compiled = tofuse.compile(program)
    for rows in (3, 3, 2, 2, 5):
        x = torch.ones(3, rows)
        assert torch.equal(compiled(x), program(x))


def test_mutated_buffers():
    class Counter(nn.Module):
        count: torch.Tensor

        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            self.count += 1
            return self.norm(x) * self.count

    net = Counter()
    other, compiled = copy.deepcopy(net), tofuse.compile(net)
    for _ in range(3):
        x = torch.randn(5, 4)
        torch.testing.assert_close(compiled(x), other(x))
    torch.testing.assert_close(net.state_dict(), other.state_dict())


def test_compiled_module_inside_a_compiled_function():
    inner, x = tofuse.compile(Net().eval()), torch.randn(2, 4)

    def outer(x):
        return inner(x) * 2

    assert_same(tofuse.compile(outer), outer, x)


def test_backend_by_name():
    f = torch.compile(lambda x: x.sin() + 1, backend="tofuse")
    assert_same(f, lambda x: x.sin() + 1, torch.randn(4))
    net = Net().eval()
    assert_same(torch.compile(net, backend="tofuse"), net, torch.ones(2, 4))


@pytest.fixture
def single_process_group():
    """Initialize a process group of one process."""
    dist.init_process_group(
        "gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("make", [Net, lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU())])
@pytest.mark.filterwarnings("ignore::UserWarning:torch")
def test_distributed_data_parallel(single_process_group, make, capture):
    """The wrapped model is compiled; the gradient reduction runs at each call."""
    model, x = make().eval(), torch.randn(3, 4)
    around = nn.parallel.DistributedDataParallel(model)
    assert tofuse.explain(around, capture=capture)(x).kernels
    compiled, calls = tofuse.compile(around, capture=capture), list[int]()
    assert isinstance(compiled, nn.parallel.DistributedDataParallel)
    around.register_comm_hook(calls, record_and_return)
    for _ in range(2):
        model.zero_grad()
        compiled(x).sum().backward()
        got = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model(x).sum().backward()
        torch.testing.assert_close(got, [p.grad for p in model.parameters()])
    assert len(calls) >= 2


def record_and_return(calls, bucket):
    calls.append(bucket.index())
    done = torch.futures.Future[torch.Tensor]()
    done.set_result(bucket.buffer())
    return done
