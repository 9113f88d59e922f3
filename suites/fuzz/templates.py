"""The statements that programs are made of, as text with places for operands and numbers.

{f} is a floating-point tensor, {i} an integer one, {b} a bool one, {n} a number of any kind, {a}
any, {c} complex. {F}, {I}, {B}, {N}, {A} are tensors of that kind that broadcast with the first.
A `!` behind the letter asks for a tensor whose values are exactly eager's: what is compared or
rounded to integers must not depend on the last bit. {d} and {e} are two dimensions of the first
operand, {k} a small number, {r} a small number that is not negative, {s} a Python number, {t} a
floating-point dtype, {T} any dtype, {p} a positive float. The same letter twice is the same
operand, but for upper case; {g} and {h} are other floating-point tensors, {j} is another like {a}.
"""

import re

SMOOTH = """
torch.sin({f})| torch.cos({f})| torch.tanh({f})| torch.sigmoid({f})| torch.exp(-{f}.abs())
torch.log1p({f}.abs())| torch.sqrt({f}.abs())| torch.rsqrt({f}.abs() + 1)| torch.erf({f})
torch.reciprocal({f} * {f} + 1)| F.gelu({f})| F.gelu({f}, approximate="tanh")| F.silu({f})
F.softplus({f})| F.mish({f})| F.logsigmoid({f})| F.elu({f})| F.selu({f})| torch.expm1({f}.tanh())
torch.atan({f})| torch.asinh({f})| torch.square({f})| {f} ** 2| {f} ** 3| torch.exp2({f}.tanh())
torch.cosh({f}.tanh())| torch.log(torch.clamp({f}.abs(), min=0.1))| torch.sinc({f})
torch.lgamma({f}.abs() + 1)| torch.sin({i})| torch.exp(-{i}.abs())| {i} / 3| torch.sqrt({i}.abs())
{b} * 0.3| {i} * {p}| {f} + {s}| {f} * {s}| {s} - {f}| {f} / {p}| {s} / ({f}.abs() + 1)| {f} * {f}
{f} + {N}| {f} - {N}| {f} * {N}| {f} / ({N}.abs() + 1)| torch.add({f}, {F}, alpha={s})
{i} / ({N}.abs() + 1)| torch.sub({f}, {F}, alpha={p})| torch.rsub({f}, {F})
torch.atan2({f}, {F}.abs() + 1)| torch.hypot({f}, {F})| torch.addcmul({f}, {F}, {F}, value={s})
torch.addcdiv({f}, {F}, {F}.abs() + 1, value={s})| torch.lerp({f}, {F}, {p})
torch.logaddexp({f}, {F})| torch.pow({f}.abs() + 0.5, {F}.tanh())| torch.where({B!}, {f}, {F})
torch.where({B!}, {f}, {s})| torch.xlogy({f}, {F}.abs() + 1)| F.hardswish({f})
F.leaky_relu({f}, 0.1)| F.relu6({f})| torch.nan_to_num({f})| F.softmax({f}, dim={d})
F.log_softmax({f}, dim={d})| F.glu({f}, dim={d})| torch.softmax({f}, {d}, dtype=torch.float64)
F.normalize({f}, dim={d})| F.layer_norm({f}, {f}.shape[-1:])| F.rms_norm({f}, {f}.shape[-1:])
F.mse_loss({f}, {F})| F.smooth_l1_loss({f}, {F})| F.huber_loss({f}, {F}, reduction="none")
F.cosine_similarity({f}, {F}, dim={d})| torch.polar({f}.abs(), {f}).real
"""

