"""How long a client waits for a model that is not resident, from request headers.

| header                      | while the model loads                                                          |
|-----------------------------|--------------------------------------------------------------------------------|
| (none)                      | the request waits, at most the recipe's queue.max_wait                         |
| Prefer: respond-async       | 202 at once with Location: /v1/models/{id}, which shows phase and percent      |
| Prefer: wait=N              | waits N seconds at most, then 503 with Retry-After from the expected load time |
| Prefer: handling=strict     | as without; hints that the model cannot follow are refused, not left out       |
| X-Roundhouse-Progress: sse  | a chat stream starts at once: SSE comments tell the progress until the answer  |

Prefer is RFC 7240. With the last one the status line leaves before the answer is known, so a failure is the stream's
last event: that is why a client must ask for it.
"""

import re
from collections.abc import Iterable

from runtime.gateway.context import Preference

_WAIT = re.compile(r"^wait\s*=\s*\"?(\d{1,6})\"?$")


def parse(headers: Iterable[tuple[bytes, bytes]]) -> Preference:
    """Raw ASGI headers to a preference; what is not understood is ignored, as RFC 7240 says."""
    respond_async, wait, progress, strict = False, None, False, False
    for name, value in headers:
        if name == b"prefer":
            for part in value.decode("latin-1").split(","):
                token = part.strip().lower()
                if token == "respond-async":
                    respond_async = True
                elif token in ("handling=strict", 'handling="strict"'):
                    strict = True
                elif match := _WAIT.match(token):
                    wait = float(match.group(1))
        elif name == b"x-roundhouse-progress":
            progress = value.strip().lower() == b"sse"
    return Preference(respond_async, wait, progress and not respond_async, strict)  # a 202 needs its status line
