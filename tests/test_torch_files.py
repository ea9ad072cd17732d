"""Files of PyTorch without PyTorch: what it wrote is read, and nothing that a file asks is done."""

import base64
import collections
import io
import pickle
import struct
import sys
import types
import zipfile
import zlib

import numpy as np
import pytest

import wengert as wg
from wengert.io import load_torch

from support import live_bytes

# What PyTorch 2.15 wrote of
#   OrderedDict(w=Parameter([[1.5, -2]]), t=arange(6.).reshape(2, 3).T[1:], n=tensor(1 << 40),
#               bf=tensor([1, -2.5], dtype=bfloat16), m=tensor([True, False]),
#               e=ones(1, 2).expand(3, 2), step=7, lr=[0.5, None], size=Size([2, 3]))
# in its format and in that of before 1.6, compressed.
WRITTEN = {
    "zip": (
        'c-p0w&u`;I6vxL-ngnl2+vP{Q1<JzmBZV}L6DMifZc{8|4qid)6%Zjo<R;$6!j1c!X$yObgj(RX9FRC6{strjC$!?Y'
        ';;_2{i31WVaX=gpe*hO|#@VcAmNrW>iRHw3-|zd(^URAk%vc<uR0`cUCec}B2hFy-?<}@#Z0C00_Y6Ia-r+`1ZZ>_-'
        'bDG%oJ6+|CpydQk>s7aj6+rVANSV4s%nm?qVxPF>8hhCFx=JH(w)R}F)!4NId&j{}pg`=H5bSiie$d!2C=kzN>Ph0)'
        'C6V^F17o2?F+AVKm&1z+Bv{ToB<nG9Ztm_u%9JrYv}qz!GUX#sOxcu<;LN9O$~cbUVGGiqurCuI!=wdM%mKsMHp$o?'
        'Yln_1Jkm~?2@H>JQXlH{82J!8g2zLrX$&(KoU6+uc<TzxhUz|}&LGwD0P_iET7W0p4DTt5Cm+I`DILPoq2YN9&sgv*'
        '3+%uJ&hL`n*&cX3$3lwmJn@n+yg<C>=R=PdF=Q;5X8}9#63^uO-oWE!7NS8m<XPzR<S5T#=#|HyT2Nqt4ivfSlt2rG'
        'B`S>3>Xd20kDwBYmoQW<Sgyy}4Rm&4#Z0nNc>%1x3l}r5)$W9A?{y~(a<4kD)<?Zez9>*5WheDsKZI8-(D!m1W-@i-'
        '?So4_;zN&(W7qRES{bb8+!a6Av2kPH3A$w68hS-o)(<>X3h?dUzkWn3K#$`AW>MuHKz{)@Y|q{9>^L24=*818lr;)a'
        'JAglFA>|VRrciAFu=OE!e7ac;edV-sr^9nG_8iJ^c=7jh36dpoB10Ojab0CGZ|KV-03dX|Mr^NBg5~UQKhl(`Aq1;D'
        'fokYW==AyN=uw7s@+L=*9AB+dp6P3Ud^SUVm>I&8<#`H*o_S!NUhO=a`xgs0{-RqZJ|x#VpQ~u-tE1fhaQ+g_nM}R+'
        '&7IaM>aUGbe~D%O{=yIS;p;z*bUt&*(AP$qJ)J+j_q`gWxVD-2dHDP%B7JD|{!>(F=38HGzd3yVbEt5y0kHyfoxmj>'
        '=&DWsy&G=J&~yJ2L@kt;O65wiTCSEg@+y>7HLq6k)rzKSd99?9>r16-ky3vBdG@;u;m9ybiNX#zqdk1`K63FnL{vu`'
        '@HD5qDWl`MzGxC{qO+XIW(=LsxkaC7Bb?%VZby6u4Oo;%yI7i&zZFM9?-aGsj>Btz5w)tQjdl=T+a43N1yLK_`MmZg'
        'QCk$X(Y?!S>j^=tiQ4Fn<F&U%ZAsKd_sj&JH;Kd@DvF~^d5%vU5&!ol+b|P}?A<LHTNo(Eh4Vjhc>bWDlj!K9FY2B_'
        'ce^gRHkJrA<19Xm{THYbq_q'
    ),
    "legacy": (
        'c-nQ7NpI6Y6vu66D~6V`Q`WL4EFoKChb^H(<zOh(z4%f^sWa3@Zk)e8DFUfdE)9jxz=0zlqaTGU9|4I2Z|pQQ5Jn!$'
        'Z|2Q!{%>(#`K)@szAXKmfBWtAT)wZo{E?vdHl(aID@jr}@VRgMUUQ2Dq3d@blY=!)JD$tA$C|9uc3T}NyOv6e{C$@-'
        'L-zv<k=RBuYo%y0bo_uLWhhpHEVsjvHj-9SF#OI2GDfo3qdRT7#$z_8TSE0!&}IQ^KXYxaLduztvzAOJ-a)asAJ|U5'
        '+2gJks?C6{_gt^t?6!i|CgUtnk@$}bXPwXwnp-86q-Cv)&_<rE4Te;FL|yXy7GI4QRiv#M@~KtI#e$}3wPLYcD<Knw'
        'VRw6&GL&VGLo0@4$c8e2YAA+0z~N7hP<(`A+QiImWE}m7Srf;i7&wkQbib2w4)ArYT-G$bpyPxyWu%FFaz#)D_Y{33'
        '1~?sa&v2YIF=r`sbo~v^#jK(J#VCMcbriz+@eoQ{sZhWLCzgIuNLO}n$&hz&ImXX(TrqJqQrf|_G5QOt*NA+5Onj-L'
        'YgHXLh%6KNCXsWwn0SjLYa$mBH*tGhukU*!;+?;Vx?aHDq1Jmtt$CsKeoQWK6it*OGDG>_tcs8q%9VvGDnrbIz$8Rg'
        'tD<ZJXfaCXsF`>WwPnaz7Y~h0lwvQyqcuFvKCge5qOr_kC+c!M8HTY+hKf3si|W+a!BZ29qNmrye>9<o<VjUgCh1O0'
        '%5rj2qEeHZDb4bVv_JOh;<a!0>+^em_WE@(W$C~mLm7Rh5AH<XQiC3veVShzzX6Hj3ik'
    ),
}


