"""Networks of `monai.networks.nets`, narrow and on small inputs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.zoo.case import Case, floats

NETWORKS: list[Case] = []


def _add(
    name: str,
    *shapes: tuple[int, ...],
    share: float,
    inputs: Callable[[], tuple[Any, ...]] | None = None,
    build: Callable[..., nn.Module] | None = None,
    both_ends: bool = False,
    slow: bool = False,
    about: str = "3D",
    **settings: Any,
) -> None:
    """Adds a network: its class, a comma and what is special, then the class's own settings."""

    def make() -> nn.Module:
        # MONAI takes seconds to import.
        nets = importlib.import_module("monai.networks.nets")
        kind = getattr(nets, name.partition(",")[0])
        return build(kind, **settings) if build is not None else kind(**settings)

    case = Case(
        f"monai: {name}",
        about,
        make,
        inputs or floats(*shapes),
        share=share,
        both_ends=both_ends,
        slow=slow,
    )
    NETWORKS.append(case)


def _unet(name: str, shape: tuple[int, ...], **settings: Any) -> None:
    common = {"spatial_dims": len(shape) - 2, "in_channels": 1, "out_channels": 2}
    _add(name, shape, **{**common, **settings})


VOLUME = (1, 1, 16, 16, 16)
LEVELS = {"channels": (4, 8, 16), "strides": (2, 2)}

_unet("UNet", VOLUME, share=0.9, **LEVELS)
_unet("UNet, residual units", VOLUME, share=0.9, num_res_units=2, **LEVELS)
_unet("UNet, PReLU and batch norm", VOLUME, share=0.9, act="PRELU", norm="BATCH", **LEVELS)
_unet("AttentionUnet", VOLUME, share=0.9, **LEVELS)
_unet("BasicUNet", (1, 1, 32, 32, 32), share=0.9, features=(4, 4, 4, 8, 8, 4))
_unet(
    "BasicUNetPlusPlus",
    (1, 1, 32, 32),
    share=0.9,
    about="2D",
    features=(4, 4, 8, 8, 16, 4),
    deep_supervision=True,
)
_unet(
    "DynUNet",
    VOLUME,
    share=0.9,
    kernel_size=(3, 3, 3),
    strides=(1, 2, 2),
    upsample_kernel_size=(2, 2),
    filters=(4, 8, 16),
)
_unet(
    "DynUNet, deep supervision",
    VOLUME,
    share=0.9,
    about="3D, heads in train mode only",
    kernel_size=(3, 3, 3, 3),
    strides=(1, 2, 2, 2),
    upsample_kernel_size=(2, 2, 2),
    filters=(4, 8, 8, 16),
    deep_supervision=True,
    deep_supr_num=2,
    res_block=True,
)
_unet("SegResNet", VOLUME, share=0.9, blocks_down=(1, 2, 2), blocks_up=(1, 1))
_unet(
    "SegResNetVAE",
    VOLUME,
    share=0.3,
    about="3D, decoder of the autoencoder in train mode only",
    input_image_size=(16, 16, 16),
    vae_default_std=0.3,
    blocks_down=(1, 2, 2),
    blocks_up=(1, 1),
)
_unet("SegResNetDS", VOLUME, share=0.9, init_filters=8, blocks_down=(1, 1, 1), dsdepth=2)
_unet("SegResNetDS2", VOLUME, share=0.9, init_filters=8, blocks_down=(1, 1, 1), dsdepth=2)
_unet("VNet", (2, 1, 32, 32), share=0.9, about="2D, concat with the input", dropout_dim=2)
_unet("VNet, 3D", (1, 1, 32, 32, 32), share=0.9, slow=True)
_unet(
    "HighResNet",
    VOLUME,
    share=0.5,
    about="3D, shortcuts padded on channels",
    layer_params=(
        {"name": "conv_0", "n_features": 4, "kernel_size": 3},
        {"name": "res_1", "n_features": 4, "kernels": (3, 3), "repeat": 2},
        {"name": "res_2", "n_features": 8, "kernels": (3, 3), "repeat": 2},
        {"name": "conv_1", "n_features": 8, "kernel_size": 1},
        {"name": "conv_2", "kernel_size": 1},
    ),
)
_unet("DenseNet", (2, *VOLUME[1:]), share=0.9, init_features=8, growth_rate=4, block_config=(2, 2))
for shortcut, least in (("A", 0.3), ("B", 0.9)):
    _add(
        f"ResNet, shortcut {shortcut}",
        (2, 1, 32, 32, 32),
        share=least,
        block="basic",
        layers=[1, 1, 1, 1],
        block_inplanes=[4, 4, 8, 8],
        n_input_channels=1,
        num_classes=3,
        shortcut_type=shortcut,
    )
