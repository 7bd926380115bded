"""Playground: two chats side by side, embeddings, rerank, speech; requests to copy."""

from console.host import Context, Page, Visit
from tenants.caller import Scope


async def context(visit: Visit) -> Context:
    models = visit.host.models()
    names = {task: [m.id for m in models if m.task == task] for task in ("chat", "embed", "rerank", "transcribe")}
    caller = visit.caller
    routers = [
        name
        for router in visit.host.routers()
        if router.definition.get("task", "chat") == "chat" and visit.host.may_route(router.name)
        for name in (router.name, *(f"{router.name}@{alias}" for alias in router.aliases))
    ]
    targets = [
        name
        for model in models
        if model.task == "chat"
        for name in (
            model.id,
            *(f"{model.id}:{adapter}" for adapter in model.adapters if caller.sees(model.id, adapter)),
        )
    ]
    return {"names": names, "targets": targets, "routers": routers, "may_explain": visit.may(Scope.MODELS)}


PAGE = Page("Playground", 40, frozenset((Scope.INFER,)), context)
