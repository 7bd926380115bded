"""`roundhouse adapters`: sources, uploads, and the calls behind each command."""

import io
import json
import shutil
import tarfile
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run, adapter
from tests.unit.cli.fake_server import Answer, FakeServer, ReceivedRequest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "legal"
    made.mkdir()
    (made / "adapter_config.json").write_text("{}")
    (made / "adapter_model.safetensors").write_bytes(b"weights")
    return made


def registered() -> dict[str, object]:
    return {**adapter(), "registered": "v2", "new": True}


def test_a_folder_is_sent_as_its_absolute_path(
    server: FakeServer, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    server.on("POST", "/v1/adapters", registered())
    result = run("adapters", "add", "legal", "./legal", "--base", "starter-chat", "--alias", "prod")
    assert result.exit_code == 0, result.stderr
    assert server.received[-1].json == {
        "name": "legal", "base": "starter-chat", "source": {"path": str(folder)}, "alias": "prod",
    }  # fmt: skip
    assert "legal: registered, v2 sha256:abababababab" in result.stdout


def test_the_only_adapter_inside_a_folder_is_used_and_several_are_named(
    server: FakeServer, run: Run, folder: Path, tmp_path: Path
) -> None:
    server.on("POST", "/v1/adapters", registered())
    result = run("adapters", "add", "legal", str(tmp_path), "--base", "starter-chat")
    assert result.exit_code == 0, result.stderr
    assert server.received[-1].json["source"] == {"path": str(folder)}
    shutil.copytree(folder, tmp_path / "medical")
    result = run("adapters", "add", "legal", str(tmp_path), "--base", "starter-chat")
    assert (result.exit_code, "holds 2 adapters (legal, medical)" in result.stderr) == (1, True)


def test_a_failed_probe_prints_both_texts(server: FakeServer, run: Run) -> None:
    probe = {"prompt": "hello", "expected": "HELLO", "state": "failed", "answered": "hi there", "checked_at": 1.0}
    server.on("GET", "/v1/adapters/legal", adapter(probe=probe))
    displayed = run("adapters", "show", "legal").stdout
    assert all(text in displayed for text in ("failed", "'hello'", "'HELLO'", "'hi there'"))


def test_a_hub_id_is_sent_with_its_revision_or_the_current_one(server: FakeServer, run: Run) -> None:
    server.on("POST", "/v1/adapters", registered())
    for written, revision in (("acme/legal@4f2c", "4f2c"), ("acme/legal", "main")):
        assert run("adapters", "add", "legal", written, "-b", "m").exit_code == 0
        assert server.received[-1].json["source"] == {"hub": "acme/legal", "revision": revision}
    for written in ("acme/legal@", "./legal", "legal", "a/b/c"):
        result = run("adapters", "add", "legal", written, "-b", "m")
        assert result.exit_code == 1
        assert "owner/name@revision" in result.stderr


@pytest.mark.parametrize("upload", [True, False], ids=["a folder that is packed", "an archive"])
def test_folders_and_archives_are_uploaded(server: FakeServer, run: Run, folder: Path, upload: bool) -> None:
    server.on("POST", "/v1/adapters", registered())
    source = folder
    if upload:  # links into `blobs`, as in a hub's cache
        weights = folder / "adapter_model.safetensors"
        weights.rename(folder.parent / "blob")
        weights.symlink_to(folder.parent / "blob")
        (folder / "optimizer.pt").write_bytes(b"x")  # of a trainer's checkpoint, twice as large as the adapter
    else:
        source = folder.parent / "legal.tar"
        with tarfile.open(source, "w") as tar:
            for file in sorted(folder.iterdir()):
                tar.add(file, arcname=file.name)
    result = run("adapters", "add", "legal", str(source), "-b", "m", *(["--upload"] if upload else []))
    assert result.exit_code == 0, result.stderr
    body, kind = server.received[-1].body, server.received[-1].headers["Content-Type"]
    boundary = kind.partition("boundary=")[2].encode()
    parts = body.split(b"--" + boundary)
    assert b'name="name"\r\n\r\nlegal' in parts[1]
    assert b'name="base"\r\n\r\nm' in parts[2]
    sent = parts[3].partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")
    with tarfile.open(fileobj=io.BytesIO(sent)) as tar:
        assert tar.getnames() == ["adapter_config.json", "adapter_model.safetensors"]
        assert all(member.isfile() and member.size for member in tar)


@pytest.mark.parametrize(
    ("status", "code"), [(404, "source_not_found"), (403, "insufficient_scope"), (403, "upload_needed")]
)
def test_a_folder_that_the_server_may_not_read_is_uploaded(
    server: FakeServer, run: Run, folder: Path, status: int, code: str
) -> None:
    def answer(received: ReceivedRequest) -> Answer:
        if received.headers["Content-Type"] != "application/json":
            return Answer(registered())
        return Answer({"error": {"message": "There is no folder.", "code": code}}, status)

    server.on("POST", "/v1/adapters", answer)
    result = run("adapters", "add", "legal", str(folder), "-b", "m")
    assert result.exit_code == 0, result.stderr
    assert "so it is sent" in result.stderr
    assert [received.headers["Content-Type"].partition(";")[0] for received in server.received] == [
        "application/json", "multipart/form-data",
    ]  # fmt: skip


@pytest.mark.parametrize("upload", [False, True])
def test_an_alias_and_a_probe_are_sent_with_the_registration(
    server: FakeServer, run: Run, folder: Path, upload: bool
) -> None:
    server.on("POST", "/v1/adapters", {**adapter(), "registered": "v2", "new": True})
    options = ["--alias", "prod", "--probe", "hello", "HELLO", *(["--upload"] if upload else [])]
    assert run("adapters", "add", "legal", str(folder), "-b", "m", *options).exit_code == 0
    (received,) = server.received
    if upload:
        for field, text in (("alias", "prod"), ("probe_prompt", "hello"), ("probe_expected", "HELLO")):
            assert f'name="{field}"\r\n\r\n{text}\r\n'.encode() in received.body
    else:
        assert received.json["alias"] == "prod"
        assert received.json["probe"] == {"prompt": "hello", "expected": "HELLO"}


def test_a_folder_without_an_adapter_is_refused_before_it_is_sent(server: FakeServer, run: Run, tmp_path: Path) -> None:
    assert "adapter_config.json" in run("adapters", "add", "a", str(tmp_path), "-b", "m").stderr
    file = tmp_path / "weights.bin"
    file.write_bytes(b"")
    assert "is not an archive" in run("adapters", "add", "a", str(file), "-b", "m").stderr
    (tmp_path / "lora.gguf").write_bytes(b"GGUF")
    for source in (tmp_path / "lora.gguf", tmp_path):
        assert "the format of llama.cpp" in run("adapters", "add", "a", str(source), "-b", "m").stderr
    assert server.received == []


def test_validate_prints_every_fault(server: FakeServer, run: Run, folder: Path) -> None:
    faults = ["q_proj: rank 32 is over 16", "k_proj: no lora_B"]
    error = {"message": "The adapter has 2 faults.", "type": "invalid_request_error", "code": "unfit", "faults": faults}
    server.on("POST", "/v1/adapters", Answer({"error": error}, 422))
    result = run("adapters", "validate", "legal", str(folder), "-b", "m")
    assert server.received[-1].query == "dry_run=true"
    assert result.exit_code == 1
    assert result.stderr.splitlines() == ["error: The adapter has 2 faults.", *(f"  {fault}" for fault in faults)]


def test_errors_are_printed_as_json_too(server: FakeServer, run: Run) -> None:
    result = run("adapters", "show", "nobody", "--json")
    assert result.exit_code == 1
    reported = json.loads(result.stdout)["error"]
    assert reported["status"] == 404
    assert reported["code"] == "model_not_found"
    assert reported["exit_code"] == 1


@pytest.mark.parametrize(
    ("command", "method", "path", "body"),
    [
        (["show", "legal"], "GET", "", None),
        (["alias", "legal", "prod", "v1"], "PUT", "/aliases/prod", {"version": "v1"}),
        (["alias", "legal", "prod"], "PUT", "/aliases/prod", {"version": "v2"}),
        (["alias", "legal", "prod", "--remove"], "DELETE", "/aliases/prod", None),
        (["rollback", "legal"], "POST", "/rollback", None),
        (["rollback", "legal", "v1"], "POST", "/rollback", {"version": "v1"}),
        (["pin", "legal"], "PUT", "/pin", None),
        (["unpin", "legal"], "DELETE", "/pin", None),
        (["share", "legal"], "PUT", "/shared", None),
        (["share", "legal", "--stop"], "DELETE", "/shared", None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_each_command_is_one_call(
    server: FakeServer, run: Run, command: list[str], method: str, path: str, body: dict[str, str] | None
) -> None:
    server.on("GET", "/v1/adapters/legal", adapter())
    server.on(method, f"/v1/adapters/legal{path}", adapter())
    result = run("adapters", *command)
    assert result.exit_code == 0, result.stderr
    assert "v2  sha256:abababababab" in result.stdout
    assert "@prod" in result.stdout
    received = server.received[-1]
    assert (received.method, received.path) == (method, f"/v1/adapters/legal{path}")
    assert (received.json if received.body else None) == body


def test_adapters_are_listed_and_removed(server: FakeServer, run: Run) -> None:
    server.on("GET", "/v1/adapters", {"object": "list", "data": [adapter()]})
    assert "legal" in run("adapters", "list", "--base", "m").stdout
    assert server.received[-1].query == "base=m"
    gone = {
        "object": "adapter.deleted",
        "name": "legal",
        "base": "m",
        "deleted": True,
        "digests": ["sha256:" + "c" * 64],
    }
    server.on("DELETE", "/v1/adapters/legal", gone)
    result = run("adapters", "remove", "legal", "--version", "v1", "--force")
    assert result.stdout == "m:legal: removed sha256:cccccccccccc\n"
    assert server.received[-1].query == "version=v1&force=true"