_SENET = {"spatial_dims": 2, "in_channels": 1, "num_classes": 3, "layers": (1, 1, 1, 1)}
_add("SEResNet50", (2, 1, 32, 32), share=0.9, about="2D", **_SENET)
_add("SEResNext50", (2, 1, 32, 32), share=0.9, about="2D", slow=True, **_SENET)
_add("SENet154", (2, 1, 32, 32), share=0.9, about="2D", slow=True, **_SENET)
_BLOCKS = [
    "r1_k3_s11_e1_i32_o8_se0.25",
    "r2_k3_s22_e3_i8_o16_se0.25",
    "r1_k5_s11_e3_i16_o16_se0.25",
]
for dims, shape in ((2, (2, 1, 32, 32)), (3, (2, *VOLUME[1:]))):
    _add(
        f"EfficientNet, {dims}D",
        shape,
        share=0.9,
        about=f"{dims}D",
        blocks_args_str=_BLOCKS,
        spatial_dims=dims,
        in_channels=1,
        num_classes=3,
        image_size=shape[-1],
    )
_add(
    "EfficientNetBN",
    (2, 1, 64, 64),
    share=0.9,
    slow=True,
    about="2D",
    model_name="efficientnet-b0",
    pretrained=False,
    in_channels=1,
    num_classes=3,
)
_unet("RegUNet", VOLUME, share=0.9, num_channel_initial=4, depth=2, out_channels=3)
_add(
    "LocalNet",
    VOLUME,
    share=0.8,
    spatial_dims=3,
    in_channels=1,
    num_channel_initial=4,
    extract_levels=(0, 1),
    out_kernel_initializer="kaiming_uniform",
    out_activation=None,
    out_channels=3,
)


def _with_grid_in_double(kind: Callable[..., nn.Module], **settings: Any) -> nn.Module:
    net = kind(**settings)  # its grid is a plain tensor that `.double()` does not reach
    net.output_block.grid = net.output_block.grid.double()
    return net


_add(
    "GlobalNet",
    VOLUME,
    share=0.5,
    build=_with_grid_in_double,
    image_size=(16, 16, 16),
    spatial_dims=3,
    in_channels=1,
    num_channel_initial=4,
    depth=2,
)
_unet(
    "AHNet",
    (1, 1, 64, 64),
    share=0.9,
    about="2D",
    slow=True,
    layers=(1, 1, 1, 1),
    psp_block_num=2,
)
_unet("AHNet, 3D", (1, 1, 64, 64, 32), share=0.9, layers=(1, 1, 1, 1), psp_block_num=1, slow=True)
_unet(
    "FlexibleUNet",
    (2, 1, 32, 32),
    share=0.9,
    about="2D",
    backbone="resnet10",
    decoder_channels=(32, 16, 8, 8, 8),
)
for title, responses in (("MedNeXt", False), ("MedNeXt, global response norm", True)):
    _unet(
        title,
        VOLUME,
        share=0.9,
        init_filters=4,
        kernel_size=3,
        blocks_down=(1, 1),
        blocks_up=(1, 1),
        blocks_bottleneck=1,
        use_residual_connection=True,
        deep_supervision=True,
        global_resp_norm=responses,
    )