REDUCTIONS = """
{f}.sum()| {f}.sum({d})| {f}.sum({d}, keepdim=True)| {f}.sum(({d}, {e}))| {f}.mean({d})
{f}.mean({d}, keepdim=True)| {f}.mean()| {f}.sum({d}, dtype=torch.float64)| {f}.var({d})
{f}.std({d}, unbiased=False)| {f}.var({d}, correction=0, keepdim=True)| torch.logsumexp({f}, {d})
{f}.norm()| {f}.norm(dim={d})| {f}.norm(1, {d}, keepdim=True)
torch.linalg.vector_norm({f}, 3, {d})| {f}.tanh().prod({d})| {f}.cumsum({d})
{f}.tanh().cumprod({d})| torch.logcumsumexp({f}, {d})| {i}.float().mean({d})
torch.var_mean({f}, {d})[1]| torch.std_mean({f}, {d}, keepdim=True)[0]
torch.trapezoid({f}, dim={d})| torch.diff({f}, dim={d})| {f}.nansum({d})
torch.count_nonzero({f!}, {d}) * 0.5| F.avg_pool1d({f}, 2)| F.group_norm({f}, 1)
F.max_pool1d({f}, 2)| F.adaptive_avg_pool1d({f}, 2)| torch.cov({f})
{f}.new_zeros(2, *{f}.shape[1:]).index_add(0, torch.arange({f}.shape[0]) % 2, {f})
{f}.new_zeros(3, *{f}.shape[1:]).index_add(0, {i}.reshape(-1)[:1].expand({f}.shape[0]) % 3, {f})
{f}.scatter_add({d}, torch.arange({f}.numel()).view({f}.shape) % max({f}.shape[{d}], 1), {f} * {p})
{f}.scatter_reduce({d}, torch.arange({f}.numel()).view({f}.shape) * 0, {f} + {p}, "mean")
torch.zeros_like({f}).scatter_reduce({d}, ({f} * 0).long(), {f}, "mean", include_self=False)
torch.zeros_like({f!}).scatter_reduce({d}, ({f!} * 0).long(), {f!}, "amax")
{f}.clone().index_put_((torch.arange({f}.shape[0]) * 0,), {f} * {p}, accumulate=True)
"""

PRODUCTS = """
{f} @ {g}| {f} @ {f}.mT| {f}.mT @ {f}| torch.matmul({f}, {g})| torch.bmm({f}, {g}.transpose(1, 2))
torch.mv({f}, {g})| torch.outer({f}, {g})| torch.dot({f}, {g})| torch.einsum("ij,kj->ik", {f}, {g})
torch.einsum("...i,...i->...", {f}, {g})| F.linear({f}, {g})| F.linear({f}, {g}, {h})
torch.addmm({f}, {g}, {h})| torch.baddbmm({f}, {g}, {h})| torch.kron({f}, {g})
F.scaled_dot_product_attention({f}, {g}, {h})| F.conv1d({f}, {g})| F.conv1d({f}, {g}, padding=1)
torch.addmv({f}, {g}, {h})| torch.cross({f}, {g}, dim={d})| torch.cdist({f}, {g})
torch.tensordot({f}, {g}, dims=1)| {i} @ {i}| {i} @ {i}.mT
F.linear({f}, (torch.arange({f}.shape[-1] * 5).view(5, -1) % 7 - 3).to({f}.dtype) * {p})
F.linear({f}, {g}.tanh() * {p})| {f} @ ({i} % 7).to({f}.dtype)| F.linear({f}, ({i} & 15) * {F})
F.linear({f}, torch.stack([{i} & 15, ({i} >> 4) & 15], -1).flatten(-2).to({f}.dtype) * {p})
F.linear({f}, torch.arange(16, dtype={f}.dtype)[{i} & 15] * {p})| {f} @ ({g} * {p}).sin()
"""

LOOPS = """
functools.reduce(lambda y, x: y * 0.5 + x, {f}.unbind({d}))
functools.reduce(lambda y, x: torch.where(x > 0, x, y * {p}), {f!}.unbind({d}))
torch.stack(list(itertools.accumulate({f}.unbind({d}), lambda y, x: torch.tanh(y - x * {p}))), {e})
torch.stack(list(itertools.accumulate({f}.unbind({d}), lambda y, x: y * 0.3 + x.sin()))[::-1])
torch.cat(list(itertools.accumulate({f}.split(1, {d}), lambda y, x: y * 0.5 - x)), {d})
{f}.roll(1, {d}) + {f}.roll(-1, {d}) - 2 * {f}
F.pad({f}, (1, 1))[..., 2:] - F.pad({f}, (1, 1))[..., :-2] + {f}.roll((1, -1), ({d}, {e}))
"""

