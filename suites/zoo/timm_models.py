"""Thirty architectures of `timm`, small, with random weights."""

import torch

from suites.zoo.example import Example, seed_parameters, without_randomness

SIDE, CLASSES = 64, 8
Options = dict[str, int | float | tuple[int, ...]]


def build(name: str) -> Example:
    """Return a model with four images: a batch norm of two values is noise, it returns 1 and -1."""
    import timm  # only this function needs it: the types are checked without it

    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=CLASSES, **MODELS[name])
    seed_parameters(without_randomness(model))
    return Example(model.train(), {"x": torch.randn(4, 3, SIDE, SIDE)})


IMAGE: Options = {"img_size": SIDE}
SHALLOW: Options = {"img_size": SIDE, "depth": 2}
STAGES: Options = {"depths": (1, 1, 1, 1)}
MODELS: dict[str, Options] = {
    "cait_xxs24_224": SHALLOW,
    "convit_tiny": SHALLOW,
    "convnext_atto": STAGES,
    "crossvit_tiny_240": {},
    "deit_tiny_patch16_224": SHALLOW,
    "densenet121": {"block_config": (2, 2, 2, 2)},
    "edgenext_xx_small": STAGES,
    "efficientnet_lite0": {},
    "efficientvit_b0": {},
    "eva02_tiny_patch14_224": {"img_size": 64, "depth": 2, "patch_size": 16},
    "fastvit_t8": {},
    "ghostnet_050": {"drop_rate": 0.0},
    "gmlp_ti16_224": IMAGE,
    "levit_128s": IMAGE,
    "mambaout_femto": STAGES,
    "mixer_s32_224": IMAGE,
    "mobilenetv3_small_050": {},
    "mobilevit_xxs": {},
    "pit_ti_224": IMAGE,
    "poolformer_s12": {},
    "pvt_v2_b0": {},
    "regnety_002": {},
    "resmlp_12_224": IMAGE,
    "resnet10t": {},
    "resnetv2_18d": {},
    "starnet_s050": {},
    "swin_tiny_patch4_window7_224": {
        "img_size": SIDE,
        "depths": (1, 1, 1, 1),
        "embed_dim": 24,
        "drop_path_rate": 0.0,
    },
    "test_nfnet": {"drop_path_rate": 0.0},
    "visformer_tiny": IMAGE,
    "xcit_nano_12_p16_224": SHALLOW,
}
