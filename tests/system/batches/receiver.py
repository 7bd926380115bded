"""A team's server that receives callbacks, in threads."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class Receiver(ThreadingHTTPServer):
    """A server that answers call after call with these statuses, and the last one from then on."""

    def __init__(self, *answers: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = answers
        self.calls: list[tuple[bytes, dict[str, str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.calls.append((body, dict(self.headers)))
        answers = self.server.answers
        self.send_response(answers[min(len(self.server.calls), len(answers)) - 1])
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def receive(*answers: int) -> Iterator[Receiver]:
    with Receiver(*answers) as receiver:
        Thread(target=receiver.serve_forever, daemon=True).start()
        yield receiver
        receiver.shutdown()
