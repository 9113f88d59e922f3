"""Change what files of exported programs say, at random, and load and call them in this process.

    python -m tests.support.mutated_files <how> <folder> <first seed> <end>

Prints a line for each seed before it is tried, and ends with the counts of what became of them. An
outcome that may not be is an AssertionError, or the end of the process.
"""

import collections
import copy
import hashlib
import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import tofuse
from tofuse.runtime import program_file
from tofuse.runtime.typed_json import from_json


class Lookup(nn.Module):
    """Indices that a kernel checks, tied weights, a constant, and results that are no tensors."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(12, 8)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.table.weight
        self.steps = torch.arange(12.0)

    def forward(self, x, *, k):
        y = self.head(self.table(x).tanh()) * k + self.steps
        return {"y": y.softmax(-1), "k": k}, None


def programs():
    """Return by name: a program, the arguments of a call, and options of the export."""
    x = torch.randn(6, 16)
    mlp = nn.Sequential(nn.Linear(16, 33), nn.GELU(), nn.LayerNorm(33), nn.Linear(33, 4))
    return {
        "static": (mlp, (x,), {}, {}),
        "dynamic": (mlp, (x,), {}, {"dynamic": True, "processors": ["avx2"]}),
        "backward": (mlp, (x.clone().requires_grad_(),), {}, {"backward": True, "dynamic": True}),
        "lookup": (Lookup(), (torch.tensor([[1, 2, 11]]),), {"k": 2}, {}),
        "product": (nn.Linear(1024, 1024), (torch.randn(6, 1024),), {}, {}),
        "convolution": (nn.Conv1d(3, 4, 3), (torch.randn(2, 3, 9),), {}, {}),
    }  # fmt: skip


def write(folder: Path):
    for name, (target, args, kwargs, options) in programs().items():
        with torch.set_grad_enabled(bool(options.get("backward"))):
            tofuse.export(target, args, folder / name, kwargs=kwargs, **options)


def run(how: str, folder: Path, seeds: range):
    torch.manual_seed(0)
    known, outcomes = programs(), collections.Counter[str]()
    for seed in seeds:
        dice = random.Random(seed)
        name = dice.choice([*known])
        path, target = folder / f"mutated-{seeds.start}", known[name]
        if not CHANGES[how](folder / name, path, dice):
            continue
        print(f"seed {seed}: {name}", flush=True)
        try:
            loaded = tofuse.load(path)
        except tofuse.ProgramFileError as error:
            assert str(error).startswith(str(path)) and "\n" not in str(error), error
            outcomes["refused"] += 1
            continue
        assert isinstance(loaded, nn.Module)
        outcomes["loaded"] += 1
        if how == "digests":
            call(loaded, *target)
    print(dict(outcomes))


def call(loaded, target, args, kwargs, options):
    """Compare a call; what a file calls the program, or says of torch, changes nothing."""
    with torch.set_grad_enabled(bool(options.get("backward"))):
        found = loaded(*args, **kwargs)
    if isinstance(target, Lookup):
        assert found[0]["k"] == 2 and found[1] is None
        assert found[0]["y"].shape == (1, 3, 12)
    else:
        assert found.shape == target(*args).shape
        assert torch.isfinite(found).all()


def change_manifest(source: Path, path: Path, dice: random.Random):
    """Change the description, or the header of the tensors, and make all digests right."""
    header, data = _read(source)
    manifest = json.loads(header["__metadata__"]["tofuse"])
    if dice.random() < 0.1:
        metadata = header.pop("__metadata__")
        change(header, dice)
        header["__metadata__"] = metadata
    else:
        for _ in range(dice.choice([1, 1, 1, 3])):
            change(manifest, dice)
    text = json.dumps(manifest)
    digest = hashlib.sha256(text.encode()).hexdigest()
    header["__metadata__"] = {"tofuse": text, "tofuse_sha256": digest}
    content = json.dumps(header).encode()
    path.write_bytes(len(content).to_bytes(8, "little") + content + data)
    return True


def change_program(source: Path, path: Path, dice: random.Random):
    """Change the description as a faulty export would write it: machine code is tied to it."""
    program, tensors = program_file.read_program(source)
    tensors = {k: t for k, t in tensors.items() if not k.startswith(program_file.CODE_PREFIX)}
    images = {program_file._code_key(c.image.code): c.image.code for c in program.code.values()}
    described = copy.deepcopy(json.loads(json.dumps(program_file.program_json(program))))
    change(described, dice)
    forms = {**program_file.TEXT_FORMS, bytes: program_file.TextForm(repr, images.__getitem__)}
    try:
        program = from_json(program_file.ProgramFile, described, forms)
    except ValueError:
        return False
    program_file.save_program(path, program, tensors)
    return True


def change(tree, dice: random.Random):
    """Change one value below a JSON object or list."""
    places = [*_places(tree)]
    owner, key = dice.choice(places)
    value = owner[key]
    kind = dice.choice(["value", "value", "near", "near", "drop", "add", "swap", "rename"])
    if kind == "near" and isinstance(value, int) and not isinstance(value, bool):
        owner[key] = dice.choice([value + 1, value - 1, -value, 2 * value, value * 10**6])
    elif kind == "near" and isinstance(value, str):
        owner[key] = _near_text(value, dice)
    elif kind == "drop":
        del owner[key]
    elif kind == "add" and isinstance(value, list):
        value.append(copy.deepcopy(dice.choice(value)) if value else 0)
    elif kind == "add" and isinstance(value, dict):
        value["another"] = 0
    elif kind == "swap":
        other, name = dice.choice([(o, k) for o, k in places if o is owner])
        owner[key], other[name] = other[name], owner[key]
    elif kind == "rename" and isinstance(owner, dict):
        owner[dice.choice(["another", f"{key}_", "0", ""])] = owner.pop(key)
    else:
        owner[key] = dice.choice(VALUES)()


def _near_text(text: str, dice: random.Random):
    """Return a text, such as a plan, with a word or a number replaced by another of its words."""
    words = [*re.finditer(r"-?\w+|[{}()\[\]]", text)]
    if not words:
        return text + "x"
    old = dice.choice(words)
    new = dice.choice([dice.choice(words).group(), "0", "-1", "7", "9" * 20, "", "t_z", "if", "s9"])
    return text[: old.start()] + new + text[old.end() :]


def _places(tree):
    """Yield each container below a tree with each of its keys."""
    keys = tree.keys() if isinstance(tree, dict) else range(len(tree))
    for key in keys:
        yield tree, key
        if isinstance(tree[key], (dict, list)):
            yield from _places(tree[key])


def _read(path: Path):
    """Return the header and the data of a safetensors file."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def _deep():
    tree: list[object] = []
    for _ in range(50):
        tree = [tree]
    return tree


VALUES: list[Callable[[], object]] = [
    lambda: None, lambda: True, lambda: False, lambda: -1, lambda: 0, lambda: 1, lambda: 2**31,
    lambda: 2**63, lambda: -(10**30), lambda: 1.5, lambda: float("nan"), lambda: "", lambda: "x",
    lambda: "torch.float64", lambda: [], dict, lambda: [1, 2], lambda: {"a": 1}, _deep,
]  # fmt: skip
CHANGES = {"digests": change_manifest, "signature": change_program}

if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), range(int(sys.argv[3]), int(sys.argv[4])))
