"""Your own network, your own batches, your own loss: no code for pruning in any of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import ranp


class TwoPaths(nn.Module):
    """A network with an addition and a concatenation, as people write them."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv3d(1, 16, 3, padding=1)
        self.left = nn.Sequential(nn.Conv3d(16, 16, 3, padding=1), nn.BatchNorm3d(16), nn.ReLU())
        self.right = nn.Sequential(nn.Conv3d(16, 24, 3, padding=2, dilation=2), nn.ReLU())
        self.head = nn.Conv3d(16 + 24, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        return self.head(torch.cat([x + self.left(x), self.right(x)], dim=1))


class Balls(Dataset):
    """Volumes with a noisy ball in each; the label says inside, rim or outside."""

    def __init__(self, samples: int, size: int) -> None:
        self.samples, self.size = samples, size

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        axes = torch.meshgrid(*[torch.linspace(-1, 1, self.size)] * 3, indexing="ij")
        *centre, radius = (0.5 * torch.rand(4, generator=generator)).tolist()
        distance = sum((a - c) ** 2 for a, c in zip(axes, centre, strict=True)).sqrt()
        label = (distance < radius + 0.4).long() + (distance < radius + 0.2).long()
        noise = torch.randn(label.shape, generator=generator)
        return {"image": (label + 0.3 * noise)[None], "label": label}


def main() -> None:
    loader = DataLoader(Balls(samples=4, size=12), batch_size=2)
    model = TwoPaths()
    # Batches are pairs (x, y) or mappings with usual names such as "image" and "label".
    result = ranp.prune(model, loader, nn.functional.cross_entropy, sparsity=0.5)
    print(result)

    slim = result.model
    optimizer = torch.optim.Adam(slim.parameters(), lr=1e-2)
    for epoch in range(3):
        for batch in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(slim(batch["image"]), batch["label"])
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
