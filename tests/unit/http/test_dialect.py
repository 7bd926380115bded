"""Finding the start of a stream's last event."""

import pytest

from runtime.http.dialect import last_event_start


@pytest.mark.parametrize(
    ("before", "last"),
    [
        (b"", b"data: [DONE]\n\n"),
        (b"data: {}\n\n", b"data:[DONE]\r\n\r\n"),
        (b"", b'event: message_stop\ndata: {"type":"message_stop"}\n\ndata: [DONE]\n\n'),
        (b"data: {}\n\n", b"event: response.completed\ndata: {}\n\n"),
        (b"", b"event: response.incomplete\ndata: {}\n\n"),
        (b"", b"event: response.failed\ndata: {}\n\n"),
        (b'data: {"type":"transcript.text.delta","delta":"a"}\n\n', b'data: {"type":"transcript.text.done"}\n\n'),
        (b'data:{"generated_text":null}\n\n', b'data:{"index":2,"generated_text":"ab"}\n\n'),
        (b'{"done":false}\n', b'{"model":"m","done":true}\n'),
        (b'{"message":{"tool_calls":[{"function":{"arguments":{"done":true}}}]},"done":false}\n', b'{"done":true}\n'),
        (b'data: {"text":"\\ndata: [DONE]"}\n\n', b""),
        (b'{"response":"\\"done\\":true","done":false}\n', b""),
        (b"event: message_delta\ndata: {}\n\n", b""),
        (b"event: response.created\ndata: {}\n\n", b""),
        (b"data: [DO", b""),
        (b"", b""),
    ],
)
def test_the_start_of_the_last_event_is_found_in_each_dialect(before: bytes, last: bytes) -> None:
    assert last_event_start(before + last) == len(before)
