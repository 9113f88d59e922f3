"""The seed programs compute their definitions, in eager and compiled."""

import math

import pytest
import torch
import torch.nn.functional as F

import tofuse
from benchmarks import programs
from benchmarks.check import check
from benchmarks.launches import count_launches
from benchmarks.measure import make_step
from benchmarks.seeds import RNG_SEED, SEEDS, Seed, pick

every_seed = pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.name)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch.compiler.reset()


def inputs_of(name: str):
    return pick(name).make_inputs("small")


def eager(name: str):
    seed, inputs = pick(name), inputs_of(name)
    torch.manual_seed(RNG_SEED)
    return seed.program(*inputs), inputs


@every_seed
def test_compiled_matches_float64(seed: Seed):
    inputs = seed.make_inputs("small")
    compiled = tofuse.compile(seed.program)
    comparisons = check(seed, inputs, compiled, tofuse.compile)
    assert [comparison for comparison in comparisons if not comparison.is_within_limit] == []


@every_seed
def test_eager_kernel_count(seed: Seed):
    assert count_launches(make_step(seed.program, seed.make_inputs("small"))) == seed.kernels


@every_seed
def test_inputs_are_deterministic(seed: Seed):
    for a, b in zip(seed.make_inputs("small"), seed.make_inputs("small"), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_names_are_unique():
    assert len({seed.name for seed in SEEDS}) == len(SEEDS)


def test_complex_activation():
    got, (x, y) = eager("complex_activation")
    torch.testing.assert_close(got, ((x.sin() * y.cos() + x) * y).clamp_min(0))


def test_unused_product_has_no_effect():
    got, (x, gate, spare, down) = eager("mlp_unused_product")
    assert torch.equal(got, programs.mlp_unused_product(x, gate, torch.zeros_like(spare), down))


@pytest.mark.parametrize("name", ["split_stack", "split_stack_weights"])
def test_split_stack_equals_combined(name: str):
    split, _ = eager(name)
    whole, _ = eager(name.replace("split_stack", "combined"))
    assert split.shape == (4, 8, 1)
    torch.testing.assert_close(split, whole)


def test_norms_agree_without_dropout():
    x, bias, residual, weight, shift = inputs_of("norm_composite")
    composite = programs.composite_keep_all(x, bias, residual, weight, shift)
    primitive = programs.primitive_tail(x + bias, residual, weight, shift)
    torch.testing.assert_close(composite, primitive, rtol=1e-4, atol=1e-4)
    rms = programs.rms_tail(x + bias, residual, weight)
    torch.testing.assert_close(rms, F.rms_norm(x + bias + residual, weight.shape, weight))


@pytest.mark.parametrize("name", ["gelu", "gelu_bookends"])
def test_gelu(name: str):
    got, (x, *_) = eager(name)
    assert math.isclose(0.707107, math.sqrt(0.5), rel_tol=1e-6)
    torch.testing.assert_close(got, F.gelu(x), rtol=1e-5, atol=1e-6)


def test_heads_to_rows():
    got, (x, heads) = eager("heads_to_rows")
    batch = x.shape[0] // heads
    rows = torch.cat([torch.cat(list(one), dim=-1) for one in x.split(heads)])
    assert got.shape == (batch * x.shape[1], heads * x.shape[2])
    assert torch.equal(got, rows)


def test_view_chains_differ_only_in_shape():
    chains = [seed for seed in SEEDS if seed.program is programs.view_chain]
    assert len(chains) == 8
    for seed in chains:
        got, inputs = eager(seed.name)
        assert got.dim() == (3 if sum(inputs[2:]) % 2 else 2)
        torch.testing.assert_close(got.flatten(), 4 * inputs[0].flatten() ** 2)


@pytest.mark.parametrize("name", ["lone_view", "lone_reshape"])
def test_lone_view_aliases_its_input(name: str):
    got, (x, *_) = eager(name)
    assert got.data_ptr() == x.data_ptr()
