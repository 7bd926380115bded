"""Uploaded archives: good ones give the adapter's files, and hostile ones are refused."""

import gzip
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.content.archive import unpack
from adapters.content.faults import Faults
from registry.bounds import Bounds

GOOD = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"x" * 1000}
LIMITS = Bounds(unpacked_files=20, unpacked_bytes=10 << 20)


def tar(files: dict[str, bytes], mode: str = "w:gz", extra: Callable[[tarfile.TarFile], None] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        if extra is not None:
            extra(archive)
    return buffer.getvalue()


def zipped(files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def member(kind: bytes, name: str = "adapter_model.safetensors", target: str = "/etc/passwd") -> Callable[..., None]:
    def add(archive: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        archive.addfile(info)

    return add


def zip_link() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = zipfile.ZipInfo("adapter_model.safetensors")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    return buffer.getvalue()


def zip_encrypted() -> bytes:
    data = bytearray(zipped(GOOD, zipfile.ZIP_STORED))
    at = data.index(b"PK\x01\x02")
    data[at + 8] |= 1
    return bytes(data)


def zip_size_lies() -> bytes:
    """Return a zip file whose directory says 2 GiB for 1000 bytes."""
    data = bytearray(zipped(GOOD, zipfile.ZIP_STORED))
    at = data.rindex(b"PK\x01\x02")
    data[at + 24 : at + 28] = (2 << 30).to_bytes(4, "little")
    return bytes(data)


def extended(*contents: bytes) -> bytes:
    """Return a tar with extended headers of these contents before the adapter's files."""
    headers = b""
    for content in contents:
        info = tarfile.TarInfo("././@PaxHeader")
        info.type, info.size = tarfile.XGLTYPE, len(content)
        headers += info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)
    return headers + tar(GOOD, "w")


def sparse() -> bytes:
    """Return a tar whose file of one byte is one of a TiB, of which the others are holes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("GNUSparseFile.0/x")
        info.size = 513
        info.pax_headers = {
            "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "adapter_model.safetensors",
            "GNU.sparse.realsize": str(1 << 40),
        }  # fmt: skip
        archive.addfile(info, io.BytesIO(b"1\n0\n1\n".ljust(512, b"\0") + b"x"))
    return buffer.getvalue()


def nested(prefix: str) -> dict[str, bytes]:
    return {f"{prefix}{name}": data for name, data in GOOD.items()}


def judge(data: bytes, tmp_path: Path, bounds: Bounds = LIMITS) -> tuple[list[str], dict[str, bytes]]:
    archive, out = tmp_path / "upload", tmp_path / "out"
    archive.write_bytes(data)
    out.mkdir()
    faults = Faults()
    unpack(archive, out, bounds, faults)
    return faults.sentences(), {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.mark.parametrize(
    "data",
    [
        tar(GOOD), tar(GOOD, "w"), zipped(GOOD), zipped(GOOD, zipfile.ZIP_STORED), tar(nested("mine/")),
        zipped(nested("mine/")), tar(nested("./")), tar({**GOOD, "README.md": b"hello", "sub/notes.txt": b"x"}),
        tar(nested("run-10:30:15/")), tar(GOOD, extra=member(tarfile.DIRTYPE, "folder")),
        extended(b"1010 a=" + b"x" * 1002 + b"\n"),
    ],
    ids=[
        "tar.gz", "tar", "zip", "stored-zip", "folder", "zip-folder", "dot", "others", "time", "directory",
        "attributes",
    ],
)  # fmt: skip
def test_good_archives_are_unpacked_to_the_two_files(data: bytes, tmp_path: Path) -> None:
    assert judge(data, tmp_path) == ([], GOOD)


def test_an_archive_may_have_as_many_members_as_the_bound(tmp_path: Path) -> None:
    assert judge(tar({**GOOD, **{f"f{number}": b"" for number in range(18)}}), tmp_path) == ([], GOOD)


def test_an_archive_may_unpack_to_several_times_its_size(tmp_path: Path) -> None:
    files = {**GOOD, "adapter_model.safetensors": os.urandom(300_000) + bytes(2_000_000)}
    assert judge(tar(files), tmp_path) == ([], files)


def test_checkpoints_are_named_also_if_there_is_a_tokenizer_beside_them(tmp_path: Path) -> None:
    (fault,), files = judge(tar({**nested("checkpoint-10/"), "tokenizer.json": b"{}"}), tmp_path)
    assert "only in checkpoints, such as 'checkpoint-10'" in fault
    assert files == {"tokenizer.json": b"{}"}


ATTACKS: dict[str, tuple[bytes, str]] = {
    "climbs out": (tar({"../adapter_config.json": b"{}"}), "points outside"),
    "climbs out inside": (tar({"a/../../adapter_config.json": b"{}"}), "points outside"),
    "absolute": (tar({"/tmp/adapter_config.json": b"{}"}), "points outside"),
    "zip climbs out": (zipped({"../adapter_config.json": b"{}"}), "points outside"),
    "zip absolute": (zipped({"/tmp/adapter_config.json": b"{}"}), "points outside"),
    "backslashes": (tar({"..\\adapter_config.json": b"{}"}), "points outside"),
    "drive": (tar({"C:adapter_config.json": b"{}"}), "points outside"),
    "symbolic link": (tar({}, extra=member(tarfile.SYMTYPE)), "link or device"),
    "hard link": (tar({}, extra=member(tarfile.LNKTYPE)), "link or device"),
    "character device": (tar({}, extra=member(tarfile.CHRTYPE)), "link or device"),
    "pipe": (tar({}, extra=member(tarfile.FIFOTYPE)), "link or device"),
    "link beside": (tar(GOOD, extra=member(tarfile.SYMTYPE, "readme")), "link or device"),
    "zip link": (zip_link(), "link or device"),
    "too deep": (tar(nested("a/b/")), "one folder"),
    "two folders": (tar({"a/adapter_config.json": b"{}", "b/adapter_model.safetensors": b""}), "one folder"),
    "twice": (tar({}, extra=lambda t: [member(tarfile.REGTYPE)(t) for _ in range(2)] and None), "twice"),
    "many members": (tar({f"f{number}": b"" for number in range(100)}), "more than 20 members"),
    "zip many members": (zipped({f"f{number}": b"" for number in range(100)}), "more than 20 members"),
    "bomb": (tar({"adapter_model.safetensors": bytes(9 << 20)}), "unpacks to more"),
    "bomb in a skipped file": (tar({"readme": bytes(9 << 20)}), "unpacks to more"),
    "zip bomb": (zipped({"adapter_model.safetensors": bytes(9 << 20)}), "unpacks to more"),
    "nothing in it": (gzip.compress(bytes(64 << 20)), "no adapter_config.json"),
    "huge extended header": (tar({"p": b""}, extra=None)[:0] + gzip.compress(b"".join([
        tarfile.TarInfo("x").tobuf()[:124], b"77777777777\0", tarfile.TarInfo("x").tobuf()[136:148], b"        x",
        tarfile.TarInfo("x").tobuf()[157:], bytes(32 << 20)])), ""),
    "digits that tarfile searches for minutes": (extended(b"1" * (1 << 20)), "extended headers are too long"),
    "many extended headers": (extended(*[b"1" * (9 << 10)] * 50), "extended headers are too long"),
    "mostly holes": (sparse(), "is a sparse file"),
    "encrypted": (zip_encrypted(), "encrypted"),
    "zip size lies": (zip_size_lies(), ""),
    "other packing": (zipped(GOOD, zipfile.ZIP_LZMA), "deflate"),
    "cut tar.gz": (tar({**GOOD, "adapter_model.safetensors": os.urandom(50_000)})[:-2000], "damaged"),
    "cut tar": (tar(GOOD, "w")[:1800], ""),
    "cut zip": (zipped(GOOD)[:-30], "damaged"),
    "gzip of noise": (gzip.compress(os.urandom(2000)), "damaged"),
    "bz2": (tar(GOOD, "w:bz2"), "not a tar"),
    "text": (b"hello", "not a tar"),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_are_refused(attack: str, tmp_path: Path) -> None:
    data, words = ATTACKS[attack]
    (tmp_path / "in").mkdir()
    before = set(tmp_path.rglob("*"))
    faults, _ = judge(data, tmp_path / "in")
    assert faults
    assert words in faults[0], faults
    assert set(tmp_path.rglob("*")) - before <= set((tmp_path / "in").rglob("*"))
