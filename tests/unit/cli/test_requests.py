"""`roundhouse chat`, `embed`, `rerank` and `transcribe`."""

import gzip
import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run, model
from tests.unit.cli.fake_server import Answer, FakeServer
from tests.unit.cli.test_progress import Seen

CHAT = "/v1/chat/completions"


def stream(*words: str, end: str = "data: [DONE]\n\n") -> Answer:
    events = "".join(f"data: {json.dumps({'choices': [{'delta': {'content': word}}]})}\n\n" for word in words)
    return Answer(f": starter-chat weights 40%\n\n{events}{end}", headers={"Content-Type": "text/event-stream"})


def serves(server: FakeServer, *tasks: str) -> None:
    server.on("GET", "/v1/models", {"data": [model(f"{task}-{i}", task=task) for i, task in enumerate(tasks)]})


def test_chat_prints_the_answer_as_it_comes(server: FakeServer, run: Run) -> None:
    server.on("POST", CHAT, stream("Hel", "lo", "."))
    result = run("chat", "hi", "-m", "uppercase", "-s", "Be brief.", "--temperature", "0", "--seed", "1")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "Hello.\n"
    received = server.received[-1]
    assert received.json == {
        "model": "uppercase",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        "temperature": 0.0, "seed": 1, "stream": True,
    }  # fmt: skip
    assert received.headers["X-Roundhouse-Progress"] == "sse"


def test_a_streams_comments_are_drawn_as_progress_of_the_load(server: FakeServer) -> None:
    from runtime.cli.commands.requests import events
    from runtime.cli.remote.client import Client

    server.on("POST", CHAT, stream("Hel", "lo"))
    seen = Seen()
    with Client(server.url) as client, client.stream("POST", CHAT, json={}) as response:
        assert len(list(events(response, seen))) == 2
    assert seen.displayed == [("starter-chat: weights", 0.4)]


def test_a_stream_that_a_proxy_compressed_is_read(server: FakeServer, run: Run) -> None:
    plain = stream("Hel", "lo")
    server.on(
        "POST", CHAT, Answer(gzip.compress(plain.encoded()), headers={**plain.headers, "Content-Encoding": "gzip"})
    )
    result = run("chat", "hi", "-m", "m")
    assert (result.exit_code, result.stdout) == (0, "Hello\n")


def test_a_stream_without_its_end_is_an_error(server: FakeServer, run: Run, tmp_path: Path) -> None:
    server.on("POST", CHAT, stream("Hel", "lo", end=""))
    result = run("chat", "hi", "-m", "m")
    assert result.exit_code == 4
    assert "is incomplete" in result.stderr
    sound = tmp_path / "talk.wav"
    sound.write_bytes(b"RIFF....")
    half = 'data: {"type": "transcript.text.delta", "delta": "turn "}\n\n'
    server.on("POST", "/v1/audio/transcriptions", Answer(half, headers={"Content-Type": "text/event-stream"}))
    assert run("transcribe", str(sound), "-m", "m", "--stream").exit_code == 4


def test_an_answer_that_is_no_stream_is_an_error(server: FakeServer, run: Run) -> None:
    server.on("POST", CHAT, {"choices": []})
    result = run("chat", "hi", "-m", "m")
    assert result.exit_code == 4
    assert "not an event stream" in result.stderr


def test_chat_reads_standard_input_and_finds_the_only_model(server: FakeServer, run: Run) -> None:
    serves(server, "chat", "embed")
    server.on("POST", CHAT, stream("ok"))
    assert run("chat", stdin="from a pipe\n").stdout == "ok\n"
    assert server.received[-1].json["model"] == "chat-0"
    assert server.received[-1].json["messages"] == [{"role": "user", "content": "from a pipe"}]


def test_an_earlier_version_does_not_count_as_a_second_model(server: FakeServer, run: Run) -> None:
    server.on("GET", "/v1/models", {"data": [model("m", task="chat"), model("m@1", task="chat")]})
    server.on("POST", CHAT, stream("ok"))
    assert run("chat", "hi").stdout == "ok\n"
    assert server.received[-1].json["model"] == "m"


def test_chat_never_guesses_a_model(server: FakeServer, run: Run) -> None:
    serves(server, "chat", "chat")
    result = run("chat", "hi")
    assert result.exit_code == 2
    assert "chat-0, chat-1" in result.stderr


def test_an_error_in_mid_stream_ends_the_command(server: FakeServer, run: Run) -> None:
    error = {"error": {"message": "The engine ended.", "type": "server_error", "code": "engine_died"}}
    server.on("POST", CHAT, stream("Hel", end=f"data: {json.dumps(error)}\n\n"))
    result = run("chat", "hi", "-m", "m")
    assert result.exit_code == 4
    assert result.stdout == "Hel"
    assert "The engine ended." in result.stderr


