"""Models of diffusers: a UNet compiled whole, a transformer compiled block by block."""

from collections.abc import Callable

import torch
from diffusers import FluxTransformer2DModel, UNet2DModel

REQUIRES = ("diffusers",)


def step(backend: str | None = "tofuse") -> Callable[[], torch.Tensor]:
    """Return one denoising step of a UNet."""
    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=32,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    ).eval()
    if backend is not None:
        unet.compile(backend=backend)
    noise = torch.randn(1, 3, 32, 32)
    return torch.no_grad()(lambda: unet(noise, torch.tensor(3)).sample)


@torch.no_grad()
def transformer(backend: str | None = "tofuse") -> torch.Tensor:
    """Return the result of a transformer whose blocks are alike: each kind is compiled once."""
    torch.manual_seed(0)
    net = FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=3,
        num_single_layers=3,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    ).eval()
    if backend is not None:
        net.compile_repeated_blocks(backend=backend, fullgraph=True)
    return net(
        hidden_states=torch.randn(1, 16, 4),
        encoder_hidden_states=torch.randn(1, 8, 32),
        pooled_projections=torch.randn(1, 32),
        timestep=torch.tensor([0.5]),
        img_ids=torch.randn(16, 3),
        txt_ids=torch.zeros(8, 3),
    ).sample


def main() -> None:
    for name, actual, expected in (
        ("UNet", step("tofuse")(), step(None)()),
        ("transformer", transformer("tofuse"), transformer(None)),
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
        print(f"{name}: largest difference from eager {(actual - expected).abs().max():.1e}")


if __name__ == "__main__":
    main()
