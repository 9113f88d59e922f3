"""Time the training steps of one process: `python -m suites.start.process MODEL CONTENDER FILE`.

It prints JSON: the seconds of each step; in the background, of those before and after `wait`.
Imports, the model and a first step of eager, which loads libraries, come before. The first step
includes compilation.
"""

import json
import sys
import time
import warnings
from pathlib import Path

import torch
from torch import nn

import tofuse
from suites.start.models import MODELS, Trained

STEPS = 101
EXPORT, BACKGROUND = "export", "background"  # the former writes the file instead


def main(name: str, contender: str, path: Path) -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    trained = MODELS[name]()
    if contender == EXPORT:
        tofuse.export(trained.model, trained.batch, path, backward=True)
        return
    _step(trained.model, trained)
    trained.model.zero_grad()
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))  # imports the compilers
    tofuse.empty_cache()
    times = []
    begin = time.perf_counter()
    compiled = _compile(trained.model, contender, path)
    for k in range(2 * STEPS if contender == BACKGROUND else STEPS):
        if k == STEPS:
            tofuse.wait()
            begin = time.perf_counter()
        _step(compiled, trained)
        times.append(time.perf_counter() - begin)
        begin = time.perf_counter()
    print(json.dumps(times))


def _compile(model: nn.Module, contender: str, path: Path) -> nn.Module:
    match contender:
        case "inductor":
            compiled = torch.compile(model)
            assert isinstance(compiled, nn.Module)
            return compiled
        case "tofuse":
            return tofuse.compile(model)
        case "background":
            return tofuse.compile(model, background=True)
        case "file":
            return tofuse.load(path)
    return model


def _step(model: nn.Module, trained: Trained) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    model(*trained.batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