EXACT = """
-{n}| torch.neg({n})| torch.abs({n})| {f}.relu()| torch.sign({n!})| torch.floor({f!})
torch.ceil({f!})| torch.round({f!})| torch.trunc({f!})| torch.maximum({n}, {N})
torch.minimum({n}, {N})| torch.clamp({n}, min=-1)| torch.clamp({n}, -1, 2)
torch.clamp({f}, max={s})| torch.fmax({f}, {F})| torch.fmin({f}, {F})| torch.copysign({f}, {F!})
torch.clone({a})| {n!} > {N!}| {n!} >= {s}| {n!} == {N!}| {n!} != 0| {n!} < {N!}| {n!} <= 1
torch.isnan({f})| torch.isfinite({f})| torch.signbit({f!})| {i} + {I}| {i} * {I}| {i} - {I}
{i} + {k}| {i} * {k}| {i} // 3| {i} % 3| {i} // ({I}.abs() + 1)| {i} % ({I}.abs() + 1)| {i} & {I}
{i} ^ {I}| {i} | {I}| ~{i}| {i} << 1| {i} >> 1| {b} & {B}| {b} | {B}| {b} ^ {B}| ~{b}
torch.logical_not({n!})| torch.logical_and({n!}, {N!})| torch.logical_xor({b}, {N!})| {b} + {I}
{i} + {b}| torch.remainder({i}, -3)| torch.fmod({i}, 4)| torch.bitwise_left_shift({i}, 2)
torch.div({i}, 3, rounding_mode="trunc")| torch.div({i}, -2, rounding_mode="floor")| {i} ** 2
{i}.sum()| {i}.sum({d})| {i}.amax({d})| {i}.amin({d}, keepdim=True)| {i}.prod({d})| {i}.cumsum({d})
{b}.sum({d})| {b}.any({d})| {b}.all()| {f}.amax({d})| {f}.amin({d}, keepdim=True)| {f}.max({d})[0]
{f}.min({d}, keepdim=True)[0]| {f!}.argmax({d})| {f!}.max({d})[1]| {f!}.argmin()| {f!}.sort({d})[0]
{f!}.cummax({d})[0]| {f!}.topk(1, {d})[0]| {i}.argmax({d})| {n!}.any({d})| {f}.max()| {i}.float()
{b}.float()| {f!}.long()| {f!}.int()| {f!}.to(torch.int16)| {i}.to(torch.int32)
{i}.to(torch.uint8)| {i}.to(torch.bool)| {a}.to({a}.dtype)| {f}.double()
torch.where({B!}, {a}, {A})| torch.where({B!}, {n}, 0)| {n}.masked_fill({B!}, {k})
torch.heaviside({f!}, {F})| {b}.long()| {i}.double()| torch.gcd({i}, {I})| torch.eq({n!}, {n!})
torch.isin({i}, {I})
"""

ROUNDING = """
{f}.to({t})| {f}.half()| {f}.bfloat16()| {f}.float()| {n}.to({t})| {f}.type_as({f})
"""

MOVES = """
torch.cat([{a}, {j}], {d})| torch.cat([{a}, {j}, {a}], {d})| torch.stack([{a}, {j}], {d})
torch.cat([{f}, {i}], {d})| F.pad({n}, (1, 2))| F.pad({n}, (0, 1, 2, 0), value={k})
F.pad({n}, (-1, 1))| torch.roll({a}, 1, {d})| torch.roll({a}, -2)| {a}.flip({d})
{a}.repeat(2, *[1] * ({a}.dim() - 1))| torch.tril({a})| torch.triu({a}, 1)
{a}.repeat_interleave(2, {d})| torch.rot90({a}, 1, ({d}, {e}))| {a}.contiguous()| {a}.clone()
{a}.reshape(-1)| {a}.index_select({d}, {i}.reshape(-1) % max({a}.shape[{d}], 1))
torch.gather({a}, {d}, ({a}.sum({d}, keepdim=True) * 0).long())| {a}[{i} % max({a}.shape[0], 1)]
{a}[..., {i} % max({a}.shape[-1], 1)]| torch.take({a}, {i} % max({a}.numel(), 1))
F.embedding({i} % max({f}.shape[0], 1), {f})| torch.zeros_like({a})| torch.ones_like({f})
torch.full_like({f}, {k})| {a}.new_zeros({a}.shape[0], 2)| torch.arange({a}.shape[{d}])
torch.eye({a}.shape[0])| torch.full(({a}.shape[0], 3), {s})| torch.zeros({a}.shape[0], dtype={T})
torch.linspace(0, 1, 5)| F.one_hot({i} % 4, 4)| torch.tensor({s})| torch.arange(3) + {i}
{f} * {f}.shape[{d}]| {i} + {a}.numel()| torch.diag_embed({a})
torch.scatter({a}, {d}, ({a}.sum({d}, keepdim=True) * 0).long(), 1)
torch.index_add({f}, 0, torch.zeros(2, dtype=torch.int64), {f}[:1].expand(2, *{f}.shape[1:]))
torch.meshgrid({a}, {a}, indexing="ij")[{r} % 2]
torch.select_scatter({f}, {f}.select({d}, 0) * 2, {d}, -1)
torch.slice_scatter({f}, {f}[1:] + 1, 0, 1)| {a}.to(torch.float64).to({a}.dtype)
torch.broadcast_to({a}, {A}.shape).clone()| torch.tile({a}, (2,))| torch.block_diag({f}, {f})
torch.vander({f})| {f}.unfold({d}, 2, 1).sum(-1)
torch.empty_strided({f}.shape, {f}.stride(), dtype={f}.dtype).copy_({f})
torch.empty_like({f}).fill_({k})| {f}.detach() * {F}| F.pixel_shuffle({f}, 2)
"""

