"""Train a classifier of handwritten digits and put it into a page, where the mouse draws digits.

    python examples/digits/export.py --serve

Trains one of the demo's models (examples/mnist.py says where the digits come from), exports it as
a program of compute shaders, and writes a folder with the page, the player and the program, which
any web server can give to a browser with WebGPU. `--serve` does so on this machine.
"""

import argparse
import http.server
import shutil
import sys
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import mnist
import numpy as np

import wengert as wg
from wengert import nn, webgpu
from wengert.data import TensorDataset


def program_of(model: nn.Module) -> webgpu.Program:
    """The program that gives the probabilities of the ten digits for an image (28, 28)."""
    model.eval()

    def probabilities(image: wg.Tensor) -> wg.Tensor:
        with wg.no_grad():
            return nn.softmax(model(image.reshape(1, 1, 28, 28)))[0]

    return webgpu.export(probabilities, wg.Spec((28, 28), wg.float32))


def write(program: webgpu.Program, folder: Path) -> None:
    """Write the page, the player and the program into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    program.save(folder / "digits.safetensors")
    player = Path(webgpu.__file__).with_name("player.js")
    for file in (HERE / "index.html", HERE / "digits.js", player):
        shutil.copy(file, folder)
    size = (folder / "digits.safetensors").stat().st_size
    print(f"{program!r}\nwrote {folder}: the program has {size:,} bytes")


def main() -> None:
    """Read the arguments, train, write, serve."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", choices=("mlp", "cnn"), default="cnn")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("demo_output/digits"))
    parser.add_argument("--serve", action="store_true", help="give the page to browsers here")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()

    images, labels = mnist.find_digits()
    held_out = len(labels) // 5
    wg.random.seed(0)
    model = {"mlp": mnist.MLP, "cnn": mnist.CNN}[options.model]()
    data = TensorDataset(images[held_out:], labels[held_out:])
    mnist.train(model, data, options.epochs, "digits")
    guesses = mnist.predict(model, wg.asarray(images[:held_out])).numpy()
    print(f"held-out accuracy {np.mean(guesses == labels[:held_out]):.4f}")
    write(program_of(model), options.out)
    if options.serve:
        handler = partial(http.server.SimpleHTTPRequestHandler, directory=options.out)
        print(f"open http://127.0.0.1:{options.port}")
        http.server.ThreadingHTTPServer(("127.0.0.1", options.port), handler).serve_forever()


if __name__ == "__main__":
    main()
