"""The programs of the README's figure, for JAX: a process that times them on request.

It needs JAX alone. Each line on stdin is a request in JSON; the answer is the median seconds of a
step.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import TypedDict

import jax
import jax.numpy as jnp
from jax import Array
from jax.nn import silu
from jax.nn import softmax as jax_softmax


class Request(TypedDict, total=False):
    """A program by name, the shapes of its arguments, and how many steps to time."""

    program: str
    shapes: list[list[int]]
    backward: bool
    steps: int


def activation(x: Array, y: Array) -> Array:
    return jax.nn.relu((jnp.sin(x) * jnp.cos(y) + x) * y)


def normalize(x: Array, axes: tuple[int, ...]) -> Array:
    mean = x.mean(axes, keepdims=True)
    variance = ((x - mean) ** 2).mean(axes, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5)


def residual_norm(x: Array, residual: Array, bias: Array, weight: Array) -> Array:
    return normalize(x + bias + residual, (-1,)) * weight


def group_norm_silu(x: Array, weight: Array, bias: Array) -> Array:
    n, c, h, w = x.shape
    y = normalize(x.reshape(n, 8, c // 8, h, w), (2, 3, 4)).reshape(x.shape)
    return silu(y * weight[None, :, None, None] + bias[None, :, None, None])


def rope(x: Array, cos: Array, sin: Array) -> Array:
    first, second = jnp.split(x, 2, -1)
    return x * cos + jnp.concatenate((-second, first), -1) * sin


def swiglu(gate: Array, up: Array) -> Array:
    return silu(gate) * up


def softmax(x: Array) -> Array:
    return jax_softmax(x, -1)


def cross_entropy(logits: Array, labels: Array) -> Array:
    logs = jax.nn.log_softmax(logits, -1)
    return -jnp.take_along_axis(logs, labels[:, None], -1).mean()


PROGRAMS = (activation, residual_norm, group_norm_silu, rope, swiglu, softmax, cross_entropy)


def step(request: Request) -> Callable[[], object]:
    """Return a call of a compiled program, with its backward if it has one."""
    program = next(p for p in PROGRAMS if p.__name__ == request["program"])
    shapes = request["shapes"]
    keys = jax.random.split(jax.random.key(0), len(shapes))
    arguments = [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]
    labels = [jnp.arange(shapes[0][0]) * 7 % shapes[0][1]] if program is cross_entropy else []

    def gradient(x: Array, *labels: Array) -> tuple[Array, Array]:
        result, pull = jax.vjp(lambda x: program(x, *labels), x)
        return result, pull(jnp.ones_like(result))

    call = jax.jit(gradient if request["backward"] else program)
    return lambda: jax.block_until_ready(call(*arguments, *labels))


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def main() -> None:
    known: Request | None = None
    call: Callable[[], object] = dict
    for line in sys.stdin:
        request: Request = json.loads(line)
        steps = request.pop("steps")
        if request != known:
            known, call = request, step(request)
            for _ in range(3):
                call()
        call()
        print(statistics.median(seconds(call) for _ in range(steps)), flush=True)


if __name__ == "__main__":
    main()
