"""Multipart bodies, part by part."""

BOUNDARY = "xBOUNDARYx"
HEADERS = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
END = f"--{BOUNDARY}--\r\n".encode()


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    extra = f'; filename="{filename}"' if filename else ""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'
    return head.encode() + value + b"\r\n"
