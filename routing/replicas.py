"""Chooses the replica that gets a request. Pure: no clock, no I/O.

| term      | meaning                                                                                              |
|-----------|------------------------------------------------------------------------------------------------------|
| cost      | seconds until the request's first token there: waiting for its turn, for its adapter unless that is  |
|           | in a place, and reading the prompt unless its start is cached                                        |
| home      | the replica with a key's highest random weight (rendezvous hashing). Each request has one for the    |
|           | start of its prompt, and one for its adapter. Adding or removing a replica moves only the keys that  |
|           | it gets or had                                                                                       |
| warm      | the start of the prompt is assumed to be cached at the prompt's home and nowhere else                |

The code uses the same numbers:

1. A request with two homes goes to the cheaper one; to the adapter's if they cost the same.
2. It leaves its home for the replica of least cost (then of least work) if that saves more than is lost: the seconds
   for adapter and prompt that the home saves.
3. It also leaves its home if it would have to wait there, the home has more than MOST_LOAD times the mean work, and
   another replica's turn comes no later. A home that starts it at once is never too busy: at low load, a single request
   is a large part of the mean.

| reason    | why the request went there                                      |
|-----------|-----------------------------------------------------------------|
| `prompt`  | it is the home of the start of its prompt (1)                   |
| `adapter` | it is the home of its adapter (1)                               |
| `soonest` | it answers soonest, and the request has no home or left it (2)  |
| `busy`    | its home has far more work than the others (3)                  |
| `free`    | it became free before the replica that the request waited for   |
| `only`    | no other replica was ready                                      |
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from math import inf
from struct import unpack
from typing import Any, Literal, NamedTuple

import msgspec

from registry.recipes.definition import MOST_REPLICAS

MOST_LOAD = 1.25
PREFIX_BYTES = 1024
"""Bytes of a prompt that determine its home."""
PREFIX_FIELDS = ("system", "instructions", "messages", "prompt", "input")

Weights = tuple[int, ...]
"""A key's random weight for each possible replica number, from one digest of the key."""


Reason = Literal["prompt", "adapter", "soonest", "busy", "free", "only"]


class ReplicaState(NamedTuple):
    """A ready replica, as seen by one request."""

    number: int
    """The replica's number, from 1 to MOST_REPLICAS. 0 if homes are known (`choose_near`)."""
    start: float
    """Predicted seconds until its turn. 0 for at once."""
    work: float
    """Running and waiting work."""
    adapter: float = 0.0
    """Seconds until its adapter has a place. 0 if it has one, or there is no adapter."""


class HomeKeys(NamedTuple):
    """Weights of what a replica may have cached for a request. None if there is nothing."""

    prompt: Weights | None = None
    adapter: Weights | None = None


def choose(replicas: Sequence[ReplicaState], keys: HomeKeys, prefill: float) -> tuple[int, Reason]:
    """Return the position of the replica for a request, and why. Takes less than 5 µs for eight.

    Args:
        replicas: at least one.
        keys: of the request.
        prefill: seconds to read the prompt if its start is not cached.
    """
    prompt, adapter = keys
    home = -1 if adapter is None else _home(replicas, adapter)
    return choose_near(replicas, home, -1 if prompt is None else _home(replicas, prompt), prefill)


def choose_near(replicas: Sequence[ReplicaState], home: int, warm: int, prefill: float) -> tuple[int, Reason]:
    """Like `choose`, with the positions of the homes given.

    Args:
        home: position of the adapter's home, -1 for none.
        warm: position of the prompt's home, -1 for none.
    """
    costs = [replica[1] + replica[3] for replica in replicas]
    if warm >= 0:
        costs[warm] -= prefill  # all others have to read it
        if home < 0 or costs[warm] < costs[home]:  # 1
            home = warm
    lowest = min(costs)
    if home < 0:
        return _least(replicas, costs, lowest), "soonest"
    at_home = replicas[home]
    if costs[home] > lowest:  # 2
        least = _least(replicas, costs, lowest)
        loss = max(0.0, replicas[least].adapter - at_home.adapter) + (prefill if home == warm else 0.0)
        if costs[home] - lowest > loss:
            return least, "soonest"
    if at_home.start > 0 and at_home.work * len(replicas) > MOST_LOAD * sum([replica[2] for replica in replicas]):  # 3
        costs = [
            cost if one[1] <= at_home[1] and one is not at_home else inf
            for one, cost in zip(replicas, costs, strict=True)
        ]
        if (lowest := min(costs)) < inf:
            return _least(replicas, costs, lowest), "busy"
    return home, "prompt" if home == warm else "adapter"


def _home(replicas: Sequence[ReplicaState], weights: Weights) -> int:
    """Return the position of the highest random weight."""
    of_each = [weights[replica[0]] for replica in replicas]
    return of_each.index(max(of_each))


def _least(replicas: Sequence[ReplicaState], costs: list[float], lowest: float) -> int:
    """Return the position of the lowest cost, and of the least work among several."""
    first = costs.index(lowest)
    if costs.count(lowest) == 1:
        return first
    return min((i for i, cost in enumerate(costs) if cost == lowest), key=lambda i: replicas[i].work)


def keys_of(body: Mapping[str, Any] | None, salt: str, digest: str | None) -> HomeKeys:
    """Return the keys of a request.

    Args:
        body: of a chat request. None if its engine does not cache prompts.
        salt: of the team, because teams share no cached prompts.
        digest: of its adapter, which has separate cached prompts.
    """
    adapter = None if digest is None else _weigh(digest.encode())
    if body is None:
        return HomeKeys(None, adapter)
    prefix = prefix_of(body)
    return HomeKeys(_weigh(b"\0".join((salt.encode(), (digest or "").encode(), prefix))), adapter)


def prefix_of(body: Mapping[str, Any]) -> bytes:
    """Return the first PREFIX_BYTES of a prompt's JSON."""
    parts = bytearray()
    for field in PREFIX_FIELDS:
        value = body.get(field)
        if value is None:
            continue
        for item in value if isinstance(value, list) else (value,):
            parts += item[:PREFIX_BYTES].encode() if isinstance(item, str) else msgspec.json.encode(item)
            if len(parts) >= PREFIX_BYTES:
                return bytes(parts[:PREFIX_BYTES])
    return bytes(parts)


def _weigh(data: bytes) -> Weights:
    return unpack(f"{MOST_REPLICAS + 1}H", blake2b(data, digest_size=2 * (MOST_REPLICAS + 1)).digest())
