"""Propose a recipe from facts about files, with a reason for each value. Pure."""

import logging
from dataclasses import dataclass

from launch.files.detect import detect
from launch.files.listing import Listing, weights_of
from launch.proposal.chat import ChatFacts, propose_chat
from launch.proposal.draft import REQUESTED, Draft, DraftValue, Machine
from launch.proposal.text import propose_speech, propose_text
from launch.request import ModelRequest, proposed_id
from models.engines import DeviceKind
from models.estimate import ODD, Estimate, estimate_of
from registry.base.wording import quoted
from registry.errors import BadRequest, Unfit
from registry.files.context import settle_by_size
from registry.files.shape import shape_of
from registry.files.weights import Weights
from registry.names import MODEL, MODEL_RULE
from registry.recipes.definition import Recipe, Task
from registry.recipes.fields import GgufSource, HubSource, PackageSource, PathSource, Source

log = logging.getLogger("roundhouse.launch")
SOURCE_KEYS = frozenset({"source", "version"})
"""Keys that cannot be overridden: the source has its own field, and versions are numbered."""


@dataclass(frozen=True, slots=True)
class Proposal:
    recipe: Recipe
    choices: tuple[DraftValue, ...]
    notes: tuple[str, ...]
    estimate: Estimate


def propose(
    listing: Listing, source: Source, request: ModelRequest, machine: Machine, *, weights: Weights | None = None
) -> Proposal:
    """Propose a recipe. Raises Unfit if the model cannot be served, BadRequest for an invalid id.

    Args:
        weights: from the files' headers; default: estimated from the files' sizes.
    """
    try:
        return _proposed(listing, source, request, machine, weights)
    except ODD as error:
        log.info("a model's files hold impossible values", exc_info=error, extra={"source": listing.where})
        raise Unfit(
            f"The files of {listing.where} hold impossible values ({type(error).__name__}): check its config.json.",
            code="bad_config",
            param="source",
        ) from error


def _proposed(
    listing: Listing, source: Source, request: ModelRequest, machine: Machine, weights: Weights | None
) -> Proposal:
    if wrong := {key for key in request.overrides if key.partition(".")[0] in SOURCE_KEYS}:
        raise BadRequest(f"'{min(wrong)}' cannot be set here: name the source itself.", param="overrides")
    requested_id = request.id or request.overrides.get("id")
    if request.id and request.overrides.get("id") not in (None, request.id):
        raise BadRequest("Name the id once.", param="id")
    id_ = str(requested_id or proposed_id(source))
    if not MODEL.match(id_):
        raise BadRequest(f"{quoted(id_)} is not a valid id: {MODEL_RULE}.", param="id")
    detected = detect(listing)
    weights = weights or weights_of(listing)
    draft = Draft({key: value for key, value in request.overrides.items() if key != "id"})
    draft.pick("id", id_, REQUESTED if requested_id else "from the source's name")
    draft.pick("version", 1, "the first one")
    draft.pick("task", detected.task.value, detected.why)
    draft.pick("source", source.model_dump(), _source_words(source))
    draft.pick("engine.name", detected.engine, f"the engine for task {detected.task.value}")
    match detected.task:
        case Task.CHAT:
            facts = ChatFacts(detected, listing, weights, _name(source))
            propose_chat(draft, facts, machine, request.working_set)
        case Task.TRANSCRIBE:
            propose_speech(draft, listing, weights, machine)
        case _:
            propose_text(draft, detected, listing, machine)
    recipe = draft.recipe()
    return Proposal(
        recipe,
        draft.all_choices(),
        (*detected.notes, *draft.notes),
        estimate_for(recipe, listing, weights, machine.kind),
    )


def estimate_for(recipe: Recipe, listing: Listing, weights: Weights, kind: DeviceKind) -> Estimate:
    """Estimate the model's memory before its files are fetched."""
    speech = recipe.task is Task.TRANSCRIBE
    shape = None if speech else shape_of(listing.json("config.json"), f"config.json of {listing.where}")
    return estimate_of(settle_by_size(recipe, weights.bytes, kind), weights, shape, kind)


def _name(source: Source) -> str:
    match source:
        case GgufSource():
            return f"{source.hub}/{source.file}"
        case HubSource():
            return source.hub
        case PackageSource():
            return f"{source.package}/{source.inside}"
        case PathSource():
            return source.path


def _source_words(source: Source) -> str:
    match source:
        case HubSource():
            return "at a commit, so that the same weights are always served"
        case PackageSource():
            return "a folder inside an installed package"
        case PathSource():
            return "a folder on the server's machine; it stays where it is"
