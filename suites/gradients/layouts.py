"""Functions that move elements: windows, norms of images, views, gathers."""

import torch
import torch.nn.functional as F

from suites.gradients.shapes import (
    BOUNDS,
    Functions,
    batch,
    image,
    places,
    rows,
    rows_of,
    short_vector,
    short_vectors,
    side,
    signal,
    square,
    squares,
    tall,
    two,
    two_tall,
    vector,
    volume,
)

WINDOWS: Functions = {
    **{
        f"pad 1d {mode}": (lambda x, m=mode: F.pad(x, (2, 3), mode=m), signal)
        for mode in ["constant", "reflect", "replicate", "circular"]
    },
    **{
        f"pad 2d {mode}": (lambda x, m=mode: F.pad(x, (1, 2, 2, 1), mode=m), image)
        for mode in ["constant", "reflect", "replicate", "circular"]
    },
    "pad 3d replicate": (lambda x: F.pad(x, (1, 1, 1, 1, 1, 1), mode="replicate"), volume),
    "pad 3d reflect": (lambda x: F.pad(x, (1, 1, 1, 1, 1, 1), mode="reflect"), volume),
    **{
        f"interpolate x2 {mode}": (
            lambda x, m=mode: F.interpolate(x, scale_factor=2.0, mode=m),
            image,
        )
        for mode in ["nearest", "bilinear", "bicubic", "area", "nearest-exact"]
    },
    **{
        f"interpolate x0.7 {mode}": (
            lambda x, m=mode: F.interpolate(x, scale_factor=0.7, mode=m),
            image,
        )
        for mode in ["nearest", "bilinear", "bicubic", "area", "nearest-exact"]
    },
    "interpolate linear": (lambda x: F.interpolate(x, scale_factor=1.5, mode="linear"), signal),
    "interpolate trilinear": (
        lambda x: F.interpolate(x, scale_factor=2.0, mode="trilinear"),
        volume,
    ),
    "interpolate antialias": (
        lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True),
        image,
    ),
    **{
        f"grid_sample {mode}": (
            lambda x, g, m=mode: F.grid_sample(x, g.tanh(), mode=m, align_corners=False),
            lambda n: (*image(n), (2, *image(n)[0][2:], 2)),
        )
        for mode in ["bilinear", "nearest", "bicubic"]
    },
    "affine_grid": (
        lambda t: F.affine_grid(t, [t.shape[0], 1, 4, 4], align_corners=False),
        lambda n: ((max(1, n // 16), 2, 3),),
    ),
    "unfold im2col": (lambda x: F.unfold(x, 3, padding=1), image),
    "fold": (
        lambda x: F.fold(x, (x.shape[-1] + 1, 2), 2),
        lambda n: ((2, 4 * 2, max(1, n // 16)),),
    ),
    "Tensor.unfold": (lambda x: x.unfold(-1, 4, 2), rows),
    "Tensor.unfold dense": (lambda x: x.unfold(-1, 8, 1), rows),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, 2, 1), signal),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), image),
    "avg_pool2d 3/2": (lambda x: F.avg_pool2d(x, 3, 2, 1), image),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), volume),
    "max_pool1d": (lambda x: F.max_pool1d(x, 3, 2, 1), signal),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), image),
    "max_pool2d 3/1": (lambda x: F.max_pool2d(x, 3, 1, 1), image),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), volume),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 3), image),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 3), image),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 5), signal),
    "lp_pool2d": (lambda x: F.lp_pool2d(x.abs() + 0.1, 2.0, 2), image),
    "max_unpool": (
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), [2, 2]),
        image,
    ),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), image),
    "pixel_unshuffle": (
        lambda x: F.pixel_unshuffle(x[..., : x.shape[-2] // 2 * 2, : x.shape[-1] // 2 * 2], 2),
        image,
    ),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), image),
}

NORMS: Functions = {
    "layer_norm": (lambda x: F.layer_norm(x, x.shape[-1:]), rows),
    "layer_norm 64": (lambda x: F.layer_norm(x, x.shape[-1:]), tall),
    "rms_norm": (lambda x: F.rms_norm(x, x.shape[-1:]), rows),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), image),
    "batch_norm eval": (lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4)), image),
    "instance_norm": (lambda x: F.instance_norm(x), image),
    "group_norm": (lambda x: F.group_norm(x, 2), image),
}

