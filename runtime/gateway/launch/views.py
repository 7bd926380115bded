"""Views of additions and edits, which are also part of the OpenAPI document."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from launch.request import AddedModel, Step
from registry.recipes.definition import Task
from runtime.gateway.launch.additions import Preview, advice
from runtime.gateway.views.values import Count, ModelView, PlanView, plan_view

Fit = Annotated[
    Literal["fits", "fits_after", "does_not_fit"],
    Meta(description="fits_after: once the plan's victims have left, or a model of its name that is being removed."),
]


class ChoiceView(msgspec.Struct, frozen=True):
    key: str
    value: Annotated[str, Meta(description="The value as YAML, on one line.")]
    why: str


class ProposalView(msgspec.Struct, frozen=True, kw_only=True):
    """A proposed recipe with a reason for each value, and whether it fits this machine."""

    object: Literal["model.proposal"] = "model.proposal"
    id: str
    task: Task
    engine: str
    recipe: Annotated[str, Meta(description="The recipe as YAML, with its reasons as comments.")]
    choices: list[ChoiceView]
    notes: list[str]
    fit: Fit
    advice: Annotated[str, Meta(description="The same in words, with what would fit if it does not.")]
    plan: PlanView
    lacking_bytes: Annotated[int, Meta(ge=0, description="Bytes that are missing for it to fit.")]
    weights_bytes: Count
    fetch_bytes: Annotated[int, Meta(ge=0, description="Bytes that come from a hub first.")]


class ModelAddedView(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["model.added"] = "model.added"
    id: str
    new: Annotated[bool, Meta(description="False: it was there already, and nothing was changed.")]
    model: ModelView


class ModelStepView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event of a streamed addition."""

    object: Literal["model.step"] = "model.step"
    phase: Literal["looking", "waiting", "added", "fetching", "converting", "done"]
    model: str = ""
    completed: int = 0
    total: int | None = None
    detail: str = ""


class ModelEditedView(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["model.edited"] = "model.edited"
    id: str
    version: Count
    before: Annotated[int, Meta(description="The version until now; the same where nothing was changed.")]
    changed: list[str]
    waits: Annotated[bool, Meta(description="It counts once nobody uses the model any more.")]


class ModelRemovedView(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["model.removed"] = "model.removed"
    id: str
    deleted: bool = True
    versions: list[int]
    still: Annotated[int | None, Meta(description="The version of the server's own files that is served now.")]
    freed_bytes: Annotated[
        Count, Meta(description="Bytes of deleted files, which came from a hub or were converted here.")
    ]


class ReloadedView(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["recipes.read"] = "recipes.read"
    changed: Annotated[bool, Meta(description="False: a file has a fault, so everything is as it was.")]
    models: list[str]
    faults: list[str]  # recipes that were skipped, or why nothing was changed


def proposal_view(preview: Preview) -> ProposalView:
    recipe, plan = preview.recipe, preview.plan
    fit: Literal["fits", "fits_after", "does_not_fit"] = "fits"
    if plan.verdict == "impossible":
        fit = "does_not_fit"
    elif plan.victims or plan.verdict == "wait" or preview.is_leaving:
        fit = "fits_after"
    return ProposalView(
        id=recipe.id,
        task=recipe.task,
        engine=recipe.engine.name,
        recipe=preview.text,
        choices=[ChoiceView(c.key, _words(c.value), c.why) for c in preview.proposal.choices],
        notes=list(preview.proposal.notes),
        fit=fit,
        advice=advice(preview),
        plan=plan_view(plan),
        lacking_bytes=preview.short_by,
        weights_bytes=preview.proposal.estimate.weights * preview.proposal.estimate.devices,
        fetch_bytes=preview.to_fetch,
    )


def _words(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def step_view(step: Step | AddedModel) -> ModelStepView:
    if isinstance(step, AddedModel):
        return ModelStepView(phase="done", model=step.recipe.id, detail="new" if step.new else "unchanged")
    return ModelStepView(
        phase=step.phase, model=step.model, completed=step.completed, total=step.total, detail=step.detail
    )
