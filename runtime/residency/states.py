"""The lifecycle of a model on this server: one enum and one table of transitions.

ABSENT → LOADING → READY → DRAINING → UNLOADING → ABSENT; DRAINING → ASLEEP → LOADING → READY for an engine that can
park its weights in host memory; and FAILED with its cause and a back-off.

| state     | new request               | counts in the budget | ends with                                        |
|-----------|---------------------------|----------------------|--------------------------------------------------|
| ABSENT    | queued, load requested    | no                   | a load                                           |
| LOADING   | queued                    | yes, as estimated    | loaded or awake; failed; ABSENT: files fetched,  |
|           |                           |                      | or the wake failed; ABSENT or ASLEEP: other      |
|           |                           |                      | models grew into its room                        |
| READY     | queued or started         | yes, as measured     | eviction, sleep, idle time-out, unload; death:   |
|           |                           |                      | UNLOADING                                        |
| ASLEEP    | queued, wake requested    | what it still holds  | wake; eviction, unload or death: UNLOADING       |
| DRAINING  | queued, waits             | yes                  | last lease released, or the drain deadline: then |
|           |                           |                      | ASLEEP or UNLOADING                              |
| UNLOADING | queued                    | yes                  | process gone and memory free; or FAILED          |
| FAILED    | refused with Retry-After  | no                   | back-off over: the next request loads again      |

A model falls asleep in the same way as it is evicted: no new request starts, the running ones end, then the engine is
put to sleep. So no request ever reaches a sleeping engine.
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
    S.LOADING: frozenset({S.READY, S.FAILED, S.UNLOADING, S.ABSENT, S.ASLEEP}),
    S.READY: frozenset({S.DRAINING, S.FAILED, S.UNLOADING}),
    S.ASLEEP: frozenset({S.LOADING, S.UNLOADING}),
    S.DRAINING: frozenset({S.ASLEEP, S.UNLOADING, S.FAILED}),
    S.UNLOADING: frozenset({S.ABSENT, S.FAILED}),
    S.FAILED: frozenset({S.LOADING, S.ABSENT}),
}
HOLDS_MEMORY = frozenset({S.LOADING, S.READY, S.ASLEEP, S.DRAINING, S.UNLOADING})


def check_transition(old: ModelState, new: ModelState) -> None:
    """Raise RuntimeError for a transition that is not in the table."""
    if new not in TRANSITIONS[old]:
        raise RuntimeError(f"no transition from {old.value} to {new.value}")
