"""Tables and pictures: what other libraries wrote is read, what is broken is refused."""

import io
import math
import sys
import zipfile

import numpy as np
import pytest

import wengert as wg
from wengert.io import read_csv, read_image, read_npz, read_parquet

from support import DTYPES


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(save, tmp_path):
    arrays = {d: np.arange(6).reshape(2, 3).astype(d) for d in DTYPES if d != "bfloat16"}
    arrays |= {"columns": np.asfortranarray(arrays["float32"]), "big": np.ones(2, ">f4"),
               "empty": np.ones((0, 3)), "one": np.int64(3)}  # fmt: skip
    save(tmp_path / "f.npz", **arrays)
    found = read_npz(tmp_path / "f.npz")
    assert list(found) == list(arrays)
    for name, a in arrays.items():
        assert str(found[name].dtype) == a.dtype.name and found[name].tolist() == a.tolist()
    assert read_npz(tmp_path / "f.npz", device="reference")["one"].device.type == "reference"


def test_what_is_refused_of_an_npz(tmp_path):
    path = tmp_path / "f.npz"
    odd = {"a": np.ones(1), "text": np.array(["x"]), "c": np.ones(1, complex)}
    np.savez(path, **odd, objects=np.array([{}], dtype=object))
    with pytest.raises(wg.ArgumentTypeError) as error:
        read_npz(path)
    assert all(f"'{name}.npy' has dtype" in str(error.value) for name in ("text", "c", "objects"))
    assert "'a.npy'" not in str(error.value)
    file = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)}
    np.lib.format.write_array_header_1_0(file, header)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", file.getvalue() + bytes(8))
        archive.writestr("b.txt", "x")
    with pytest.raises(wg.ArgumentTypeError, match=r"'a.npy' of shape .* cut off; 'b.txt' is no"):
        read_npz(path)
    np.savez(path, a=np.ones(5), b=np.arange(3))
    whole = path.read_bytes()
    for n in range(0, len(whole), 5):
        path.write_bytes(whole[:n])
        with pytest.raises(wg.ArgumentError):
            read_npz(path)
    rng = np.random.default_rng(0)
    for _ in range(200):
        raw = bytearray(whole)
        raw[rng.integers(0, len(raw))] = rng.integers(0, 256)
        path.write_bytes(raw)
        try:
            read_npz(path)
        except (ValueError, TypeError) as error:
            assert isinstance(error, wg.Error), repr(error)


TABLE = "\ufeff" + "\n".join([
    'i, f ,b,t,missing,"quo,ted"',
    "1,2.5,true,x,,a",
    '-3,-1e3,False,"y ""z""",7,b',
    "",
    "+4,.5,TRUE,,inf,c",
])  # fmt: skip


def test_csv(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(TABLE, encoding="utf-8")
    found = read_csv(path)
    assert list(found) == ["i", "f", "b", "t", "missing", "quo,ted"]
    assert found["i"].dtype == wg.int64 and found["i"].tolist() == [1, -3, 4]
    assert found["f"].dtype == wg.float32 and found["f"].tolist() == [2.5, -1000.0, 0.5]
    assert found["b"].dtype == wg.bool and found["b"].tolist() == [True, False, True]
    assert found["t"] == ["x", 'y "z"', ""] and found["quo,ted"] == ["a", "b", "c"]
    missing = found["missing"].tolist()
    assert math.isnan(missing[0]) and missing[1:] == [7.0, math.inf]
    some = read_csv(path, columns=["f", "i"], dtype=wg.float64, device="reference")
    assert {k: (str(v.dtype), v.device.type) for k, v in some.items()} == {
        "i": ("float64", "reference"), "f": ("float64", "reference")}  # fmt: skip
    path.write_text("1;2\n3;4\n")
    assert {k: v.tolist() for k, v in read_csv(path, delimiter=";", header=False).items()} == {
        "0": [1, 3], "1": [2, 4]}  # fmt: skip
    path.write_text("a,b\n")
    assert read_csv(path) == {"a": [], "b": []}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "empty"),
        ("a,b\n1,2\n3\n", r"a row of 1 fields, wanted 2\n.*line 3"),
        ("a,a\n1,2\n", "come twice"),
        ("a\n99999999999999999999\n", "column 'a'"),
        ("a\n1_0\n", None),  # no number: text
    ],
)
def test_what_is_refused_of_a_csv(text, match, tmp_path):
    (tmp_path / "t").write_text(text)
    if match is None:
        assert read_csv(tmp_path / "t") == {"a": ["1_0"]}
        return
    with pytest.raises(wg.ArgumentError, match=f"read_csv: .*{match}"):
        read_csv(tmp_path / "t")
    with pytest.raises(wg.ArgumentError, match="no columns"):
        (tmp_path / "t").write_text("a\n1\n")
        read_csv(tmp_path / "t", columns=["z"])