def written(kind):
    return zlib.decompress(base64.b85decode(WRITTEN[kind]))


@pytest.mark.parametrize("kind", WRITTEN)
def test_what_pytorch_wrote(kind, tmp_path):
    path = tmp_path / "m.pt"
    path.write_bytes(written(kind))
    got = load_torch(path)
    assert type(got) is dict and list(got) == ["w", "t", "bf", "n", "m", "e", "step", "lr", "size"]
    assert got["w"].tolist() == [[1.5, -2.0]] and not got["w"].requires_grad
    assert got["t"].tolist() == [[1.0, 4.0], [2.0, 5.0]]
    assert got["bf"].dtype == wg.bfloat16 and got["bf"].tolist() == [1.0, -2.5]
    assert got["n"].dtype == wg.int64 and got["n"].item() == 1 << 40
    assert got["m"].tolist() == [True, False] and got["e"].tolist() == [[1.0, 1.0]] * 3
    assert (got["step"], got["lr"], got["size"]) == (7, [0.5, None], (2, 3))
    assert load_torch(path, device="reference")["t"].device.type == "reference"
    with pytest.raises(wg.ArgumentError, match=r"wg\.io\.load_torch reads it"):
        wg.load(path)


@pytest.mark.parametrize("kind", WRITTEN)
def test_every_truncation_and_many_changes_are_refused_or_harmless(kind, tmp_path):
    path, whole = tmp_path / "m.pt", written(kind)
    for n in range(0, len(whole), 7):
        path.write_bytes(whole[:n])
        with pytest.raises(ValueError):
            load_torch(path)
    rng = np.random.default_rng(0)
    for _ in range(400):
        raw = bytearray(whole)
        for at in rng.integers(0, len(raw), 2):
            raw[at] = rng.integers(0, 256)
        path.write_bytes(raw)
        try:
            load_torch(path)
        except ValueError as error:
            assert isinstance(error, wg.Error) and "load_torch" in str(error)


# --- files written here, with stand-ins for the names of PyTorch


class Storage:
    """What pickles as a storage of that class and key."""

    def __init__(self, kind, key, count):
        self.id = ("storage", named("torch", kind), key, "cpu", count)


class Call:
    """What pickles as a call of a name."""

    def __init__(self, name, *given):
        self.name, self.given = name, given

    def __reduce__(self):
        return named(*self.name.rsplit(".", 1)), self.given


