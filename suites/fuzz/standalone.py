"""Print a failing program as a Python program of its own, which needs only torch and tofuse."""

from suites.fuzz.program import IMPORTS, Program, arguments_source, function_source
from suites.fuzz.run import Variant

CALL = """
def call(function, sizes):
    arguments, leaves = make_arguments(*sizes)
    torch.manual_seed({seed})
    results = function(*arguments)
    wanted = [x for x in results if x.requires_grad]
    gradients = []
    if leaves and wanted:
        tangents = [torch.linspace(-1, 2, x.numel()).reshape(x.shape).to(x.dtype) for x in wanted]
        gradients = torch.autograd.grad(wanted, leaves, tangents, allow_unused=True)
    return arguments, results, gradients


def describe(tensors, arguments):
    owners = [*arguments, *tensors]
    for x in tensors:
        if x is None:
            yield None
            continue
        storages = [y.untyped_storage().data_ptr() for y in owners if y is not None]
        place = storages.index(x.untyped_storage().data_ptr()) if x.numel() else None
        strides = tuple(s if n > 1 else 0 for s, n in zip(x.stride(), x.shape) if x.numel())
        yield x.dtype, tuple(x.shape), strides, x.requires_grad, place, [x is y for y in arguments]


compiled = tofuse.compile(program{options})
different = False
for sizes in {sizes}:
    eager, ours = call(program, sizes), call(compiled, sizes)
    for title, e, x in zip(("arguments", "results", "gradients"), eager, ours):
        for a, b, what, expected in zip(e, x, describe(x, ours[0]), describe(e, eager[0])):
            same = what == expected or (title == "gradients" and (a is None) == (b is None))
            if a is not None and b is not None and a.shape == b.shape:
                same &= torch.allclose(a.double(), b.double(), {close}, equal_nan=True)
            if not same:
                different = True
                print(f"sizes {{sizes}}, {{title}}: {{what}}, in eager {{expected}}")
                print(f"{{b}}\\nin eager\\n{{a}}")
raise SystemExit(different)
"""


def standalone(program: Program, variant: Variant, fault: str) -> str:
    """Return the text of a program that prints what differs, and then exits with 1."""
    options = [f", {name}={value!r}" for name, value in (*variant.options, *variant.exact)]
    low = any(word in function_source(program) for word in ("bfloat16", "float16", "half()"))
    low |= any("float16" in x.text for x in program.inputs)
    tail = CALL.format(
        seed=program.seed % 1000 + 1,
        options="".join(options),
        sizes=[list(sizes) for sizes in program.sizes],
        close="rtol=0.05, atol=0.05" if low else "rtol=1e-4, atol=1e-5",
    )
    head = f"# {fault}\n# found by `python -m suites.fuzz --seed {program.seed}`; {variant}\n"
    body = f"{function_source(program)}\n\n{arguments_source(program)}\n"
    return f"{head}{IMPORTS}\n\n{body}{tail}"
