"""Events of an engine, however its bytes are cut."""

from hypothesis import given
from hypothesis import strategies as st

from models.sse import DONE, Reader, data_of, with_data

SENT = (
    b'\xef\xbb\xbfdata: {"c": 3}\n\n: a comment\n\nevent: x\ndata: {"a": 1}\r\n\r\ndata:{"b": "data: 2"}\n\n'
    b"data: 4\n\r\ndata: 5\r\n\ndata: 6\r\rdata: [DONE]\n\n"
)


@given(st.lists(st.integers(0, len(SENT))))
def test_data_is_the_same_however_it_is_cut(cuts: list[int]) -> None:
    ends = sorted({*cuts, len(SENT)})
    reader, found = Reader(), []
    for begin, end in zip([0, *ends], ends, strict=False):
        found += reader.feed(SENT[begin:end])
    assert found == [b'{"c": 3}', b'{"a": 1}', b'{"b": "data: 2"}', b"4", b"5", b"6", DONE]


def test_an_event_comes_with_the_empty_line_behind_it() -> None:
    reader = Reader()
    assert reader.feed(b"data: 1") == reader.feed(b"2\n") == []
    assert reader.feed(b"\n") == [b"12"]


def test_lines_of_data_stay_lines_of_data() -> None:
    event = b"event: x\ndata: {\ndata: }\n\n"
    assert with_data(event, data_of(event)) == event
