"""Server-sent events of an answer."""

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from registry import errors
from registry.errors import RoundhouseError
from runtime.cli.failures import ServerError
from runtime.cli.remote.client import Json, failure_of
from runtime.cli.remote.progress import Bar

if TYPE_CHECKING:
    from httpx import Response

_PROGRESS = re.compile(rb"^: (\S+) (.+) (\d+)%$", re.MULTILINE)


def events(response: "Response", progress_bar: Bar) -> Iterator[Json]:
    """Iterate over the objects of the events until the last one. Comments about a load are shown in the bar.

    Raises RefusedError or ServerError for an error event, ServerError for a stream that ends early.
    """
    import httpx
    from httpx_sse import EventSource, SSEError

    # no other headers, because the content is already decompressed
    kind = {"content-type": response.headers.get("content-type", "")}
    plain_response = httpx.Response(
        response.status_code, headers=kind, content=_drawn(response.iter_bytes(), progress_bar)
    )
    try:
        for event in EventSource(plain_response).iter_sse():
            if event.data == "[DONE]":
                return
            result = json.loads(event.data)
            if "error" in result:
                raise failure_of(result, _status(result["error"]))
            yield result
            if result.get("type") == "transcript.text.done":  # the last of a transcription
                return
    except SSEError as error:
        raise ServerError(f"The answer is not an event stream: {error}.") from None
    except ValueError:
        raise ServerError("The answer is not an event stream: an event is not JSON.") from None
    raise ServerError("The answer is incomplete, because its stream ended early. Send the request again.")


def _status(error: Any) -> int:
    """Return the status of an error within a stream, by its code or type; vLLM's code is a number."""
    code, kind = (error.get("code"), error.get("type")) if isinstance(error, dict) else (None, None)
    if isinstance(code, int):
        return code
    kinds = [var for var in vars(errors).values() if isinstance(var, type) and issubclass(var, RoundhouseError)]
    result = [kind for kind in kinds if kind.code == code] or [one for one in kinds if one.type == kind]
    return result[0].status if result else 500


def _drawn(chunks: Iterator[bytes], progress_bar: Bar) -> Iterator[bytes]:
    """Pass the bytes on unchanged, and show their progress comments, which httpx-sse skips."""
    for chunk in chunks:
        for model, phase, percent in _PROGRESS.findall(chunk):
            progress_bar.show(f"{model.decode()}: {phase.decode()}", int(percent) / 100)
        yield chunk
