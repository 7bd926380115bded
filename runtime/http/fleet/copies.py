"""Files of this node's adapters and routers, for servers that lack them."""

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from runtime.http.middleware import gateway_of


async def send_copy(request: Request) -> Response:
    """An adapter's files by its digest, as one stream (`adapters.content.copies`). Raises NotFound."""
    copy = await gateway_of(request.scope).services.adapters.open_copy(request.path_params["digest"])
    return StreamingResponse(
        copy.parts(), media_type="application/octet-stream", headers={"content-length": str(copy.size)}
    )


async def send_router(request: Request) -> Response:
    """A router's files by its digest, packed. Raises NotFound."""
    data = await gateway_of(request.scope).services.routers.packed(request.path_params["digest"])
    return Response(data, media_type="application/octet-stream")
