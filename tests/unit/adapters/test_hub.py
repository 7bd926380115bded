"""Adapters from a hub, against a small local one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.remote import download_repository
from adapters.types import PublicHubSource
from registry.bounds import Bounds
from registry.errors import BadRequest, NotFound, TooLarge, Unavailable, Unfit
from registry.files.sources import hub_errors
from registry.recipes.fields import HubSource
from registry.storage.reserve import DiskReserve
from tests.unit.adapters.fake_hub import TOKEN, FakeHub, serve
from tests.unit.adapters.makers import write_adapter

REPO = "team/tune"
RESERVE = DiskReserve(Path(), 0)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with serve() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield hub


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def test_a_branch_is_resolved_and_only_two_files_are_fetched(hub: FakeHub, folder: Path, out: Path) -> None:
    write_adapter(folder)
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"large")
    (folder / "adapter_model.bin").write_bytes(b"code")
    commit = hub.push(REPO, folder)
    assert download_repository(HubSource(hub=REPO, revision="main"), out, Bounds(), RESERVE) == commit
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (out / name).read_bytes() == (folder / name).read_bytes()
        assert not (out / name).is_symlink()
    fetched = {line.rpartition("/")[2] for line in hub.requested if "/resolve/" in line}
    assert fetched == {"adapter_config.json", "adapter_model.safetensors"}
    assert all(commit in line for line in hub.requested if "/resolve/" in line)


def test_a_commit_stays_the_same_when_the_branch_moves(hub: FakeHub, folder: Path, out: Path) -> None:
    first = hub.push(REPO, write_adapter(folder))
    before = (folder / "adapter_model.safetensors").read_bytes()
    assert hub.push(REPO, write_adapter(folder, seed=9)) != first
    assert download_repository(HubSource(hub=REPO, revision=first), out, Bounds(), RESERVE) == first
    assert (out / "adapter_model.safetensors").read_bytes() == before


def test_missing_repositories_and_revisions_are_not_found(hub: FakeHub, folder: Path, out: Path) -> None:
    hub.push(REPO, write_adapter(folder))
    hub.push("team/secret", folder)
    hub.private.add("team/secret")
    with pytest.raises(NotFound, match="no repository 'team/none'"):
        download_repository(HubSource(hub="team/none", revision="main"), out, Bounds(), RESERVE)
    with pytest.raises(NotFound, match="private"):
        download_repository(HubSource(hub="team/secret", revision="main"), out, Bounds(), RESERVE)
    with pytest.raises(NotFound, match="no revision 'v9'"):
        download_repository(HubSource(hub=REPO, revision="v9"), out, Bounds(), RESERVE)


def test_no_message_has_the_credentials_of_a_mirror(hub: FakeHub, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url.replace("//", "//me:secret@"))
    with pytest.raises(NotFound, match=f"no repository 'team/none' on {hub.url}"):
        download_repository(HubSource(hub="team/none", revision="main"), out, Bounds(), RESERVE)


@pytest.mark.parametrize("wrong", ["http://me:secret@[hub", "me:secret@hub"])
def test_an_invalid_address_is_reported_without_its_credentials(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", wrong)
    source = HubSource(hub=REPO, revision="main")
    with pytest.raises(Unavailable, match="Check HF_ENDPOINT") as reported, hub_errors(source):
        raise ValueError("Invalid URL")
    assert "secret" not in reported.value.message


def test_a_gated_repository_says_what_to_do(hub: FakeHub, folder: Path, out: Path) -> None:
    hub.push(REPO, write_adapter(folder))
    hub.gated.add(REPO)
    with pytest.raises(NotFound, match="HF_TOKEN"):
        download_repository(HubSource(hub=REPO, revision="main"), out, Bounds(), RESERVE)


def test_the_servers_token_is_used_only_for_callers_who_may_use_it(
    hub: FakeHub, folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.push(REPO, write_adapter(folder))
    download_repository(PublicHubSource(hub=REPO, revision="main"), out, Bounds(), RESERVE)
    assert hub.tokens == {None}
    hub.private.add(REPO)
    with pytest.raises(NotFound, match="reads public repositories only"):
        download_repository(PublicHubSource(hub=REPO, revision="main"), out, Bounds(), RESERVE)
    hub.private.clear()
    hub.tokens.clear()
    (out.parent / "again").mkdir()
    download_repository(HubSource(hub=REPO, revision="main"), out.parent / "again", Bounds(), RESERVE)
    assert hub.tokens == {f"Bearer {TOKEN}"}


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b/c", "bad name/x", "-x/y"])
def test_a_bad_id_is_the_clients_fault(name: str, hub: FakeHub, out: Path) -> None:
    with pytest.raises(BadRequest, match="not a hub id"):
        download_repository(HubSource(hub=name, revision="main"), out, Bounds(), RESERVE)
    assert not hub.requested


def test_a_repository_without_safetensors_is_refused(hub: FakeHub, folder: Path, out: Path) -> None:
    write_adapter(folder)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    hub.push(REPO, folder)
    with pytest.raises(Unfit) as refused:
        download_repository(HubSource(hub=REPO, revision="main"), out, Bounds(), RESERVE)
    assert "may hold code" in refused.value.faults[0]
    assert not any("/resolve/" in line for line in hub.requested)


def test_sizes_are_checked_before_anything_is_fetched(hub: FakeHub, folder: Path, out: Path) -> None:
    hub.push(REPO, write_adapter(folder))
    with pytest.raises(TooLarge, match="over the limit of 1000"):
        download_repository(HubSource(hub=REPO, revision="main"), out, Bounds(adapter_bytes=1000), RESERVE)
    assert not any("/resolve/" in line for line in hub.requested)


def test_a_hub_that_is_down_is_unavailable(
    hub: FakeHub, folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push(REPO, write_adapter(folder))
    hub.fail_with = 500
    with pytest.raises(Unavailable, match=r"did not deliver.*it answered with status 500") as refused:
        download_repository(HubSource(hub=REPO, revision="main"), out, Bounds(), RESERVE)
    assert refused.value.retry_after == 30
    hub.fail_with = None
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match=r"did not deliver.*no connection to it"):
        download_repository(HubSource(hub=REPO, revision="main"), out, Bounds(), RESERVE)


@pytest.mark.parametrize("page", [b"<html>Sign in</html>", b"[]", b"{}", b"\xff"])
def test_a_server_that_is_no_hub_is_unavailable(hub: FakeHub, out: Path, page: bytes) -> None:
    hub.page = page
    with pytest.raises(Unavailable, match=r"does not answer like a hub.*proxy") as refused:
        download_repository(HubSource(hub=REPO, revision="main"), out, Bounds(), RESERVE)
    assert refused.value.code == "hub_unavailable"


def test_a_transfer_that_keeps_breaking_off_fails(
    hub: FakeHub, folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    hub.push(REPO, write_adapter(folder))
    hub.break_after = 30_000
    with pytest.raises(Unavailable, match=r"did not deliver.*broke off"):
        download_repository(HubSource(hub=REPO, revision="main"), out, Bounds(), RESERVE)
    assert not (out / "adapter_model.safetensors").exists()


def test_an_error_of_hf_xet_is_the_hubs_or_the_disks(
    hub: FakeHub, folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hf_xet raises RuntimeError for both, which made a registration a 500."""
    hub.push(REPO, write_adapter(folder))

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("Task error: File reconstruction error")

    monkeypatch.setattr("huggingface_hub.snapshot_download", broken)
    with pytest.raises(Unavailable, match=r"did not deliver.*broke off"):
        download_repository(HubSource(hub=REPO, revision="main"), out, Bounds(), RESERVE)
    monkeypatch.setattr("adapters.remote.is_full", lambda *_: True)
    with pytest.raises(OSError, match="No space left"):
        download_repository(HubSource(hub=REPO, revision="main"), out, Bounds(), RESERVE)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_more_bytes_than_announced_do_not_reach_the_disk(name: str, hub: FakeHub, folder: Path, out: Path) -> None:
    announced = sum(path.stat().st_size for path in write_adapter(folder).iterdir())
    hub.push(REPO, folder)
    hub.unannounced[name] = 64 * 2**20
    with pytest.raises(Unavailable, match="more bytes than the hub says") as refused:
        download_repository(HubSource(hub=REPO, revision="main"), out, Bounds(), RESERVE)
    assert refused.value.code == "bad_download"
    assert sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) <= announced + 2**20


@pytest.mark.parametrize("size", [-(10**12), "7", 1.5])
def test_an_invalid_size_is_not_added_up(size: object, hub: FakeHub, folder: Path, out: Path) -> None:
    hub.push(REPO, write_adapter(folder))
    hub.listed.append({"rfilename": "tokenizer.json", "size": size})
    with pytest.raises(Unavailable, match="does not answer like a hub"):
        download_repository(HubSource(hub=REPO, revision="main"), out, Bounds(), RESERVE)
    assert not list(out.iterdir())
