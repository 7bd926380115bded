"""Adapters as streams: the copy is stored exactly as it was sent, or refused."""

from pathlib import Path

import pytest

from adapters.content.copies import CopyReader, CopyWriter
from adapters.content.digest import digest_of
from adapters.content.forms import CONFIG, TENSORS
from registry.errors import Unfit

CONTENT = (b'{"r": 8}', bytes(range(256)) * 9000)
DIGEST = digest_of(CONTENT[0], iter(CONTENT[1:]))


def stored(folder: Path) -> bytes:
    folder.mkdir()
    for name, data in zip((CONFIG, TENSORS), CONTENT, strict=True):
        (folder / name).write_bytes(data)
    reader = CopyReader(folder)
    stream = b"".join(reader.parts())
    assert reader.size == len(stream)
    return stream


@pytest.mark.parametrize("step", [3, 11, 4096, 1 << 22])
def test_a_stream_in_any_pieces_gives_the_same_files(tmp_path: Path, step: int) -> None:
    stream = stored(tmp_path / "stored")
    if step < 4096:  # byte by byte only around the borders
        pieces = [stream[at : at + step] for at in range(0, 48, step)] + [stream[-(-48 // step) * step :]]
    else:
        pieces = [stream[at : at + step] for at in range(0, len(stream), step)]
    copy = tmp_path / "copy"
    copy.mkdir()
    with CopyWriter(copy, len(CONTENT[1])) as writer:
        for piece in pieces:
            writer.write(piece)
        writer.finish(DIGEST)
    assert [(copy / name).read_bytes() for name in (CONFIG, TENSORS)] == list(CONTENT)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda s: s[:-1], "bytes are missing"),
        (lambda s: s[:5], "bytes are missing"),
        (lambda s: s + b"!", "more bytes than the adapter has"),
        (lambda s: s[:-1] + b"!", "its digest is sha256:"),
        (lambda s: s[:9] + b"!" + s[10:], "its digest is sha256:"),
        (lambda s: b"\xff" * 8 + s[8:], "its config would have"),
    ],
)
def test_a_stream_with_other_bytes_is_refused(tmp_path: Path, change: object, why: str) -> None:
    assert callable(change)
    stream = change(stored(tmp_path / "stored"))
    copy = tmp_path / "copy"
    copy.mkdir()

    def write() -> None:
        with CopyWriter(copy, len(CONTENT[1])) as writer:
            writer.write(stream)
            writer.finish(DIGEST)

    with pytest.raises(Unfit, match=why) as refused:
        write()
    assert refused.value.code == "wrong_copy"
