"""A line of a batch as a request: what the worker of batches runs."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing

from batches.running import LineAttempt
from runtime.gateway.context import RequestContext
from runtime.gateway.core import Gateway
from runtime.http.dialect import Endpoint
from runtime.http.serving import serve
from tenants.caller import ServiceClass
from tenants.ledger.rows import BATCH


def line_runner(gateway: Gateway, endpoints: Mapping[str, Endpoint]) -> Callable[[LineAttempt], Awaitable[None]]:
    """The function that answers a line. endpoints: by path."""

    async def run(attempt: LineAttempt) -> None:
        """The attempt gets the whole answer, before the end of its row in the ledger."""
        context = RequestContext(attempt.request, attempt.caller, ServiceClass.BATCH, source=BATCH, line=attempt)
        async with aclosing(serve(gateway, context, endpoints[attempt.batch.endpoint], attempt.body)) as parts:
            async for _ in parts:
                pass

    return run
