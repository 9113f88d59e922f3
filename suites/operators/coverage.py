"""Writes docs/coverage.md from the results of the suite."""

from collections import Counter, defaultdict
from collections.abc import Mapping

from suites.harness import Result
from suites.operators.known import KNOWN_DIFFERENCES, known_rows

LETTERS = {
    "fused": "F",
    "pytorch": "P",
    "refused": "R",
    "known": "K",
    "skipped": ".",
    "failed": "X",
    "crashed": "X",
}
WORST = ("crashed", "failed", "known", "fused", "pytorch", "refused", "skipped")


def coverage_page(results: Mapping[str, Result], dtypes: tuple[str, ...]) -> str:
    """Return the page: figures, failures, known differences, a letter for each case."""
    counts = Counter(r.status for r in results.values())
    calls = sum(int(str(r.data.get("calls", 0))) for r in results.values())
    left_out = sum(int(str(r.data.get("left_out", 0))) for r in results.values())
    failed = {name: r for name, r in results.items() if r.failed}
    compared = len(results) - counts["skipped"]
    right = counts["fused"] + counts["pytorch"] + counts["refused"]
    torchs = sum(int(str(r.data.get("as_torch", 0))) for r in results.values())
    lines = [
        "# Coverage of torch's operator database",
        "",
        f"{right} of {compared} cases are as in eager, over {calls} calls:",
        f"{counts['fused']} run in kernels of ours, {counts['pytorch']} go to PyTorch,",
        f"{counts['refused']} raise as in eager. {len(failed)} fail, {counts['known']} have a",
        f"known difference. {counts['skipped']} more cases have no samples.",
        *([f"{left_out} more samples were left out."] if left_out else []),
        "",
        "`make opinfo` writes this page. A case is an operator, a dtype, and a layout or variant;",
        "it runs all samples, or SAMPLES of them spread evenly: values against eager with float64",
        "as the referee, gradients, dtypes, shapes, strides, aliasing, and the arguments after the",
        "call. Of random operators, shapes, dtypes and strides are compared, and after a dropout",
        "the possible values.",
        f"{torchs} differences are torch's own: `torch.compile` with eager's operators shows them.",
        "",
        "## Failures",
        "",
        *(f"- `{name}`: {_one_line(r.detail)}" for name, r in sorted(failed.items())),
        *([] if failed else ["None."]),
        "",
        "## Known differences",
        "",
        *(f"- `{k.case}`, `{k.failure}`: {k.reason}" for k in KNOWN_DIFFERENCES),
        *(f"- outdated: `{name}` no longer fails" for name in outdated(results)),
        "",
        "## Operators",
        "",
        "F: kernels of ours. P: PyTorch's operators. R: refused, as in eager. X: a failure.",
        "K: a known difference. A dot: no samples. A letter stands for all layouts and variants.",
        "",
        f"| operator | {' | '.join(dtypes)} | errors |",
        f"|---|{'---|' * len(dtypes)}---|",
        *_rows(results, (*dtypes, "any")),
    ]
    return "\n".join(lines) + "\n"


def outdated(results: Mapping[str, Result]) -> list[str]:
    """Return the known differences that none of the cases that ran shows."""
    ran = {row for name in results for row in known_rows(name)}
    shown = {row for name, r in results.items() if r.status == "known" for row in known_rows(name)}
    return [row.case for row in KNOWN_DIFFERENCES if row in ran - shown]


def _rows(results: Mapping[str, Result], dtypes: tuple[str, ...]) -> list[str]:
    table: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name, result in results.items():
        operator, dtype, _ = name.rsplit("/", 2)
        table[operator][dtype].add(result.status)
    rows = []
    for operator in sorted(table):
        letters = [LETTERS[_worst(table[operator][d])] for d in dtypes]
        rows.append(f"| `{operator}` | {' | '.join(letters)} |")
    return rows


def _worst(statuses: set[str]) -> str:
    return next((status for status in WORST if status in statuses), "skipped")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
