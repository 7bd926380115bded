"""A line of a batch as a request, and the worker that runs lines so."""

from collections.abc import Mapping
from contextlib import aclosing

from batches.running import LineAttempt
from batches.worker import BatchWorker, RunLine
from runtime.gateway.context import RequestContext
from runtime.gateway.core import Gateway
from runtime.http.dialect import Endpoint
from runtime.http.routes import ENDPOINTS
from runtime.http.serving import serve
from tenants.caller import ServiceClass
from tenants.ledger.rows import BATCH


def line_runner(gateway: Gateway, endpoints: Mapping[str, Endpoint]) -> RunLine:
    """The function that answers a line. endpoints: by path."""

    async def run(attempt: LineAttempt) -> None:
        """The attempt gets the whole answer, before the end of its row in the ledger."""
        context = RequestContext(attempt.request, attempt.caller, ServiceClass.BATCH, source=BATCH, line=attempt)
        async with aclosing(serve(gateway, context, endpoints[attempt.batch.endpoint], attempt.body)) as parts:
            async for _ in parts:
                pass

    return run


def batch_worker(gateway: Gateway) -> BatchWorker:
    """The worker of a gateway's batches, not yet started."""
    services = gateway.services
    worker = BatchWorker(
        services.batches.store,
        line_runner(gateway, ENDPOINTS),
        services.batches.read_line,
        services.line_rooms,
        services.callers.by_id,
        is_open=lambda: gateway.phase == "ready",
    )
    services.batches.set_wake(worker.wake)
    return worker