def named(module, name):
    """A function that pickles as this name."""
    found = types.FunctionType((lambda: 0).__code__, {}, name)
    found.__module__, found.__qualname__ = module, name
    sys.modules.setdefault(module, types.ModuleType(module))
    return vars(sys.modules[module]).setdefault(name, found)


@pytest.fixture(autouse=True)
def no_stand_ins_are_left():
    before = {name: dict(vars(sys.modules[name])) for name in set(sys.modules) & {"posix"}}
    kept = set(sys.modules)
    yield
    assert {name: dict(vars(sys.modules[name])) for name in before} == before
    for name in set(sys.modules) - kept:
        if name.split(".")[0] in ("torch", "__torch__", "elsewhere"):
            del sys.modules[name]


class Pickler(pickle.Pickler):
    def persistent_id(self, x):
        return x.id if isinstance(x, Storage) else None


def pickled(x, protocol=2):
    file = io.BytesIO()
    Pickler(file, protocol).dump(x)
    return file.getvalue()


def write(path, pickle, storages=None, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("m/data.pkl", pickle)
        for key, array in (storages or {}).items():
            archive.writestr(f"m/data/{key}", array.tobytes())


def tensor(storage, offset, size, stride):
    return Call("torch._utils._rebuild_tensor_v2", storage, offset, size, stride, False, {})


TEN = np.arange(10, dtype=np.float32)


def refused(path, match):
    before = live_bytes()
    with pytest.raises(wg.ArgumentError, match=match) as error:
        load_torch(path)
    assert str(path) in str(error.value) and live_bytes() <= before


@pytest.mark.parametrize("protocol", [0, 2, 3, 4, 5])
def test_plain_values_of_every_protocol(protocol, tmp_path):
    state = {
        "plain": [None, True, False, 0, -1, 300, 70_000, 1 << 70, -(1 << 70), 1.5, "é", "x" * 300],
        "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
        "sets": [{1, 2}, frozenset("a")], "bytes": b"\x00\xff", "complex": 1 - 2j,
        "ordered": collections.OrderedDict(a=1), "counter": collections.Counter("aab"),
        "default": collections.defaultdict(list, {1: [2]}), (1, "a"): {},
    }  # fmt: skip
    write(tmp_path / "f", pickled(state, protocol))
    got = load_torch(tmp_path / "f")
    assert got == state and type(got["ordered"]) is dict
    assert [type(x) for x in got["plain"]] == [type(x) for x in state["plain"]]


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_arrays_and_scalars_of_numpy(protocol, tmp_path):
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    state = {"x": x, "t": x.T, "f": np.float64(2.5), "b": np.array([True]), "empty": x[:0]}
    write(tmp_path / "f", pickled(state, protocol))
    got = load_torch(tmp_path / "f")
    for name, want in state.items():
        assert got[name].dtype == want.dtype and np.array_equal(got[name], want)
    for odd in (np.array(["a"]), np.array([None]), np.ones(1, complex), np.ones(2, ">f4")):
        write(tmp_path / "f", pickled(odd, protocol))
        refused(tmp_path / "f", "numpy")


def test_views_of_one_storage(tmp_path):
    ten = Storage("FloatStorage", "0", 10)
    views = {
        "whole": ((0, (10,), (1,)), TEN),
        "rows": ((0, (2, 5), (5, 1)), TEN.reshape(2, 5)),
        "columns": ((0, (5, 2), (1, 5)), TEN.reshape(2, 5).T),
        "part": ((3, (2, 2), (4, 2)), [[3, 5], [7, 9]]),
        "expanded": ((9, (2, 3), (0, 0)), [[9] * 3] * 2),
        "one": ((4, (), ()), 4),
        "odd strides of one": ((2, (1, 3), (77, 1)), [[2, 3, 4]]),
        "empty": ((10, (0, 4), (4, 1)), np.zeros((0, 4))),
        "windows": ((0, (3, 3), (1, 1)), [[0, 1, 2], [1, 2, 3], [2, 3, 4]]),
    }
    state = {name: tensor(ten, *place) for name, (place, _) in views.items()}
    write(tmp_path / "f", pickled(state), {"0": TEN})
    got = load_torch(tmp_path / "f")
    for name, (_, want) in views.items():
        assert np.array_equal(got[name].numpy(), want), name
    got["whole"][0] = 7.0  # values, not aliases
    assert got["rows"][0, 0].item() == 0.0
    huge = tensor(ten, 0, (1 << 30, 10), (0, 1))  # takes no memory
    write(tmp_path / "f", pickled(huge), {"0": TEN})
    assert load_torch(tmp_path / "f")[1 << 29].tolist() == TEN.tolist()


def test_storages_of_bytes_with_a_dtype(tmp_path):
    def of(dtype):
        given = (Storage("UntypedStorage", "0", 40), 2, (3,), (2,), False, {}, dtype)
        write(tmp_path / "f", pickled(Call("torch._utils._rebuild_tensor_v3", *given)), {"0": TEN})

    of(named("torch", "uint16"))
    got = load_torch(tmp_path / "f")
    assert got.dtype == wg.uint16 and got.tolist() == TEN.view(np.uint16)[2:8:2].tolist()
    of(None)
    refused(tmp_path / "f", "a tensor of dtype None")
    of(named("torch", "complex64"))
    refused(tmp_path / "f", r"torch\.complex64")
    write(tmp_path / "f", pickled(named("torch", "bfloat16")))
    assert load_torch(tmp_path / "f") == wg.bfloat16


BAD = {
    "beyond": (0, (11,), (1,)),
    "beyond by its offset": (8, (3,), (1,)),
    "beyond by its strides": (0, (2, 2), (9, 1)),
    "negative offset": (-1, (2,), (1,)),
    "negative size": (0, (-2,), (1,)),
    "negative stride": (9, (2,), (-1,)),
    "a size that is no int": (0, (2.0,), (1,)),
    "a truth value": (0, (True,), (1,)),
    "sizes in a list": (0, [2], [1]),
    "more strides": (0, (2,), (1, 1)),
    "overlapping": (0, (5, 5), (1, 1)),
    "a huge size": (0, (1 << 70,), (0,)),
    "too many elements": (0, (1 << 61, 1 << 61), (0, 0)),
    "too many axes": (0, (1,) * 500, (1,) * 500),
}


@pytest.mark.parametrize("case", BAD)
def test_tensors_that_do_not_fit_their_storage_are_refused(case, tmp_path):
    ten = Storage("FloatStorage", "0", 10)
    write(tmp_path / "f", pickled(tensor(ten, *BAD[case])), {"0": TEN})
    with pytest.raises(ValueError) as error:
        load_torch(tmp_path / "f")
    assert isinstance(error.value, wg.Error)


def test_storages_are_held_against_the_file(tmp_path):
    def case(kind, key, count, match):
        write(tmp_path / "f", pickled(tensor(Storage(kind, key, count), 0, (1,), (1,))), {"0": TEN})
        refused(tmp_path / "f", match)

    case("FloatStorage", "0", 11, "has 40 bytes, wanted 11 of float32")
    case("FloatStorage", "0", 1 << 61, "has 40 bytes")
    case("FloatStorage", "1", 10, "lacks data/1")
    case("FloatStorage", "../data.pkl", 10, "lacks")
    case("FloatStorage", 0, 10, "persistent id")
    case("FloatStorage", "0", -1, "persistent id")
    case("ComplexFloatStorage", "0", 5, r"torch\.ComplexFloatStorage")
    two = [tensor(Storage(k, "0", 10), 0, (1,), (1,)) for k in ("FloatStorage", "IntStorage")]
    write(tmp_path / "f", pickled(two), {"0": TEN})
    refused(tmp_path / "f", "in two ways")
    many = [tensor(Storage("ByteStorage", "0", 10_000), 0, (10_000,), (1,)) for _ in range(80)]
    write(tmp_path / "f", pickled(many), {"0": np.zeros(10_000, np.uint8)})
    refused(tmp_path / "f", "more than 64 times")
    write(tmp_path / "f", pickled(1), {}, zipfile.ZIP_DEFLATED)
    refused(tmp_path / "f", "data.pkl is compressed")


NAMES = [
    "posix.system", "os.system", "builtins.eval", "builtins.getattr", "builtins.list.append",
    "torch.load", "torch.hub.load", "torch.storage._load_from_bytes", "wengert.save",
    "numpy.load", "numpy.core.multiarray.fromfile", "operator.attrgetter", "elsewhere.Thing",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("protocol", [2, 4])
def test_names_that_are_not_on_the_list_are_refused(name, protocol, tmp_path):
    module, word = name.rsplit(".", 1)
    if protocol == 2:
        body = f"c{module}\n{word}\n".encode()
    else:
        body = b"".join(b"\x8c" + bytes([len(t)]) + t.encode() for t in (module, word)) + b"\x93"
    # The name alone is refused, before anything is done with it.
    write(tmp_path / "f", b"\x80" + bytes([protocol]) + body + b".")
    refused(tmp_path / "f", f"uses {name}, which load_torch does not call")


def text(x):
    return b"X" + struct.pack("<I", len(x)) + x


BODIES = {
    "nothing": (b"", "cut off"),
    "no value": (b".", "more than it has"),
    "an object": (b"(cbuiltins\nlist\no.", "OBJ"),
    "an instance": (b"(i__main__\nX\n.", "INST"),
    "a new object": (b"cbuiltins\nlist\n)\x81.", "NEWOBJ"),
    "an extension": (b"\x82\x01.", "EXT1"),
    "an unknown opcode": (b"\xff.", "0xff"),
    "a call of a value": (text(b"x") + b")R.", "calls a value of type str"),
    "a call of a call": (b"ccollections\nOrderedDict\n)R)R.", "calls a value of type dict"),
    "a type that is not called": (b"ctorch\nTensor\n)R.", r"calls torch\.Tensor"),
    "arguments that are no tuple": (b"ctorch\nSize\n]R.", "calls"),
    "wrong arguments": (b"ctorch\n_utils\n.", r"torch\._utils"),
    "too many arguments": (b"ctorch\nSize\n(K\x01K\x02tR.", r"arguments of torch\.Size"),
    "state of a list": (b"]}b.", "sets the state of a value of type list"),
    "items of a list": (b"]K\x01K\x02s.", "sets items of list"),
    "appends to a dict": (b"}K\x01a.", "appends to dict"),
    "adds to a list": (b"](K\x01\x90.", "adds to list"),
    "an odd count of items": (b"}(K\x01u.", "sets items"),
    "a memo that is not there": (b"h\x05.", "memo 5"),
    "a mark that is not there": (b"K\x01t.", "more than it has"),
    "a mark taken as a value": (b"(0.", "more than it has"),
    "a text of 2^32 bytes": (b"X\xff\xff\xff\xff.", "cut off"),
    "bytes of 2^63": (b"\x8e" + b"\xff" * 8 + b".", "cut off"),
    "a negative length": (b"T\xff\xff\xff\xff.", "cut off"),
    "a huge int": (b"\x8b\xff\xff\xff\x7f.", "cut off"),
    "text that is not UTF-8": (text(b"\xff"), "not UTF-8"),
    "a number of letters": (b"Iabc\n.", "a number"),
    "a list as a key": (b"}]K\x01s.", "key of type list"),
    "a nested key": (b"}" + b")" + b"\x85" * 5000 + b"K\x01s.", "key of type tuple"),
    "a nested member": (b"\x8f(" + b")" + b"\x85" * 5000 + b"\x90.", "key of type tuple"),
    "a persistent id of text": (text(b"x") + b"Q.", "persistent id"),
    "copies of copies": (
        text(b"x" * 3000) + b"\x940]"
        + (b"c_codecs\nencode\nh\x00" + text(b"latin1") + b"\x86R") * 50,
        "copies more",
    ),
}


@pytest.mark.parametrize("case", BODIES)
def test_pickles_that_are_not_data_are_refused(case, tmp_path):
    body, match = BODIES[case]
    write(tmp_path / "f", b"\x80\x02" + body)
    refused(tmp_path / "f", match)


def test_other_files_are_told(tmp_path):
    path = tmp_path / "f"
    wg.save({"x": wg.ones(1)}, path)
    refused(path, "a safetensors file, which wg.load reads")
    np.savez(tmp_path / "m.npz", x=TEN)
    refused(tmp_path / "m.npz", "without data.pkl: wg.io.read_npz")
    path.write_bytes(b"hello")
    refused(path, "not a file of PyTorch")
    with pytest.raises(FileNotFoundError):
        load_torch(tmp_path / "none")


def test_an_index_of_files(tmp_path):
    for k in range(2):
        state = {f"x{k}": tensor(Storage("FloatStorage", "0", 10), k, (2,), (1,))}
        write(tmp_path / f"part-{k}.bin", pickled(state), {"0": TEN})
    index = '{"weight_map": {"x1": "part-1.bin", "x0": "part-0.bin"}}'
    (tmp_path / "pytorch_model.bin.index.json").write_text(index)
    got = load_torch(tmp_path / "pytorch_model.bin.index.json")
    assert {k: v.tolist() for k, v in got.items()} == {"x1": [1, 2], "x0": [0, 1]}
