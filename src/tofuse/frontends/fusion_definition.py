"""FusionDefinition: nvFuser's interface, a program defined op by op and run fused."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import TracebackType

import torch

from tofuse.config import make_config
from tofuse.errors import DefinitionError
from tofuse.frontends.definition_text import definition_script, show_definition
from tofuse.frontends.execute_definition import DefinitionEntry, DefinitionExecutor
from tofuse.frontends.inputs import Input
from tofuse.frontends.inspection import (
    Segment,
    evaluate_reference,
    rounding_errors,
    segments_of,
    verify_outputs,
)
from tofuse.frontends.nvfuser_options import check_options
from tofuse.frontends.recorder import Recorder
from tofuse.ir.graph import show_graph
from tofuse.report.model import GraphReport
from tofuse.report.stage_log import StageLog

_numbers = itertools.count()


class FusionDefinition(Recorder):
    """A program defined inside a `with` block, by inputs, ops and outputs.

    A size of -1 is symbolic: one compilation serves all its values. A subclass may instead define
    the program in a method `definition(self)`.
    """

    def __init__(self, fusion: Fusion | None = None, max_length: int | None = None) -> None:
        super().__init__(f"fusion{next(_numbers)}")
        self._executor: DefinitionExecutor | None = None
        self._saved: list[Input] | None = None
        if fusion is not None:
            fusion.definition = self

    def __enter__(self) -> FusionDefinition:
        if self.is_closed or self.is_open:
            raise DefinitionError(f"{self.name} is defined already; use a new FusionDefinition")
        self.is_open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.is_open, self.is_closed = False, True

    def definition(self) -> None:
        """Define the program; subclasses override this."""
        raise NotImplementedError("Fusion is empty!")

    # -- running ---------------------------------------------------------------------------------

    def execute(
        self,
        inputs: Sequence[Input],
        *,
        device: str | torch.device | None = None,
        save_repro_inputs: bool = False,
        _enable_options: Sequence[str] = (),
        _disable_options: Sequence[str] = (),
    ) -> list[torch.Tensor]:
        """Run the program; return the outputs in the order they were added, except aliased ones.

        An integer computed from sizes is returned as an int, a vector as a list of ints.

        Compiles at the first call, and again for another memory layout of the inputs or for
        other sizes that must be static. Raises NotImplementedError for an empty fusion and
        DefinitionError for inputs that are not as declared. `_enable_options` and
        `_disable_options` take nvFuser's names of options and have no effect.
        """
        executor = self._ready()
        if _enable_options or _disable_options:
            check_options(_enable_options, _disable_options)
        if save_repro_inputs:
            self._saved = list(inputs)
        place = None if device is None else str(device)
        return executor(inputs, place)  # type: ignore[return-value]  # see above

    def validate(
        self,
        inputs: Sequence[Input],
        reference_outputs: Sequence[torch.Tensor] | None = None,
        device: str | torch.device | None = None,
        *,
        _enable_options: Sequence[str] = (),
        _disable_options: Sequence[str] = (),
    ) -> list[torch.Tensor]:
        """Run, compare the outputs with a reference, return them; VerifyError if they differ.

        Without `reference_outputs`, PyTorch evaluates every op by itself as the reference. The
        tolerance grows with what other rounding errors would change in an output.
        """
        executor = self._ready()
        computed = evaluate_reference(executor, inputs) if reference_outputs is None else ()
        expected = computed if reference_outputs is None else reference_outputs
        errors = rounding_errors(executor, inputs)
        outputs = self.execute(
            inputs,
            device=device,
            _enable_options=_enable_options,
            _disable_options=_disable_options,
        )
        verify_outputs(self.name, outputs, expected, errors)
        return outputs

    def validate_definition(self) -> tuple[bool, str]:
        """Return whether the definition can run, and the reason if not."""
        try:
            self._ready()
        except (DefinitionError, NotImplementedError) as e:
            return False, str(e)
        return True, ""

    # -- inspection ------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return show_definition(self.statements)

    def repro_script_for(self, inputs: Sequence[Input] | None = None) -> str:
        """Return a script that defines this fusion and runs it on inputs like these."""
        return definition_script(repr(self), inputs)

    def last_repro_script(self) -> str:
        """Return the script for the inputs of the last `execute(..., save_repro_inputs=True)`."""
        if self._saved is None:
            raise DefinitionError(
                f"{self.name}: call execute(inputs, save_repro_inputs=True) first"
            )
        return definition_script(repr(self), self._saved)

    def fusion_ir(self) -> str:
        """Return the text of the definition's graph before any pass."""
        return show_graph(self._entry().captured.graph)

    def segments(self) -> list[Segment]:
        """Return the kernels and library calls of the program, and why they were not fused."""
        return segments_of(self.report())

    def kernels(self) -> list[str]:
        """Return the source of each kernel."""
        return [k.source for k in self.report().kernels]

    @property
    def compilations(self) -> int:
        """The number of compilations so far: one per input layout and static sizes."""
        return 0 if self._executor is None else len(self._executor.entries)

    def report(self) -> GraphReport:
        """Return the report of the compilation."""
        return self._entry().report

    def _entry(self) -> DefinitionEntry:
        """Return the entry that ran last; before any run, one for row-major inputs."""
        executor = self._ready()
        return executor.last or executor.entry_for_default_sizes()

    def _ready(self) -> DefinitionExecutor:
        """Return the executor of the finished definition."""
        if self.is_open:
            raise DefinitionError(f"{self.name} is not finished: leave its `with` block first")
        if not self.is_closed and type(self).definition is not FusionDefinition.definition:
            with self:
                self.definition()
        if self._executor is None:
            config = make_config({})
            self._executor = DefinitionExecutor(self.name, tuple(self.statements), config)
            StageLog(self.name, config.show, config.dump).log_text("definition", lambda: repr(self))
        return self._executor


class Fusion:
    """nvFuser's interface of 2022: `with FusionDefinition(fs) as fd`, then `fs.execute`."""

    def __init__(self) -> None:
        self.definition: FusionDefinition | None = None

    def execute(self, inputs: Sequence[Input]) -> list[torch.Tensor]:
        """Run the definition; return its outputs."""
        return self._defined().execute(inputs)

    def print_ir(self) -> None:
        """Print the graph of the definition."""
        print(self._defined().fusion_ir())

    def _defined(self) -> FusionDefinition:
        if self.definition is None:
            raise NotImplementedError("Fusion is empty!")
        return self.definition