@pytest.mark.parametrize(
    ("reported", "code"),
    [
        ({"type": "invalid_request_error", "code": "context_length_exceeded"}, 1),
        ({"type": "BadRequestError", "code": "invalid_value"}, 1),
        ({"type": "BadRequestError", "code": 400}, 1),
        ({"type": "rate_limit_error", "code": "adapter_places_full"}, 1),
        ({"type": "timeout_error", "code": "deadline_exceeded"}, 4),
        ({"type": "service_unavailable_error", "code": "model_unavailable"}, 4),
        ({}, 4),
    ],
)
def test_an_error_event_has_the_exit_code_of_its_status(
    server: FakeServer, run: Run, reported: dict[str, object], code: int
) -> None:
    """While a model loads, errors come in the stream; otherwise as a status."""
    server.on("POST", CHAT, stream(end=f"data: {json.dumps({'error': {'message': 'So it is.', **reported}})}\n\n"))
    result = run("chat", "hi", "-m", "m")
    assert result.exit_code == code
    assert "So it is." in result.stderr


def test_chat_json_is_one_answer(server: FakeServer, run: Run) -> None:
    reported = {"choices": [{"message": {"content": "ok"}}]}
    server.on("POST", CHAT, reported)
    assert json.loads(run("chat", "hi", "-m", "m", "--json").stdout) == reported
    assert "stream" not in server.received[-1].json


def test_a_conversation_sends_its_history(server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    server.on("POST", CHAT, stream("yes"))
    lines = iter(["first", "second", "/reset", "/model other", "/what", "third"])

    def typed(_prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    from runtime.cli.commands.requests import ChatSession
    from runtime.cli.remote.client import Client

    monkeypatch.setattr("builtins.input", typed)
    with Client(server.url) as client:
        ChatSession(client, "m", None, {}).interactive()
    stated = [received.json for received in server.received]
    assert [message["content"] for message in stated[1]["messages"]] == ["first", "yes", "second"]
    assert [message["content"] for message in stated[2]["messages"]] == ["third"]
    assert [body["model"] for body in stated] == ["m", "m", "other"]


def test_embed_prints_vectors(server: FakeServer, run: Run) -> None:
    rows = [{"embedding": [0.5] * 8, "index": i} for i in range(2)]
    server.on("POST", "/v1/embeddings", {"data": rows})
    result = run("embed", "one", "two", "-m", "m", "--dimensions", "8")
    assert server.received[-1].json == {"model": "m", "input": ["one", "two"], "dimensions": 8}
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["8", "8"]
    assert run("embed", "-m", "m", stdin="a\n\nb\n").exit_code == 0
    assert server.received[-1].json["input"] == ["a", "b"]


def test_rerank_prints_documents_in_order(server: FakeServer, run: Run, tmp_path: Path) -> None:
    results = [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.1}]
    server.on("POST", "/v1/rerank", {"results": results})
    file = tmp_path / "documents.txt"
    file.write_text("from the file\n")
    result = run("rerank", "query", "given", "-f", str(file), "-n", "2", "-m", "m")
    assert server.received[-1].json == {
        "model": "m", "query": "query", "documents": ["given", "from the file"], "top_n": 2,
    }  # fmt: skip
    assert "0.9000" in result.stdout.splitlines()[1]
    assert "from the file" in result.stdout.splitlines()[1]
    assert run("rerank", "query", "-m", "m").exit_code == 2


def test_transcribe_prints_the_text(server: FakeServer, run: Run, tmp_path: Path) -> None:
    sound = tmp_path / "talk.wav"
    sound.write_bytes(b"RIFF....")
    server.on("POST", "/v1/audio/transcriptions", Answer("turn on the light\n", headers={"Content-Type": "text/plain"}))
    result = run("transcribe", str(sound), "-m", "m", "-l", "en")
    assert result.stdout == "turn on the light\n"
    body = server.received[-1].body
    for field, value in ((b"model", b"m"), (b"response_format", b"text"), (b"language", b"en")):
        assert b'name="' + field + b'"\r\n\r\n' + value in body
    assert b'filename="talk.wav"' in body
    assert b"RIFF...." in body


def test_transcribe_streams_and_translates(server: FakeServer, run: Run, tmp_path: Path) -> None:
    sound = tmp_path / "talk.wav"
    sound.write_bytes(b"RIFF....")
    events = [
        {"type": "transcript.text.delta", "delta": "turn "},
        {"type": "transcript.text.delta", "delta": "on"},
        {"type": "transcript.text.done", "text": "turn on"},
    ]
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    server.on("POST", "/v1/audio/translations", Answer(text, headers={"Content-Type": "text/event-stream"}))
    assert run("transcribe", str(sound), "-m", "m", "--translate", "--stream").stdout == "turn on\n"
    lines = run("transcribe", str(sound), "-m", "m", "--translate", "--stream", "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == events


@pytest.mark.parametrize(
    "options", [["--words"], ["--json", "-f", "srt"], ["--stream", "-f", "vtt"], ["-f", "mp4"]], ids=" ".join
)
def test_options_that_do_not_go_together_are_refused(
    server: FakeServer, run: Run, tmp_path: Path, options: list[str]
) -> None:
    sound = tmp_path / "talk.wav"
    sound.write_bytes(b"")
    assert run("transcribe", str(sound), *options).exit_code == 2
    assert server.received == []


def test_a_missing_recording_is_refused(run: Run) -> None:
    result = run("transcribe", "nothing.wav")
    assert result.exit_code == 1
    assert "nothing.wav" in result.stderr
