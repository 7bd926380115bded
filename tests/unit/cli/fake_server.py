"""A small HTTP server on a real socket with scripted answers, which records its requests."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class ReceivedRequest:
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Json:
        result = json.loads(self.body)
        assert isinstance(result, dict)
        return result


@dataclass(frozen=True)
class Answer:
    body: Json | str | bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    def encoded(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()


Script = Answer | Callable[[ReceivedRequest], Answer]


class FakeServer:
    """`on` sets the answer for a method and path. Others get a 404 in our server's format."""

    def __init__(self) -> None:
        self.received: list[ReceivedRequest] = []
        self._answers: dict[tuple[str, str], Script] = {}
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                path, _, query = self.path.partition("?")
                size = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(size) if size else self._chunks()
                received = ReceivedRequest(self.command, path, query, dict(self.headers.items()), body)
                fake.received.append(received)
                answer = fake.answer(received)
                data = answer.encoded()
                self.send_response(answer.status)
                for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _chunks(self) -> bytes:
                parts = []
                if self.headers.get("transfer-encoding") == "chunked":
                    while size := int(self.rfile.readline(), 16):
                        parts.append(self.rfile.read(size))
                        self.rfile.readline()
                    self.rfile.readline()
                return b"".join(parts)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def on(self, method: str, path: str, answer: Script | Json) -> None:
        self._answers[method, path] = Answer(answer) if isinstance(answer, dict) else answer

    def answer(self, received: ReceivedRequest) -> Answer:
        script = self._answers.get((received.method, received.path))
        if script is None:
            return Answer({"error": {"message": f"no {received.path}", "type": "x", "code": "model_not_found"}}, 404)
        return script if isinstance(script, Answer) else script(received)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
