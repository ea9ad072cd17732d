"""The page of examples/digits in headless Chromium: a digit drawn with the mouse is recognised.

The model is trained on digits made of strokes, so that no data set is needed.
"""

import io
import itertools
import os
import sys
import time
from pathlib import Path

import browser as browsers
import numpy as np
import pytest

import wengert as wg

from support import missing, wanted_gpu

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "browser-digits.png"

# The corners of the strokes of each digit in a square of side 1, y down.
OVAL = [(0.5 + 0.3 * np.sin(t), 0.5 - 0.45 * np.cos(t)) for t in np.linspace(0, 2 * np.pi, 17)]
STROKES = [
    [OVAL],
    [[(0.35, 0.2), (0.55, 0.05), (0.55, 0.95)]],
    [[(0.2, 0.25), (0.35, 0.07), (0.65, 0.07), (0.78, 0.28), (0.2, 0.93), (0.82, 0.93)]],
    [[(0.22, 0.1), (0.6, 0.06), (0.75, 0.25), (0.45, 0.47), (0.78, 0.7), (0.6, 0.93), (0.2, 0.88)]],
    [[(0.6, 0.05), (0.15, 0.65), (0.85, 0.65)], [(0.65, 0.4), (0.65, 0.95)]],
    [[(0.75, 0.07), (0.3, 0.07), (0.25, 0.45), (0.6, 0.42), (0.78, 0.68), (0.55, 0.93),
      (0.2, 0.88)]],
    [[(0.65, 0.05), (0.32, 0.4), (0.25, 0.75), (0.5, 0.95), (0.73, 0.75), (0.5, 0.52),
      (0.28, 0.68)]],
    [[(0.18, 0.08), (0.82, 0.08), (0.42, 0.95)]],
    [[(0.5, 0.48), (0.28, 0.28), (0.5, 0.06), (0.72, 0.28), (0.25, 0.73), (0.5, 0.95), (0.75, 0.73),
      (0.5, 0.48)]],
    [[(0.72, 0.3), (0.5, 0.5), (0.28, 0.28), (0.5, 0.06), (0.72, 0.28), (0.68, 0.95)]],
]  # fmt: skip


def drawn(strokes, width=0.08):
    """Strokes as the page sees them: 20 pixels the longer side, in the middle of 28."""
    points = np.concatenate([np.array(stroke) for stroke in strokes])
    low, high = points.min(axis=0) - width / 2, points.max(axis=0) + width / 2
    scale = 20 / (high - low).max()
    shift = 14 - scale * (low + high) / 2
    at = np.stack(np.meshgrid(np.arange(28) + 0.5, np.arange(28) + 0.5), axis=-1)
    far = np.full((28, 28), np.inf)
    for stroke in strokes:
        corners = scale * np.array(stroke) + shift
        for a, b in itertools.pairwise(corners):
            along = np.clip(((at - a) @ (b - a)) / ((b - a) @ (b - a)), 0, 1)
            far = np.minimum(far, np.linalg.norm(at - a - along[..., None] * (b - a), axis=-1))
    return np.clip(scale * width / 2 + 0.5 - far, 0, 1).astype("f")


def varied(rng, strokes):
    """The same digit by another hand."""
    turn = np.eye(2) + rng.uniform(-0.15, 0.15, (2, 2))
    return [(np.array(s) + rng.uniform(-0.04, 0.04, np.shape(s))) @ turn for s in strokes]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The folder of the page, with a model trained on strokes."""
    sys.path.insert(0, str(ROOT / "examples" / "digits"))
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import export
        import mnist
    finally:
        del sys.path[:2]
    rng = np.random.default_rng(0)
    labels = np.tile(np.arange(10), 60)
    images = np.stack([drawn(varied(rng, STROKES[n]), rng.uniform(0.06, 0.11)) for n in labels])
    wg.random.seed(0)
    model = mnist.MLP()
    optimizer = wg.optim.AdamW(model.parameters(), lr=3e-3)
    x, y = wg.asarray(images), wg.asarray(labels)
    for _ in range(12):
        optimizer.zero_grad()
        loss = wg.nn.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("digits")
    export.write(export.program_of(model), folder)
    return folder


@pytest.fixture(scope="module")
def browser(page):
    wanted_gpu()
    found = browsers.start()
    if isinstance(found, str):
        missing(found)
    found.files["/digits"] = page
    yield found
    found.close()


def wait(browser, what, seconds=30):
    deadline = time.monotonic() + seconds
    while (value := browser.evaluate(f"document.body.dataset.{what} ?? null")) is None:
        assert time.monotonic() < deadline, browser.evaluate("document.body.innerText")
        time.sleep(0.02)
    return value


def draw(browser, digit):
    """Draws a digit with the mouse; gives the one that the page says."""
    browser.evaluate("document.getElementById('clear').click()")
    box = browser.evaluate("(() => { const b = document.getElementById('paper')"
                           ".getBoundingClientRect(); return [b.x, b.y, b.width]; })()")
    for stroke in STROKES[digit]:
        points = np.array(stroke) * 0.8 * box[2] + 0.1 * box[2] + box[:2]
        browser.stroke([(float(x), float(y)) for x, y in points])
    return int(wait(browser, "digit"))


def test_digits_drawn_with_the_mouse_are_recognised(browser):
    browser.open("/digits/index.html", 700, 420)
    wait(browser, "ready")
    # A stroke at a time: the page answers after each, so digits of one stroke are asked.
    single = [n for n in range(10) if len(STROKES[n]) == 1]
    assert [draw(browser, n) for n in single] == single
    assert not browser.complaints()


def pixels(png):
    image = pytest.importorskip("PIL.Image")
    return np.asarray(image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def test_the_picture_says_the_same(browser):
    browser.open("/digits/index.html", 700, 420)
    wait(browser, "ready")
    assert draw(browser, 3) == 3
    shown = browser.evaluate("[...document.querySelectorAll('li div')].map(x => { const b = "
                             "x.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })")
    wanted = browser.evaluate("[...document.querySelectorAll('li i')].map("
                              "x => parseFloat(x.style.width) / 100)")
    png = browser.screenshot()
    if os.environ.get("WENGERT_UPDATE_SNAPSHOTS") == "1":
        PICTURE.write_bytes(png)
    assert abs(sum(wanted) - 1) < 1e-4 and len(png) < 60_000
    image = pixels(png)
    for digit, (x, y, width, height) in enumerate(shown):
        row = image[round(y + height / 2), round(x) : round(x + width)]
        # The background of a bar is light; its part that is filled is not.
        filled = (row.sum(axis=1) < 600).mean()
        assert abs(filled - wanted[digit]) < 0.02, digit
    # The picture in the documents is of the same page.
    kept = pixels(PICTURE.read_bytes())
    assert kept.shape == image.shape
    assert (np.abs(kept - image).max(axis=2) > 64).mean() < 0.03
