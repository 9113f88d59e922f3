"""Programs of one operator, as users call them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from suites.never_slower.program import Program, function, module

OPERATORS: dict[str, Program] = {
    # products
    "square product": function(torch.matmul, (512, 512), (512, 512)),
    "product of few rows": function(torch.matmul, (4, 2048), (2048, 2048)),
    "product with a transposed matrix": function(lambda a, b: a @ b.T, (384, 640), (512, 640)),
    "tall product": function(torch.matmul, (8192, 32), (32, 64)),
    "product of a matrix and a vector": function(torch.mv, (2048, 1024), (1024,)),
    "batched product": function(torch.bmm, (16, 128, 96), (16, 96, 128)),
    "outer product": function(torch.outer, (1024,), (768,)),
    "linear": module(lambda: nn.Linear(512, 1024), (256, 512)),
    "linear of one row": module(lambda: nn.Linear(1024, 1024), (1, 1024)),
    "linear in bfloat16": module(lambda: nn.Linear(512, 512).bfloat16(), (64, 512)),
    "einsum": function(
        lambda x, y: torch.einsum("bhid,bhjd->bhij", x, y), (4, 8, 96, 64), (4, 8, 96, 64)
    ),
    # convolutions
    "convolution": module(lambda: nn.Conv2d(32, 64, 3, padding=1), (4, 32, 48, 48)),
    "strided convolution": module(lambda: nn.Conv2d(3, 64, 7, 2, 3), (2, 3, 128, 128)),
    "pointwise convolution": module(lambda: nn.Conv2d(128, 128, 1), (4, 128, 28, 28)),
    "depthwise convolution": module(
        lambda: nn.Conv2d(64, 64, 3, padding=1, groups=64), (4, 64, 56, 56)
    ),
    "grouped convolution": module(
        lambda: nn.Conv2d(64, 64, 3, padding=1, groups=4), (4, 64, 32, 32)
    ),
    "dilated convolution": module(lambda: nn.Conv1d(64, 64, 3, dilation=4), (8, 64, 512)),
    "transposed convolution": module(lambda: nn.ConvTranspose2d(64, 32, 4, 2, 1), (4, 64, 24, 24)),
    "convolution of volumes": module(lambda: nn.Conv3d(8, 16, 3, padding=1), (2, 8, 16, 32, 32)),
    # elementwise
    "relu": function(F.relu, (4096, 1024)),
    "gelu": function(F.gelu, (2048, 1024)),
    "small addition": function(torch.add, (64, 64), (64, 64)),
    "tiny sigmoid": function(torch.sigmoid, (16,)),
    "swish": function(F.silu, (1024, 1023)),
    "clamp of odd rows": function(lambda x: x.clamp(-1, 1), (1023, 511)),
    "where": function(lambda x, y: torch.where(x > 0, x, y), (1024, 768), (1024, 768)),
    "addition of a transposed matrix": function(lambda x: x + x.T, (1024, 1024)),
    # reductions and norms
    "sum of rows": function(lambda x: x.sum(-1), (2048, 1024)),
    "sum of columns": function(lambda x: x.sum(0), (2048, 1024)),
    "sum of all": function(torch.sum, (1024, 1024)),
    "maximum of rows": function(lambda x: x.amax(-1), (1024, 2048)),
    "variance": function(lambda x: x.var(-1), (1024, 512)),
    "cumulative sum": function(lambda x: x.cumsum(-1), (512, 1024)),
    "softmax": function(lambda x: x.softmax(-1), (1024, 1024)),
    "log-softmax of columns": function(lambda x: x.log_softmax(0), (512, 512)),
    "layer norm": module(lambda: nn.LayerNorm(768), (16, 128, 768)),
    "batch norm": module(lambda: nn.BatchNorm2d(64), (8, 64, 32, 32)),
    "group norm": module(lambda: nn.GroupNorm(8, 64), (4, 64, 32, 32)),
    # pooling, gathers, losses
    "max-pooling": module(lambda: nn.MaxPool2d(2), (8, 64, 56, 56)),
    "average pooling": module(lambda: nn.AvgPool2d(3, 2, 1), (8, 64, 56, 56)),
    "embedding": module(lambda: _Embedding(5000, 256), (16, 128)),
    "bilinear resizing": function(
        lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), (2, 32, 32, 32)
    ),
    "sorting": function(lambda x: x.sort(-1).values, (256, 1024)),
    "the largest ten": function(lambda x: x.topk(10).values, (512, 1000)),
    "cross-entropy": module(lambda: _CrossEntropy(1000), (512, 1000)),
    "smooth L1 loss": function(F.smooth_l1_loss, (1024, 512), (1024, 512)),
    "cosine similarity": function(F.cosine_similarity, (2048, 256), (2048, 256)),
}


class _Embedding(nn.Module):
    """Rows of a table, of places that the input's size gives."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, columns)
        self.rows = rows

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.numel()).reshape(x.shape) * 37 % self.rows
        found: Tensor = self.table(places)
        return found * x.unsqueeze(-1)


class _CrossEntropy(nn.Module):
    """The loss of rows against fixed classes."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, x: Tensor) -> Tensor:
        return F.cross_entropy(x, torch.arange(len(x)) * 31 % self.classes)
