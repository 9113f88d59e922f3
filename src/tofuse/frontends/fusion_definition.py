"""FusionDefinition: a program of tensor operations, written down op by op, then run fused."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import TracebackType

import torch

from tofuse.config import make_config
from tofuse.errors import DefinitionError
from tofuse.frontends.definition_text import script, show_definition
from tofuse.frontends.execute_definition import Executor, Variant
from tofuse.frontends.inputs import Input
from tofuse.frontends.inspection import Segment, compare, reference, segments_of
from tofuse.frontends.recording import Recording
from tofuse.ir.graph.print import show_graph
from tofuse.report.model import GraphReport
from tofuse.report.stage_log import Stages

_numbers = itertools.count()


class FusionDefinition(Recording):
    """A context manager: inside it inputs are defined, ops appended and outputs named.

    Sizes of -1 are symbols: one compilation serves all of them. Definitions may also be written
    as a subclass with a method `definition(self)`.
    """

    def __init__(self, fusion: Fusion | None = None, max_length: int | None = None) -> None:
        super().__init__(f"fusion{next(_numbers)}")
        self._executor: Executor | None = None
        self._saved: list[Input] | None = None
        if fusion is not None:
            fusion.definition = self

    def __enter__(self) -> FusionDefinition:
        if self.closed or self.open:
            raise DefinitionError(f"{self.name} is defined already; make another FusionDefinition")
        self.open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.open, self.closed = False, True

    def definition(self) -> None:
        """The body, for subclasses."""
        raise NotImplementedError("Fusion is empty!")

    # -- running ---------------------------------------------------------------------------------

    def execute(
        self,
        inputs: Sequence[Input],
        *,
        device: str | torch.device | None = None,
        save_repro_inputs: bool = False,
    ) -> list[torch.Tensor]:
        """The outputs in the order they were added, without those written into inputs.

        An output that is an integer of sizes comes as an int, a vector as a list of them.

        Compiles at the first call, and again for another memory layout of the inputs or for
        sizes that the program cannot treat as symbols. Raises NotImplementedError for an empty
        fusion and DefinitionError for inputs that are not as defined.
        """
        executor = self._ready()
        if save_repro_inputs:
            self._saved = list(inputs)
        place = None if device is None else str(device)
        return executor(inputs, place)  # type: ignore[return-value]  # see above

    def validate(
        self,
        inputs: Sequence[Input],
        reference_outputs: Sequence[torch.Tensor] | None = None,
    ) -> None:
        """Run, and hold the outputs against a reference; VerifyError where they differ.

        Without `reference_outputs` every op is evaluated by itself, through PyTorch.
        """
        executor = self._ready()
        computed = reference(executor, inputs) if reference_outputs is None else ()
        expected = computed if reference_outputs is None else reference_outputs
        compare(self.name, executor(inputs), expected)

    def validate_definition(self) -> tuple[bool, str]:
        """Whether the definition can run, and why not."""
        try:
            self._ready()
        except (DefinitionError, NotImplementedError) as e:
            return False, str(e)
        return True, ""

    # -- looking inside --------------------------------------------------------------------------

    def __repr__(self) -> str:
        return show_definition(self.statements)

    def repro_script_for(self, inputs: Sequence[Input] | None = None) -> str:
        """A file that defines this fusion and runs it on inputs like these."""
        return script(repr(self), inputs)

    def last_repro_script(self) -> str:
        """The script for the inputs of the last `execute(..., save_repro_inputs=True)`."""
        if self._saved is None:
            raise DefinitionError(
                f"{self.name}: call execute(inputs, save_repro_inputs=True) first"
            )
        return script(repr(self), self._saved)

    def fusion_ir(self) -> str:
        """The graph of the definition, before any pass."""
        return show_graph(self._variant().captured.graph)

    def segments(self) -> list[Segment]:
        """How the definition was cut: what runs together, and why not with what came before."""
        return segments_of(self.report())

    def kernels(self) -> list[str]:
        """The sources of the kernels."""
        return [k.source for k in self.report().kernels]

    @property
    def compilations(self) -> int:
        """For how many kinds of inputs it was compiled so far."""
        return 0 if self._executor is None else len(self._executor.variants)

    def report(self) -> GraphReport:
        """What was decided, as data."""
        return self._variant().report

    def _variant(self) -> Variant:
        """What ran last; before any run, what is compiled for dense inputs."""
        executor = self._ready()
        return executor.last or executor.dense()

    def _ready(self) -> Executor:
        """The executor of the finished definition."""
        if self.open:
            raise DefinitionError(f"{self.name} is not finished: leave its `with` first")
        if not self.closed and type(self).definition is not FusionDefinition.definition:
            with self:
                self.definition()
        if self._executor is None:
            config = make_config({})
            self._executor = Executor(self.name, tuple(self.statements), config)
            Stages(self.name, config.show, config.dump).text("definition", lambda: repr(self))
        return self._executor


class Fusion:
    """The spelling of 2022: `fs = Fusion()`, `with FusionDefinition(fs) as fd`, `fs.execute`."""

    def __init__(self) -> None:
        self.definition: FusionDefinition | None = None

    def execute(self, inputs: Sequence[Input]) -> list[torch.Tensor]:
        """The outputs of the definition."""
        return self._defined().execute(inputs)

    def print_ir(self) -> None:
        """Print the graph of the definition."""
        print(self._defined().fusion_ir())

    def _defined(self) -> FusionDefinition:
        if self.definition is None:
            raise NotImplementedError("Fusion is empty!")
        return self.definition