VIEWS: Functions = {
    "roll": (lambda x: x.roll(3, -1), rows),
    "roll all": (lambda x: x.roll(3), rows),
    "roll 2d": (lambda x: x.roll((2, 3), (0, 1)), square),
    "flip": (lambda x: x.flip(-1), rows),
    "fliplr": (lambda x: x.flip(0, 1), square),
    "rot90": (lambda x: x.rot90(), square),
    "rot180": (lambda x: x.rot90(2), square),
    "repeat": (lambda x: x.repeat(2, 3), rows),
    "tile": (lambda x: x.tile(3), rows),
    "expand": (lambda x: x.unsqueeze(0).expand(5, -1, -1) * 1.0, rows),
    "repeat_interleave": (lambda x: x.repeat_interleave(3, -1), rows),
    "repeat_interleave rows": (lambda x: x.repeat_interleave(3, 0), tall),
    "transpose": (lambda x: x.T.contiguous(), square),
    "swapdims 3": (lambda x: x.permute(2, 0, 1).contiguous(), batch),
    "as_strided": (lambda x: x.as_strided((x.numel() // 2,), (2,)), vector),
    "as_strided overlap": (lambda x: x.as_strided((x.numel() - 3, 4), (1, 1)), vector),
    "diagonal": (lambda x: x.diagonal(), square),
    "diag vec": (lambda x: x.diag(), short_vector),
    "diag_embed": (lambda x: x.diag_embed(), lambda n: ((4, side(n // 4)),)),
    "diagonal_scatter": (lambda x, y: x.diagonal_scatter(y.diagonal()), squares),
    "trace": (lambda x: x.trace(), square),
    "tril": (lambda x: x.tril(), square),
    "triu": (lambda x: x.triu(1), square),
    "block_diag": (lambda x, y: torch.block_diag(x, y), squares),
    "cartesian_prod": (lambda x, y: torch.cartesian_prod(x, y), short_vectors),
    "combinations": (lambda x: torch.combinations(x), short_vector),
    "meshgrid": (lambda x, y: torch.stack(torch.meshgrid(x, y, indexing="ij")), short_vectors),
    "stack": (lambda x, y: torch.stack([x, y], -1), two),
    "stack 8": (lambda x, y: torch.stack([x, y] * 4, 0), two),
    "cat": (lambda x, y: torch.cat([x, y], -1), two),
    "cat dim0": (lambda x, y: torch.cat([x, y], 0), two),
    "cat many": (
        lambda x: torch.cat(x.split(8, -1)[::-1], -1),
        lambda n: ((max(1, n // 256), 256),),
    ),
    "split": (lambda x: sum((a * (k + 1) for k, a in enumerate(x.chunk(4, 0)))), rows),
    "chunk last": (
        lambda x: next(a * b for a, b in [x[..., : x.shape[-1] // 2 * 2].chunk(2, -1)]),
        rows,
    ),
    "split 16": (lambda x: sum((a.exp() * (k + 1) for k, a in enumerate(x.split(16, -1)))), tall),
    "unbind": (lambda x: sum((a * (k + 1) for k, a in enumerate(x.unbind(0)))), rows),
    "unbind last": (lambda x: sum((a.sin() * (k + 1) for k, a in enumerate(x.unbind(-1)))), batch),
    "unbind 64": (lambda x: sum((a.sin() * (k + 1) for k, a in enumerate(x.unbind(-1)))), tall),
    "select": (lambda x: x[..., 1] * x[..., 0], rows),
    "slice step": (lambda x: x[..., ::3] * 2, rows),
    "slice write": (lambda x, y: torch.slice_scatter(x, y[..., ::2], -1, 0, x.shape[-1], 2), two),
    "select_scatter": (lambda x, y: x.select_scatter(y[0], 0, 1), two),
    "narrow": (lambda x: x.narrow(-1, 1, 3), rows),
    "movedim": (lambda x: x.movedim(0, -1) * 2, batch),
}

GATHERS: Functions = {
    "gather": (lambda x: x.gather(-1, places(x)), rows),
    "gather dim0": (lambda x: x.gather(0, places(x, 0)), tall),
    "scatter": (lambda x, y: x.scatter(-1, places(x), y), two),
    "scatter_add": (lambda x, y: x.scatter_add(-1, places(x), y), two),
    **{
        f"scatter_reduce {r}": (lambda x, y, r=r: x.scatter_reduce(-1, places(x), y, r), two)
        for r in ["sum", "prod", "mean", "amax", "amin"]
    },
    "index_select": (lambda x: x.index_select(0, rows_of(x)), tall),
    "index_select last": (lambda x: x.index_select(-1, rows_of(x, 1)), rows),
    "index_add": (lambda x, y: x.index_add(-1, rows_of(x, 1), y), two),
    "index_copy": (lambda x, y: x.index_copy(0, torch.arange(x.shape[0]).flip(0), y), two_tall),
    "index_fill": (lambda x: x.index_fill(0, torch.tensor([1]), 0.5), tall),
    "index_put": (lambda x, y: x.index_put((rows_of(x),), y), two_tall),
    "index_put acc": (lambda x, y: x.index_put((rows_of(x),), y, accumulate=True), two_tall),
    "x[i]": (lambda x: x[rows_of(x)], tall),
    "x[:, i]": (lambda x: x[:, rows_of(x, 1)], rows),
    "x[i, j]": (lambda x: x[rows_of(x), rows_of(x)], square),
    "take": (lambda x: x.take(places(x)), rows),
    "take_along_dim": (lambda x: x.take_along_dim(x.detach().argsort(-1), -1), rows),
    "masked_fill": (lambda x: x.masked_fill(x.detach() > 0.5, 0.1), rows),
    "masked_select": (lambda x: x.masked_select(x.detach() > 0), rows),
    "masked_scatter": (lambda x, y: x.masked_scatter(x.detach() > 0, y), two),
    "where": (lambda x, y: torch.where(x > 0, x, y), two),
    "embedding": (lambda w: F.embedding(rows_of(w), w), tall),
    "embedding_bag": (
        lambda w: F.embedding_bag(rows_of(w)[: w.shape[0] // 2 * 2].reshape(-1, 2), w),
        tall,
    ),
    "embedding_bag max": (
        lambda w: F.embedding_bag(rows_of(w)[: w.shape[0] // 2 * 2].reshape(-1, 2), w, mode="max"),
        tall,
    ),
    "bucketize": (lambda x: x * torch.bucketize(x.detach(), BOUNDS), rows),
}
