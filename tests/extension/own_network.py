"""A network of one's own, by name."""

from torch import Tensor, nn

from ranp.models import register_network
from tests.extension.own_operation import swish3


@register_network(
    "swishnet", input_shape=(1, 1, 8, 8, 8), classes=2, dataset="boxes", about="two layers"
)
class SwishNet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv3d(1, width, 3, padding=1)
        self.second = nn.Conv3d(width, 2 * width, 3, padding=1)
        self.head = nn.Conv3d(2 * width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(swish3(self.second(swish3(self.first(x)))))
