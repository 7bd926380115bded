"""The format of keys, and the pepper."""

import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import BadRequest, Unavailable
from tenants.keys import secret


def test_a_key_has_its_id_and_256_bits() -> None:
    made = [secret.make() for _ in range(200)]
    assert len({key.text for key in made}) == 200
    for key in made:
        assert len(key.text) == 61
        assert key.text.startswith(f"rh-{key.id}_")
        assert secret.id_of(key.text) == key.id
    assert len({key.text[12:55] for key in made}) == 200


@given(st.integers(0, 60), st.integers(1, len(secret.ALPHABET) - 1))
def test_a_typo_is_found_without_a_lookup(at: int, shift: int) -> None:
    text = secret.make().text
    other = secret.ALPHABET[(secret.ALPHABET.find(text[at]) + shift) % len(secret.ALPHABET)]
    assert secret.id_of(text[:at] + other + text[at + 1 :]) is None
    assert secret.id_of(text[:at] + text[at + 1 :]) is None


@given(st.text(max_size=80))
def test_other_texts_are_no_keys(text: str) -> None:
    assert secret.id_of(text) is None
    assert secret.id_of(secret.make().text + text) is None or not text


def test_a_digest_depends_on_key_and_pepper() -> None:
    one, other = secret.make().text, secret.make().text
    digests = {secret.digest(p, text) for p in (b"a" * 32, b"b" * 32) for text in (one, other)}
    assert len(digests) == 4
    assert {len(digest) for digest in digests} == {32}


def test_the_pepper_is_created_once_and_readable_only_by_its_owner(tmp_path: Path) -> None:
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(secret.load_pepper(tmp_path / "data"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert len(found[0]) == 64
    path = tmp_path / "data" / "pepper"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path / "data") == ["pepper"]


def test_a_pepper_that_others_could_read_is_made_private(tmp_path: Path) -> None:
    """As after it was restored from a backup."""
    (tmp_path / "pepper").write_text("y" * 64 + "\n")
    (tmp_path / "pepper").chmod(0o644)
    assert secret.load_pepper(tmp_path) == b"y" * 64
    assert stat.S_IMODE((tmp_path / "pepper").stat().st_mode) == 0o600


def test_a_pepper_from_the_environment_needs_no_file(tmp_path: Path) -> None:
    assert secret.load_pepper(tmp_path, "x" * 32) == b"x" * 32
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(BadRequest, match="too short"):
        secret.load_pepper(tmp_path, "x" * 31)


def test_a_pepper_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "pepper").mkdir()
    with pytest.raises(Unavailable, match="cannot be read"):
        secret.load_pepper(tmp_path)
