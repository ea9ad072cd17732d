"""A small residual network reads handwritten digits.

    python examples/cookbook/resnet.py

Source: He et al.: Deep residual learning for image recognition, 2015.
"""

from common import digits

import wengert as wg
from wengert import Tensor, nn, optim


class Block(nn.Module):
    """Two 3 × 3 convolutions with batch norm, added to what came in."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = nn.relu(self.norm1(self.conv1(x)))
        return nn.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A first convolution, three stages of blocks, the mean over positions, one linear layer."""

    def __init__(self, width: int = 16, classes: int = 10) -> None:
        self.stem = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.stages = nn.Sequential(
            Block(width, width), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2)
        )
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)).mean(axis=(2, 3)))


def main(
    epochs: int = 4, train: int = 4000, test: int = 1000, batch: int = 100
) -> tuple[float, float]:
    """Train; gives the accuracy on digits held out, before and after."""
    wg.random.seed(0)
    images, labels = digits()
    held = slice(train, train + test)
    model = ResNet()
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)

    @wg.compile
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    def accuracy() -> float:
        model.eval()
        predict = wg.compile(model, freeze=True)
        hits = predict(images[held]).argmax(axis=1) == labels[held]
        model.train()
        return float(hits.astype(wg.float32).mean())

    before, loss = accuracy(), wg.tensor(0.0)
    for epoch in range(epochs):
        order = wg.random.permutation(min(train, images.shape[0]))
        for start in range(0, order.shape[0] - batch + 1, batch):
            rows = order[start : start + batch]
            loss = step(images[rows], labels[rows])
        print(f"epoch {epoch}: loss {loss:.3f}, accuracy {accuracy():.1%}")
    return before, accuracy()


if __name__ == "__main__":
    main()
