"""Serve a language model to many readers: slots, a cache of ragged lengths, one compiled step.

Each slot has a request. A step makes the next token of every slot, whatever the length of its
text. When a request ends, its slot takes the next one, while the others go on.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from queue import Queue

import torch
import torch.nn.functional as F
from torch import Tensor, nn

REQUIRES = ()
VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH = 512, 128, 4, 2, 128


class Layer(nn.Module):
    """Attention over a slot's own keys and values, then two products."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = (nn.Linear(WIDTH, n * WIDTH, bias=False) for n in (3, 1))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, at: Tensor) -> Tensor:
        slots = torch.arange(len(x))
        q, k, v = self.qkv(self.norm(x)).unflatten(1, (3, HEADS, -1)).unbind(1)
        keys[slots, :, at], values[slots, :, at] = k, v
        seen = (torch.arange(LENGTH) <= at[:, None])[:, None, None]
        attended = F.scaled_dot_product_attention(q[:, :, None], keys, values, attn_mask=seen)
        x = x + self.out(attended.flatten(1))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """A small language model, one token at a time for each slot."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, at: Tensor, cache: list[tuple[Tensor, Tensor]]) -> Tensor:
        x = self.token(tokens) + self.position(at)
        for layer, (keys, values) in zip(self.layers, cache, strict=True):
            x = layer(x, keys, values, at)
        return self.head(x).argmax(-1)


@dataclass
class Request:
    """A prompt, and the tokens after it; `done` is set when there are enough."""

    prompt: list[int]
    wanted: int
    tokens: list[int] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)


class Server:
    """Runs steps while a slot has a request; `submit` may be called from any thread."""

    def __init__(self, slots: int, step: Callable[..., Tensor]) -> None:
        self.step, self.waiting = step, Queue[Request]()
        self.slots: list[Request | None] = [None] * slots
        self.tokens, self.at = torch.zeros(2, slots, dtype=torch.int64)
        shape = slots, HEADS, LENGTH, WIDTH // HEADS
        self.cache = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(LAYERS)]
        self.steps = 0

    def submit(self, request: Request) -> Request:
        self.waiting.put(request)
        return request

    def run(self, until: Callable[[], bool]) -> None:
        """Make steps until a condition holds."""
        while not until():
            self._admit()
            with torch.no_grad():
                following = self.step(self.tokens, self.at, self.cache)
            self.steps += 1
            for slot, request in enumerate(self.slots):
                if request is not None:
                    self._advance(slot, request, int(following[slot]))

    def _admit(self) -> None:
        """Give free slots the next requests; each begins with the first token of its prompt."""
        for slot, request in enumerate(self.slots):
            if request is None and not self.waiting.empty():
                admitted = self.slots[slot] = self.waiting.get()
                self.tokens[slot], self.at[slot] = admitted.prompt[0], 0

    def _advance(self, slot: int, request: Request, token: int) -> None:
        """Move a slot to its next position: in its prompt, or to the token just made."""
        self.at[slot] += 1
        at = int(self.at[slot])
        if at < len(request.prompt):
            self.tokens[slot] = request.prompt[at]
            return
        request.tokens.append(token)
        self.tokens[slot] = token
        if len(request.tokens) == request.wanted or at + 1 == LENGTH:
            self.slots[slot] = None
            request.done.set()


def make_model(backend: str | None) -> Callable[..., Tensor]:
    torch.manual_seed(0)
    model = Model().eval()
    return model if backend is None else torch.compile(model, backend=backend)


def serve(requests: Iterable[Request], slots: int, model: Callable[..., Tensor]) -> int:
    """Answer requests; return the number of steps."""
    server = Server(slots, model)
    submitted = [server.submit(r) for r in requests]
    server.run(lambda: all(r.done.is_set() for r in submitted))
    return server.steps


def make_requests(count: int) -> list[Request]:
    return [Request([1 + n % 7] * (1 + n % 5), 4 + n % 9) for n in range(count)]


def step(backend: str | None = "tofuse") -> Callable[[], object]:
    """Return a call that serves 16 requests with 4 slots."""
    model = make_model(backend)
    return lambda: serve(make_requests(16), 4, model)


def main() -> None:
    alone, together = make_requests(24), make_requests(24)
    eager, model = make_model(None), make_model("tofuse")
    for request in alone:
        serve([request], 1, eager)
    serve(together, 8, model)
    assert [r.tokens for r in alone] == [r.tokens for r in together]
    for slots in (1, 4, 16):
        serve(make_requests(1), slots, model)  # compile
        begin, requests = time.perf_counter(), make_requests(8 * slots)
        serve(requests, slots, model)
        made = sum(len(r.tokens) for r in requests)
        print(f"{slots} slots: {made / (time.perf_counter() - begin):.0f} tokens a second")
    print("24 requests in 8 slots have the tokens that each has alone")


if __name__ == "__main__":
    main()