_add(
    "VoxelMorphUNet",
    (1, 2, 16, 16, 16),
    share=0.9,
    spatial_dims=3,
    in_channels=2,
    unet_out_channels=8,
    channels=(4, 8, 8, 8, 8, 8),
    final_conv_channels=(8,),
)
_add("VoxelMorph", (1, 1, 32, 32, 32), (1, 1, 32, 32, 32), share=0.9, slow=True)
_unet("AutoEncoder", VOLUME, share=0.9, channels=(4, 8, 8), strides=(2, 2, 2))
_add(
    "VarAutoEncoder",
    (1, 1, 8, 8, 8),
    share=0.15,
    spatial_dims=3,
    in_shape=(1, 8, 8, 8),
    out_channels=1,
    latent_size=4,
    channels=(4, 8),
    strides=(2, 2),
    about="3D, view by fixed numbers",
)
_add(
    "Generator",
    (2, 6),
    share=0.3,
    latent_shape=(6,),
    start_shape=(4, 4, 4),
    channels=(8, 4, 1),
    strides=(2, 2, 1),
    about="2D, view by fixed numbers",
)
_CLASSIFY = {"in_shape": (1, 16, 16), "channels": (4, 8), "strides": (2, 2)}
_add("Discriminator", (2, 1, 16, 16), share=0.9, about="2D", **_CLASSIFY)
_add("Critic", (2, 1, 16, 16), share=0.5, about="2D", **_CLASSIFY)
_add("Classifier", (2, 1, 16, 16), share=0.9, about="2D", classes=3, **_CLASSIFY)
_add("Regressor", (2, 1, 16, 16), share=0.9, about="2D", out_shape=(2,), **_CLASSIFY)
_add(
    "PatchDiscriminator",
    (2, 1, 32, 32, 32),
    share=0.0,
    about="3D, puts out all its features",
    spatial_dims=3,
    channels=4,
    in_channels=1,
)
_add(
    "FullyConnectedNet",
    (2, 10),
    share=0.8,
    about="features",
    in_channels=10,
    out_channels=3,
    hidden_channels=(8, 12),
)
_add(
    "Quicknat",
    (1, 1, 32, 32),
    share=0.5,
    about="2D, squeeze and excite",
    num_classes=3,
    num_channels=1,
    num_filters=8,
    se_block="CSE",
)
_add(
    "AutoencoderKL",
    (1, 1, 16, 16),
    share=0.5,
    about="2D, attention, draws noise",
    spatial_dims=2,
    channels=(8, 16),
    num_res_blocks=1,
    norm_num_groups=4,
    attention_levels=(False, True),
    both_ends=True,
)
_add(
    "DiffusionModelUNet",
    share=0.9,
    inputs=lambda: (*floats((1, 1, 16, 16))(), torch.tensor([7])),
    about="2D, attention, time steps",
    spatial_dims=2,
    in_channels=1,
    out_channels=1,
    channels=(8, 16),
    num_res_blocks=1,
    norm_num_groups=4,
    attention_levels=(False, True),
    num_head_channels=8,
    both_ends=True,
)


def _dints(kind: Callable[..., nn.Module], **settings: Any) -> nn.Module:
    nets = importlib.import_module("monai.networks.nets")
    space = nets.TopologyInstance(channel_mul=0.125, num_blocks=2, num_depths=2, device="cpu")
    return kind(dints_space=space, **settings)


_add("DiNTS", VOLUME, share=0.5, build=_dints, in_channels=1, num_classes=2)
_TRANSFORMER = {"in_channels": 1, "hidden_size": 24, "mlp_dim": 16, "num_heads": 2}
_add(
    "UNETR",
    (1, 1, 32, 32, 32),
    share=0.4,
    slow=True,
    out_channels=2,
    img_size=32,
    feature_size=4,
    both_ends=True,
    **_TRANSFORMER,
)
for dims in (2, 3):
    _add(
        f"SwinUNETR, {dims}D",
        (1, 1, *(64,) * dims),
        share=0.4,
        about=f"{dims}D",
        slow=True,
        spatial_dims=dims,
        in_channels=1,
        out_channels=2,
        depths=(1, 1, 1, 1),
        num_heads=(1, 2, 2, 4),
        feature_size=12,
        both_ends=True,
    )
_PATCHES = {"img_size": (16, 16, 16), "patch_size": (8, 8, 8), "num_layers": 2}
_add(
    "ViT",
    VOLUME,
    share=0.1,
    classification=True,
    num_classes=3,
    both_ends=True,
    **_PATCHES,
    **_TRANSFORMER,
)
_add(
    "ViTAutoEnc",
    VOLUME,
    share=0.1,
    both_ends=True,
    **{**_PATCHES, "patch_size": (4, 4, 4)},
    **_TRANSFORMER,
)