VIEWS = """
{a}.t()| {a}.transpose({d}, {e})| {a}.mT| {a}.permute(*reversed(range({a}.dim())))| {a}.reshape(-1)
{a}.view(-1)| {a}.flatten()| {a}.flatten({d})| {a}.ravel()| {a}.unsqueeze({d})| {a}.unsqueeze(-1)
{a}.squeeze()| {a}.squeeze({d})| {a}[0]| {a}[-1]| {a}.select({d}, 0)| {a}.select({d}, -1)| {a}[1:]
{a}[:-1]| {a}[::2]| {a}[..., 1:]| {a}[..., ::3]| {a}[:, :2]| {a}[..., 0]| {a}[None]| {a}[:, None]
{a}.narrow({d}, 0, 1)| {a}.narrow({d}, {r}, {a}.shape[{d}] - {r})| {a}.split(2, {d})[-1]
{a}.chunk(2, {d})[{r} % 2]| {a}.unbind({d})[-1]| {a}.tensor_split(3, {d})[{r} % 3]
torch.diagonal({a})| {a}.diagonal(1, {d}, {e})| {a}.movedim({d}, {e})| {a}.swapaxes({d}, {e})
{a}.unfold({d}, 2, 1)| {a}.unfold({d}, 2, 3)| {a}.expand(3, *{a}.shape)| {a}.expand_as({A})
{a}.view_as({a})| {a}.detach()| {a}.as_strided(({a}.shape[0],), (1,))
{a}.as_strided((2, 2), (1, 2))| {a}.as_strided((2,), (1,), 1)| {a}.reshape({a}.shape[0], -1)
{a}.reshape(-1, {a}.shape[-1])| {a}.reshape({a}.shape[0] * {a}.shape[1], *{a}.shape[2:])
{a}.unflatten({d}, (-1, 2))| {a}.unflatten({d}, (1, -1))| {a}.view({a}.shape[0], 1, *{a}.shape[1:])
{a}.adjoint()| {a}.hsplit(2)[0]| {a}.view(*{a}.shape)| {a}[:]| {a}.T| {a}[...]
{a}.expand(*{a}.shape)| torch.atleast_2d({a})| {a}.view({a}.dtype)
{f}.view(*{f}.shape[:-1], -1, 2)| {a}[1:, 1:]| {a}[1::2, ::2]| {a}.broadcast_to(2, *{a}.shape)
{a}.view(-1, {a}.shape[-1])[1:]| {a}.contiguous()| {a}.to({a}.dtype)
"""

