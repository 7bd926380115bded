"""Choose the replica that gets a request. A pure policy: no clock, no I/O.

| term      | meaning                                                                                              |
|-----------|------------------------------------------------------------------------------------------------------|
| cost      | seconds until the request's first token there: its turn, its adapter if that is in no place, and the |
|           | prompt where its beginning is not cached                                                             |
| home      | the replica on which a key's highest random weight falls (rendezvous hashing): each request has one  |
|           | for the beginning of its prompt, and one for its adapter. A replica that comes or goes moves only    |
|           | the keys that it gets or had                                                                         |
| warm      | the home of the prompt is taken to have its beginning cached, any other not                          |

The same numbers stand at the code:

1. A request goes to the home that costs less, if it has both; the adapter's if they cost the same.
2. It leaves its home for the replica of least cost (then of least work) where the home costs more than that one by more
   than what is lost there: the seconds for the adapter and the prompt that the home saves.
3. It leaves its home, too, where it would have to wait, the home has more than MOST_LOAD times the mean work, and its
   turn comes no later elsewhere. A home that starts it at once is never too busy: at a low load one request more is a
   large part of the mean.

| reason    | the request went there because                                   |
|-----------|------------------------------------------------------------------|
| `prompt`  | it is the home of its prompt's beginning (1)                     |
| `adapter` | it is the home of its adapter (1)                                |
| `soonest` | it answers soonest, and the request has no home, or left it (2)  |
| `busy`    | its home has far more work than the others (3)                   |
| `free`    | it was free before the one that the request had waited for       |
| `only`    | no other one was ready                                           |
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
"""Bytes of a prompt that decide its home."""
PREFIX_FIELDS = ("system", "instructions", "messages", "prompt", "input")

Weights = tuple[int, ...]
"""A key's random weight for each number that a replica may have, from one digest of the key."""


Reason = Literal["prompt", "adapter", "soonest", "busy", "free", "only"]


class ReplicaState(NamedTuple):
    """A replica that is ready, as one request finds it."""

    number: int
    """The replica's number, from 1 to MOST_REPLICAS; 0 where its homes are known (`choose_near`)."""
    start: float
    """Predicted seconds until its turn; 0: at once."""
    work: float
    """Work that waits there and that runs."""
    adapter: float = 0.0
    """Seconds until its adapter has a place; 0: it has one, or there is no adapter."""


class HomeKeys(NamedTuple):
    """Weights of what a replica may have at hand for a request; None: nothing."""

    prompt: Weights | None = None
    adapter: Weights | None = None


def choose(replicas: Sequence[ReplicaState], keys: HomeKeys, prefill: float) -> tuple[int, Reason]:
    """The position of the replica for a request, and why it; in less than 5 µs for eight.

    Args:
        replicas: at least one.
        keys: of the request.
        prefill: seconds to read the prompt where its beginning is not cached.
    """
    prompt, adapter = keys
    home = -1 if adapter is None else _home(replicas, adapter)
    return choose_near(replicas, home, -1 if prompt is None else _home(replicas, prompt), prefill)


def choose_near(replicas: Sequence[ReplicaState], home: int, warm: int, prefill: float) -> tuple[int, Reason]:
    """`choose`, where it is known which replica is the home of the adapter, and which that of the prompt.

    Args:
        home, warm: positions; -1: there is none.
    """
    costs = [replica[1] + replica[3] for replica in replicas]
    if warm >= 0:
        costs[warm] -= prefill  # all others have it to read
        if home < 0 or costs[warm] < costs[home]:  # 1
            home = warm
    lowest = min(costs)
    if home < 0:
        return _least(replicas, costs, lowest), "soonest"
    there = replicas[home]
    if costs[home] > lowest:  # 2
        least = _least(replicas, costs, lowest)
        loss = max(0.0, replicas[least].adapter - there.adapter) + (prefill if home == warm else 0.0)
        if costs[home] - lowest > loss:
            return least, "soonest"
    if there.start > 0 and there.work * len(replicas) > MOST_LOAD * sum([replica[2] for replica in replicas]):  # 3
        costs = [
            cost if one[1] <= there[1] and one is not there else inf for one, cost in zip(replicas, costs, strict=True)
        ]
        if (lowest := min(costs)) < inf:
            return _least(replicas, costs, lowest), "busy"
    return home, "prompt" if home == warm else "adapter"


def _home(replicas: Sequence[ReplicaState], weights: Weights) -> int:
    """The position of the highest random weight."""
    of_each = [weights[replica[0]] for replica in replicas]
    return of_each.index(max(of_each))


def _least(replicas: Sequence[ReplicaState], costs: list[float], lowest: float) -> int:
    """The position of the lowest cost, and of the least work where several have it."""
    first = costs.index(lowest)
    if costs.count(lowest) == 1:
        return first
    return min((i for i, cost in enumerate(costs) if cost == lowest), key=lambda i: replicas[i].work)


def keys_of(body: Mapping[str, Any] | None, salt: str, digest: str | None) -> HomeKeys:
    """The keys of a request.

    Args:
        body: of a chat call; None: its engine caches no prompts.
        salt: of the team, since teams share no cached prompts.
        digest: of its adapter, which has its own cached prompts.
    """
    adapter = None if digest is None else _weigh(digest.encode())
    if body is None:
        return HomeKeys(None, adapter)
    prefix = prefix_of(body)
    return HomeKeys(_weigh(b"\0".join((salt.encode(), (digest or "").encode(), prefix))), adapter)


def prefix_of(body: Mapping[str, Any]) -> bytes:
    """The first PREFIX_BYTES of a prompt, as JSON, or a little more."""
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