def test_parquet(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    pairs = arrow.FixedSizeListArray.from_arrays(arrow.array([1.0, 2, 3, 4], arrow.float32()), 2)
    good = {"i": arrow.array([1, 2], arrow.int8()), "f": arrow.array([1.5, None]),
            "b": arrow.array([True, False]), "t": arrow.array(["x", None]), "p": pairs}  # fmt: skip
    parquet.write_table(arrow.table(good), path)
    found = read_parquet(path)
    assert found["i"].dtype == wg.int8 and found["i"].tolist() == [1, 2]
    assert found["f"][0].item() == 1.5 and math.isnan(found["f"][1].item())
    assert found["b"].tolist() == [True, False] and found["t"] == ["x", None]
    assert found["p"].dtype == wg.float32 and found["p"].tolist() == [[1, 2], [3, 4]]
    assert list(read_parquet(path, columns=["b"])) == ["b"]
    with pytest.raises(wg.ArgumentError, match="no columns"):
        read_parquet(path, columns=["z"])
    odd = {"n": arrow.array([1, None]), "l": arrow.array([[1], [2, 3]])}
    parquet.write_table(arrow.table(odd), path)
    with pytest.raises(wg.ArgumentTypeError, match=r"'n' .* 1 missing values; 'l' is of type list"):
        read_parquet(path)
    path.write_bytes(b"no")
    with pytest.raises(wg.ArgumentError, match="read_parquet"):
        read_parquet(path)


def test_images(tmp_path):
    images = pytest.importorskip("PIL.Image")
    x = np.random.default_rng(0).integers(0, 256, (4, 5, 4), dtype=np.uint8)
    for mode, want in {"RGBA": x, "RGB": x[..., :3], "L": x[..., 0], "LA": x[..., :2]}.items():
        images.fromarray(np.ascontiguousarray(want)).save(tmp_path / "i.png")
        got = read_image(tmp_path / "i.png")
        channels = want[None] if want.ndim == 2 else want.transpose(2, 0, 1)
        assert got.dtype == wg.uint8 and np.array_equal(got.numpy(), channels), mode
    assert read_image(tmp_path / "i.png", mode="RGB").shape == (3, 4, 5)
    deep = (x[..., 0].astype(np.uint16) << 8) + 3
    images.fromarray(deep).save(tmp_path / "i.png")
    got = read_image(tmp_path / "i.png")
    assert got.dtype == wg.uint16 and np.array_equal(got.numpy(), deep[None])
    images.fromarray(x[..., :3]).quantize(4).save(tmp_path / "i.png")  # a palette
    assert read_image(tmp_path / "i.png").shape == (3, 4, 5)
    (tmp_path / "i.png").write_bytes(b"no image")
    with pytest.raises(wg.ArgumentError, match="read_image"):
        read_image(tmp_path / "i.png")


@pytest.mark.parametrize(
    ("read", "module", "extra"),
    [(read_parquet, "pyarrow.parquet", "parquet"), (read_image, "PIL.Image", "images")],
)
def test_a_package_that_is_missing_is_named(read, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"wengert\[{extra}\]"):
        read("file")
