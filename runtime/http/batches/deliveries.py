"""Deliveries of a batch's events: list and repeat them."""

from collections.abc import Sequence
from typing import Any

from fastapi.responses import Response

from batches.callbacks.records import Delivery, DeliveryState
from runtime.http.admin.bodies import json_answer
from runtime.http.batches.endpoints import PATH, SURFACE, Id
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.route import RouteGroup
from runtime.http.schema import CONFLICT, COUNT, INTEGER, MANAGEMENT, STRING, array, component, nullable, one_of, record
from tenants.caller import Scope

route = RouteGroup("Batches")
DELIVERIES = component(
    "BatchDeliveries",
    record(
        {
            "object": {"const": "list"},
            "data": array(
                record(
                    {
                        "id": {**STRING, "description": "The event's, and the `webhook-id` of each attempt."},
                        "object": {"const": "delivery"},
                        "event_type": STRING,
                        "url": STRING,
                        "state": {
                            **one_of(*(state.value for state in DeliveryState)),
                            "description": "`dead`: not tried again.",
                        },
                        "attempts": COUNT,
                        "status_code": {**nullable(INTEGER), "description": "Status of the last answer."},
                        "error": {**nullable(STRING), "description": "Why the last attempt failed."},
                        "created_at": COUNT,
                        "next_attempt_at": nullable(COUNT),
                        "ended_at": nullable(COUNT),
                    }
                )
            ),
        }
    ),
)


@route("GET", f"{PATH}/{{batch_id}}/deliveries", scope=Scope.INFER, answer=DELIVERIES, errors=(*MANAGEMENT, 429, 503))
async def list_deliveries(gateway: CurrentGateway, context: CurrentContext, batch_id: Id) -> Response:
    """List deliveries of a batch.

    There is one for its `callback_url` and each webhook, once it has ended. They are listed for 30 days.
    """
    service = gateway.services.batches
    batch = await service.get(context.caller.team, batch_id, SURFACE)
    return json_answer(_list(await service.callbacks.deliveries(batch)))


@route("POST", f"{PATH}/{{batch_id}}/redeliver", scope=Scope.INFER, answer=DELIVERIES, errors=(*CONFLICT, 429, 503))
async def redeliver(gateway: CurrentGateway, context: CurrentContext, batch_id: Id) -> Response:
    """Send a batch's events again.

    Failed, delivered and waiting deliveries are all sent at once, with their original `webhook-id`s.
    """
    service = gateway.services.batches
    batch = await service.get(context.caller.team, batch_id, SURFACE)
    return json_answer(_list(await service.callbacks.redeliver(batch)))


def _list(deliveries: Sequence[Delivery]) -> dict[str, Any]:
    return {"object": "list", "data": [_view(delivery) for delivery in deliveries]}


def _view(delivery: Delivery) -> dict[str, Any]:
    is_pending = delivery.state is DeliveryState.PENDING
    return {
        "id": delivery.id,
        "object": "delivery",
        "event_type": delivery.event,
        "url": delivery.url,
        "state": delivery.state.value,
        "attempts": delivery.attempts,
        "status_code": delivery.status,
        "error": delivery.error or None,
        "created_at": int(delivery.created),
        "next_attempt_at": int(delivery.due) if is_pending else None,
        "ended_at": None if delivery.ended is None else int(delivery.ended),
    }
