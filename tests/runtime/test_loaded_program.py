"""Modules of files: copies, pickles, and other processes."""

import copy
import io
import multiprocessing
import pickle

import pytest
import torch
from torch import nn

import tofuse
from tofuse.errors import ProgramFileError
from tofuse.runtime import loaded_program


def saved_and_loaded(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "old pickle": lambda module: pickle.loads(pickle.dumps(module, protocol=2)),
    "deepcopy": copy.deepcopy,
    "torch.save": saved_and_loaded,
    "submodule": lambda module: pickle.loads(pickle.dumps(nn.Sequential(module)))[0],
    "copies of copies": lambda module: copy.deepcopy(saved_and_loaded(copy.deepcopy(module))),
}


class Net(nn.Module):
    """Tied weights, a constant, a buffer and a submodule."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(8).eval()
        self.steps = torch.arange(8.0)

    def forward(self, x):
        return self.norm(self.second(self.first(x).tanh()) + self.steps)


@pytest.mark.broad(1)
@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("trained", [False, True])
def test_copies_have_the_values_and_compute_the_same(name, trained, tmp_path):
    model, x = Net(), torch.randn(5, 8)
    tofuse.export(model, (x,), tmp_path / "file", backward=trained, dynamic=True)
    loaded = tofuse.load(tmp_path / "file")
    if trained:
        loaded(x).square().sum().backward()
        torch.optim.SGD(loaded.parameters(), 0.1).step()
        model.load_state_dict(loaded.state_dict())
    other = COPIES[name](loaded)
    weight, old = other.get_parameter("first.weight"), loaded.get_parameter("first.weight")
    assert [n for n, _ in other.named_parameters()] == [n for n, _ in loaded.named_parameters()]
    assert weight is other.get_parameter("second.weight") and weight is not old
    for n in (5, 1, 9):
        x = torch.randn(n, 8)
        torch.testing.assert_close(other(x), model(x), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(other(x), loaded(x), rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        weight.zero_()
    assert old.any() and not torch.equal(other(x), loaded(x))
    if trained:
        other(x).sum().backward()
        assert other.get_parameter("first.bias").grad is not None
    other.float().load_state_dict(loaded.state_dict())
    torch.testing.assert_close(other(x), loaded(x), rtol=1e-4, atol=1e-4)


def run_in_process(module, x, queue):
    queue.put(module(x).detach().numpy())


def test_a_spawned_process_runs_it(tmp_path):
    model, x = Net(), torch.randn(5, 8)
    tofuse.export(model, (x,), tmp_path / "file")
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    module = nn.Sequential(tofuse.load(tmp_path / "file"))
    worker = context.Process(target=run_in_process, args=(module.requires_grad_(False), x, queue))
    worker.start()
    found = torch.from_numpy(queue.get(timeout=100))
    worker.join()
    torch.testing.assert_close(found, model(x).detach())


def test_a_pickle_for_another_processor_is_one_error(tmp_path, monkeypatch):
    tofuse.export(nn.Linear(4, 3), (torch.randn(5, 4),), tmp_path / "file")
    pickled = pickle.dumps(tofuse.load(tmp_path / "file"))
    monkeypatch.setattr(loaded_program, "host_processors", lambda: ("z80",))
    with pytest.raises(ProgramFileError, match="the pickled program has machine code for avx2"):
        pickle.loads(pickled)
