"""Compile what accelerate prepares: `Accelerator(dynamo_plugin=plugin())`.

accelerate's `dynamo_backend` takes only names that accelerate knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tofuse.config import Option
from tofuse.integrations.compile_arguments import CompileArguments, compile_arguments

try:
    from accelerate.utils import TorchDynamoPlugin
except ImportError as error:
    raise ImportError(
        "tofuse.integrations.accelerate needs accelerate: pip install accelerate"
    ) from error

PLACEHOLDER = "eager"  # a name that accelerate accepts; `to_kwargs` has ours


@dataclass
class TofusePlugin(TorchDynamoPlugin):
    """A TorchDynamoPlugin whose backend is tofuse; `plugin` makes one."""

    arguments: CompileArguments = field(default_factory=dict)

    def to_kwargs(self) -> CompileArguments:
        """Return the arguments of torch.compile."""
        return self.arguments.copy()  # accelerate takes entries out of it


def plugin(*, use_regional_compilation: bool = False, **options: Option) -> TofusePlugin:
    """Return the `dynamo_plugin` of an Accelerator that compiles with tofuse.

    The options are those of `tofuse.compile`. With `use_regional_compilation`, the repeated blocks
    of a model are compiled one by one, as accelerate describes.

    Raises OptionError for unknown options.
    """
    return TofusePlugin(
        backend=PLACEHOLDER,
        use_regional_compilation=use_regional_compilation,
        arguments=compile_arguments(options),
    )
