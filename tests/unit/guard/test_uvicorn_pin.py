"""The private parts of uvicorn that we use are as in the pinned version.

If one of these fails, check runtime/http/guard/protocol.py before the pin is raised.
"""

import inspect
from functools import partial
from importlib.metadata import version

import uvicorn
from httptools.parser.errors import HttpParserCallbackError, HttpParserError
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from runtime.http.guard.protocol import GuardedConnection


def test_the_version_is_the_one_that_was_reviewed() -> None:
    assert version("uvicorn") == "0.54.0"


def test_all_methods_that_we_override_exist_and_are_called() -> None:
    ours = {
        name for name, value in vars(GuardedConnection).items() if callable(value) and hasattr(HttpToolsProtocol, name)
    }
    assert ours >= {
        "connection_made", "connection_lost", "data_received", "on_message_begin", "on_url", "on_header",
        "on_headers_complete", "on_body", "on_message_complete", "on_response_complete", "send_400_response",
        "_unsupported_upgrade_warning", "timeout_keep_alive_handler", "pause_writing", "resume_writing",
        "_start_asgi_task",
    }  # fmt: skip
    received = inspect.getsource(HttpToolsProtocol.data_received)
    assert "except httptools.HttpParserError:" in received
    assert "except httptools.HttpParserUpgrade:" in received
    assert "self.send_400_response(msg)" in received
    assert issubclass(HttpParserCallbackError, HttpParserError)
    assert "on_response=self.on_response_complete" in inspect.getsource(HttpToolsProtocol.on_headers_complete)
    assert "_unset_keepalive_if_required" in vars(HttpToolsProtocol)


def test_the_cycle_keeps_the_scope_of_its_request() -> None:
    """It distinguishes headers that are still arriving from a body."""
    assert "scope=self.scope" in inspect.getsource(HttpToolsProtocol.on_headers_complete)
    assert "self.scope = {" in inspect.getsource(HttpToolsProtocol.on_message_begin)


def test_uvicorn_accepts_any_factory_of_connections() -> None:
    made = partial(GuardedConnection, None)
    config = uvicorn.Config(lambda: None, http=made, ws="none", log_config=None)  # type: ignore[arg-type]
    config.load()
    assert config.http_protocol_class is made
    assert config.ws_protocol_class is None


def test_a_connection_is_closed_by_its_cycle_after_the_last_answer() -> None:
    """It closes its own transport, which may be ours, before it reports the end."""
    sent = inspect.getsource(RequestResponseCycle.send)
    assert (
        "if not self.keep_alive:\n                    self.transport.close()\n                self.on_response()"
        in sent
    )
    assert "self.transport = transport" in inspect.getsource(RequestResponseCycle.__init__)


def test_a_cycle_writes_to_its_own_transport_and_first_the_head() -> None:
    """Our transport delays the first write until the second or the loop's next turn."""
    sent = inspect.getsource(RequestResponseCycle.send)
    head, body = sent.split("# Sending response body")
    assert 'content.append(b"\\r\\n")\n            self.transport.write(' in head
    assert body.count("self.transport.write(") == 2


def test_a_cycle_sends_by_its_own_method_and_checks_the_length_of_each_message() -> None:
    """Ours replaces it for HTTP/1.0, and sets the length that is expected next."""
    assert "self.scope, self.receive, self.send" in inspect.getsource(RequestResponseCycle.run_asgi)
    sent = inspect.getsource(RequestResponseCycle.send)
    assert 'if name == b"content-length" and self.chunked_encoding is None:' in sent
    assert "if self.chunked_encoding is None and" in sent
    assert "self.expected_content_length -= num_bytes" in sent