WRITES = """
{f}.add_({F})| {f}.sub_({N}, alpha=2)| {f}.mul_({F})| {f}.div_({F}.abs() + 1)| {f}.add_({s})
{f}.mul_({s})| {n}.add_(1)| {i}.add_({I})| {i}.mul_(2)| {n}.copy_({N})| {f}.copy_({F})| {a}.zero_()
{n}.fill_({k})| {f}.sin_()| {f}.tanh_()| {f}.sigmoid_()| {f}.relu_()| {f}.clamp_(-1, 1)| {n}.neg_()
{n}.abs_()| {f}.addcmul_({F}, {F})| {f}.lerp_({F}, 0.3)| {f}[0] = {k}| {n}[1:] = {k}
{f}[0] = {g}.sum()| {f}[..., 0] = {F}[..., 0]| {f}[1:] += 1| {f}[..., ::2] *= {s}
{f}[:, 1:] = {f}[:, :-1].clone()| {f}.masked_fill_({B!}, {k})| {f}[{B!}] = {s}
{f}[{i} % max({f}.shape[0], 1)] = {k}| {f}[({i} % max({f}.shape[0], 1),)] = {f}[0].clone()
{f} += {N}| {f} *= {F}| {i} += {I}| {b} |= {B}| {b}.logical_not_()
{f}.index_add_(0, torch.zeros(1, dtype=torch.int64), {f}[:1].clone())
{f}.index_fill_({d}, torch.zeros(1, dtype=torch.int64), {k})
{f}.index_copy_(0, torch.zeros(1, dtype=torch.int64), {f}[-1:].clone())
{f}.scatter_({d}, ({f}.detach().sum({d}, keepdim=True) * 0).long(), {k})
{f}.index_put_(({i}.reshape(-1) % max({f}.shape[0], 1),), {g}.sum().to({f}.dtype), accumulate=True)
{f}.t().add_(1)| {f}.transpose({d}, {e}).mul_(2)| {f}.select({d}, 0).copy_({f}.select({d}, -1) * 2)
{f}.view(-1)[::2] = 1| {f}.reshape(-1).add_(1)| {f}.diagonal().fill_({k})
{f}.unsqueeze(0).sub_({F})| {n}.fill_diagonal_({k})| {f}.cumsum_({d})| {f}.exp_().clamp_(max=3)
{f}.narrow({d}, 0, 1).zero_()| {f}.detach().add_(1)| {f}.mul_(2)| {f}.squeeze_()| {f}.unsqueeze_(0)
{f}.t_()| torch.add({f}, {F}, out={g})| torch.sin({f}, out={g})| torch.mul({f}, 2, out={g})
{f}.pow_(2)| {f}.hypot_({F})| {f}.negative_()| {f}.sum().add_(1)| {f}.tril_()
{f}.split(1)[0].add_(2)| {f}.unbind(0)[-1].mul_(3)| {f}.flatten().mul_({s})
{f}.masked_scatter_({B!}, {g})| {f}.renorm_(2, 0, 1.0)| {f}.swapaxes_({d}, {e})
"""

COMPLEX = """
torch.complex({f}, {F})| {c} * {c}| {c} + {c}| {c}.real| {c}.imag| {c}.abs()| {c}.conj()
torch.view_as_real({c})| {c} * {f}| {c}.sum({d})| {c}.mT| {c}[1:]| {c}.exp().abs().tanh()
{c} * {s}| torch.view_as_complex(torch.stack([{f}, {F}], -1).float())| {c}.mul_(2)| {c}.conj().imag
{c}.real.add_(1)| {c} @ {c}.mT| {c}.angle()
"""

DRAWS = """
F.dropout({f}, 0.4)| torch.rand_like({f})| torch.randn_like({f})| torch.rand({a}.shape[0], 3)
torch.bernoulli(torch.full_like({f}, 0.3))| torch.randint(0, 9, ({a}.shape[0],))
torch.randn(3) * {s}| {f}.uniform_(-1, 1)| {f}.normal_()| F.dropout1d({f}, 0.5)
F.alpha_dropout({f}, 0.2)| {f}.bernoulli_(0.5)| {f}.exponential_()
torch.nn.functional.rrelu({f}, training=True)
"""

# kind, its share among statements, and its templates
TABLES: tuple[tuple[str, int, str], ...] = (
    ("rounded", 24, SMOOTH),
    ("rounded", 10, REDUCTIONS),
    ("rounded", 6, PRODUCTS),
    ("rounded", 4, ROUNDING),
    ("rounded", 4, LOOPS),
    ("exact", 16, EXACT),
    ("moved", 12, MOVES),
    ("view", 18, VIEWS),
    ("write", 14, WRITES),
    ("moved", 2, COMPLEX),
    ("draw", 2, DRAWS),
)


def templates(text: str) -> list[str]:
    """Return the templates of a table: between bars with no space before and one behind them."""
    parts = [part.strip() for line in text.splitlines() for part in re.split(r"(?<! )\| ", line)]
    return [part for part in parts if part]
