"""The scenario of a simulation. A YAML file has the same fields."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from registry.errors import BadRequest

Part = Annotated[float, Meta(ge=0, le=1)]
Seconds = Annotated[float, Meta(ge=0, le=86_400)]

FaultKind = Literal["node", "rack", "cut", "late", "slow", "database", "upgrade", "placers"]


class SimFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An injected fault.

    | kind       | effect                                                   |
    |------------|----------------------------------------------------------|
    | `node`     | processes are killed, and connections are reset          |
    | `rack`     | a whole rack loses power, and nothing answers            |
    | `cut`      | nodes are unreachable for some seconds, but keep running |
    | `late`     | reports arrive up to 5 s late                            |
    | `slow`     | nodes take twice as long from then on                    |
    | `database` | no blocks and no placement                               |
    | `upgrade`  | all nodes drain and restart, a few at a time             |
    | `placers`  | a second server also places                              |
    """

    kind: FaultKind
    at: Seconds
    seconds: Annotated[float, Meta(gt=0, le=86_400)] = 30.0
    """Duration, for faults that end."""
    nodes: Annotated[int, Meta(ge=1, le=4096)] = 1
    """Number of affected nodes; for a rack, all of its nodes."""


class Times(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times of an engine, in seconds.

    Adapter files are on all nodes that have their model, because nodes copy them once they are registered, and fronts
    send no requests to nodes without them.
    """

    step: Annotated[float, Meta(gt=0, le=10)] = 0.012
    """Time of a step, without what each request adds."""
    step_more: Annotated[float, Meta(ge=0, le=1)] = 0.0004
    """Additional time of a step for each request on the device."""
    prompt_rate: Annotated[float, Meta(ge=1, le=1e6)] = 8000.0
    """Prompt tokens that are prefilled per second."""
    stage: Annotated[float, Meta(ge=0, le=10)] = 0.15
    place: Annotated[float, Meta(ge=0, le=10)] = 0.05
    load: Annotated[float, Meta(ge=0, le=3600)] = 10.0
    load_gib: Annotated[float, Meta(ge=0, le=100)] = 0.5
    """Seconds for each GiB of a model."""
    hop: Annotated[float, Meta(ge=0, le=1)] = 0.0005


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fleet, its traffic and its faults."""

    nodes: Annotated[int, Meta(ge=1, le=4096)] = 64
    seconds: Annotated[float, Meta(ge=1, le=86_400)] = 60.0
    seed: Annotated[int, Meta(ge=0, le=1 << 32)] = 1
    fronts: Annotated[int, Meta(ge=1, le=64)] = 4
    load: Annotated[float, Meta(gt=0, le=2)] = 0.7
    """Mean work of all nodes, as a part of their capacity."""
    shape: Literal["steady", "bursts", "day"] = "steady"
    """Arrivals: a Poisson process; one with twice the rate for 2 s of every 20 s; or a day's curve over `seconds`."""
    models: Annotated[int, Meta(ge=1, le=1000)] = 50
    model_skew: Annotated[float, Meta(ge=0, le=4)] = 1.1
    """Exponent of Zipf's law for the popularity of models."""
    adapters: Annotated[int, Meta(ge=0, le=100_000)] = 2000
    adapter_skew: Annotated[float, Meta(ge=0, le=4)] = 0.9
    with_adapter: Part = 0.8
    """Part of requests with an adapter."""
    shared_prefix: Part = 0.3
    """Part of requests whose prompt beginning is shared."""
    prompt_tokens: Annotated[int, Meta(ge=1, le=100_000)] = 800
    answer_tokens: Annotated[int, Meta(ge=1, le=100_000)] = 150
    flood: Annotated[float, Meta(ge=0, le=10)] = 0.5
    """The flooder's requests beyond its limit, as a part of all others."""
    flood_limit: Part = 0.05
    """The flooder's limit, as a part of all other requests."""
    device_gib: Annotated[int, Meta(ge=1, le=10_000)] = 80
    devices: Annotated[int, Meta(ge=1, le=64)] = 1
    at_once: Annotated[int, Meta(ge=1, le=4096)] = 16
    """Requests that one replica runs at once."""
    places: Annotated[int, Meta(ge=1, le=4096)] = 16
    rack: Annotated[int, Meta(ge=1, le=4096)] = 32
    """Nodes in a rack."""
    faults: Annotated[tuple[SimFault, ...], Meta(max_length=1000)] = ()
    times: Times = Times()


def scenario_of(nodes: int) -> Scenario:
    """Return the scenario of `--nodes`, in which a rack is lost after a third of the time.

    A small fleet has fewer models and adapters, since its nodes could not hold fifty models.
    """
    rack, models, adapters = min(32, max(1, nodes // 8)), min(50, max(1, nodes // 2)), min(2000, 20 * nodes)
    return Scenario(nodes=nodes, rack=rack, models=models, adapters=adapters, faults=(SimFault("rack", 20.0),))


def read_scenario(path: Path) -> Scenario:
    """Read a scenario. Raises BadRequest if it is invalid or cannot be read."""
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=Scenario)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{path} is not a valid scenario: {error}.") from None
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}.") from None
