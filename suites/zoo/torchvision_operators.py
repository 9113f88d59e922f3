"""Declares operators without which `import torchvision` fails."""

import contextlib

import torch


def define_missing_operators() -> None:
    """Declare the operators that `import torchvision` expects, if its own do not load.

    The registry's torchvision is built for CUDA: with another PyTorch its operators are missing.
    The models use none of them.
    """
    schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    try:
        import torchvision  # noqa: F401
    except ImportError:
        return  # only the models of timm need it
    except RuntimeError:
        for name in ("nms", "qnms"):
            with contextlib.suppress(RuntimeError):  # there already
                torch.library.define(f"torchvision::{name}", schema)
