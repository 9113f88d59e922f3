"""Count the kernels that eager PyTorch launches for a program."""

from collections.abc import Callable, Mapping

from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode


def count_launches(run: Callable[[], object]) -> int:
    """Return how many operators that launch kernels `run()` calls below autograd.

    Forward and backward both count.
    """
    with LaunchCounter() as launches:
        run()
    return launches.count


class LaunchCounter(TorchDispatchMode):
    """Counts operators, except those that only make a view or allocate."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> Tensor:
        if func.overloadpacket.__name__ not in NOT_LAUNCHES and not is_view_op(func):
            self.count += 1
        result: Tensor = func(*args, **(kwargs or {}))
        return result


def is_view_op(op: OpOverload) -> bool:
    """Return whether everything `op` returns aliases an argument that it does not write."""
    returns = op._schema.returns
    aliases = [result.alias_info for result in returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


# `_unsafe_view` is a view whose schema does not say so.
NOT_LAUNCHES = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view"}
)
