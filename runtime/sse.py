"""Server-sent events that an engine wrote: one line of data each, read as their bytes come."""

DONE = b"[DONE]"


class Reader:
    """The data of each event, however the bytes were cut. Other fields and comments are passed over."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, received: bytes) -> list[bytes]:
        """The data of the events that these bytes complete."""
        *lines, self._held = (self._held + received).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]
