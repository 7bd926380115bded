"""A proxy between an agent and the server that records the answers' warnings about what was left out."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

HOP = ("connection", "transfer-encoding", "keep-alive")


@contextmanager
def recorded(url: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the URL for the agent, and the warnings so far."""
    warnings: list[str] = []
    target = urlsplit(url).netloc

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            connection = http.client.HTTPConnection(target)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", *HOP)}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            warnings.append(answer.getheader("X-Roundhouse-Warning") or "")
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP:
                    self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            while data := answer.read1():
                self.wfile.write(data)
            self.close_connection = True

        do_GET = do_HEAD = do_POST

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", warnings
    finally:
        server.shutdown()
        server.server_close()
