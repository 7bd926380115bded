"""The life of a model on this server: one enum, one table of transitions.

ABSENT → LOADING → READY ⇄ ASLEEP → DRAINING → UNLOADING → ABSENT, and FAILED with its cause and a back-off.
ASLEEP is for engines that can park their weights in host memory; none does yet, so no model enters it.

| state     | new request               | counts in the budget | leaves by                                        |
|-----------|---------------------------|----------------------|--------------------------------------------------|
| ABSENT    | queued, load is asked for | no                   | a load                                           |
| LOADING   | queued                    | yes, as estimated    | loaded, failed; ABSENT once its files are fetched|
| READY     | queued or started         | yes, as measured     | eviction, idle time-out, unload; death: UNLOADING|
| ASLEEP    | queued, wake is asked for | what it still holds  | wake, eviction                                   |
| DRAINING  | queued, waits for a reload| yes                  | last lease released, or the drain deadline       |
| UNLOADING | queued                    | yes                  | process gone, memory seen to be back; or FAILED  |
| FAILED    | refused with Retry-After  | no                   | back-off over: the next request loads again      |
"""

from enum import StrEnum


class ModelState(StrEnum):
    ABSENT = "absent"
    LOADING = "loading"
    READY = "ready"
    ASLEEP = "asleep"
    DRAINING = "draining"
    UNLOADING = "unloading"
    FAILED = "failed"


S = ModelState
TRANSITIONS: dict[ModelState, frozenset[ModelState]] = {
    S.ABSENT: frozenset({S.LOADING}),
    S.LOADING: frozenset({S.READY, S.FAILED, S.UNLOADING, S.ABSENT}),
    S.READY: frozenset({S.ASLEEP, S.DRAINING, S.FAILED, S.UNLOADING}),
    S.ASLEEP: frozenset({S.LOADING, S.READY, S.UNLOADING, S.FAILED}),
    S.DRAINING: frozenset({S.UNLOADING, S.FAILED}),
    S.UNLOADING: frozenset({S.ABSENT, S.FAILED}),
    S.FAILED: frozenset({S.LOADING, S.ABSENT}),
}
HOLDS_MEMORY = frozenset({S.LOADING, S.READY, S.ASLEEP, S.DRAINING, S.UNLOADING})


def check_transition(old: ModelState, new: ModelState) -> None:
    """Raise RuntimeError for a transition that the table does not have: a bug, never a client's fault."""
    if new not in TRANSITIONS[old]:
        raise RuntimeError(f"no transition from {old.value} to {new.value}")
