"""MONAI's SegResNet, pruned with a Dice loss: residual blocks and group norm."""

from __future__ import annotations

import copy

import torch
from monai.losses import DiceCELoss
from monai.networks.nets import SegResNet

import ranp


def main() -> None:
    model = SegResNet(spatial_dims=3, in_channels=1, out_channels=3, init_filters=16)
    loss = DiceCELoss(to_onehot_y=True, softmax=True)
    loader = [
        (torch.rand(1, 1, 16, 16, 16), torch.randint(0, 3, (1, 1, 16, 16, 16))) for _ in range(2)
    ]
    # Group norm ties a channel of every group to one of each other group: coupling="mean" lets
    # their mean score decide, and a floor of 8 leaves every group of the 8 a channel.
    # Scored at 16^3; what it costs is counted at 96^3, the size to train at.
    result = ranp.prune(
        model,
        loader,
        loss,
        sparsity=0.5,
        coupling="mean",
        floor=8,
        example_input=(1, 1, 96, 96, 96),
    )
    print(result)

    for name, network in (("full", model), ("slim", result.model)):
        on_gpu = copy.deepcopy(network).to("meta")  # stands for the GPU: shapes without memory
        memory = ranp.predict_training_memory(on_gpu, (2, 1, 96, 96, 96), optimizer="adam")
        print(f"{name}: a training step at batch 2 takes {memory.peak / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
