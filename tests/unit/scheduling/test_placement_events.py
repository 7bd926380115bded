"""All rules of runtime.scheduling.placement under random events."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from registry.errors import Conflict
from runtime.scheduling.placement import Placement
from tests.unit.scheduling.simulator import Witness

pytestmark = pytest.mark.long


class Anything(RuleBasedStateMachine):
    """Random events in any order. At the end, all waiting requests are served."""

    digests = st.none() | st.sampled_from([f"sha256:{number}" for number in range(9)])

    @initialize(places=st.integers(1, 4), extra=st.integers(0, 4), slots=st.integers(1, 6), at_once=st.integers(1, 3))
    def begin(self, places: int, extra: int, slots: int, at_once: int) -> None:
        policy = Placement(places, places + extra, slots, max_overtake=1.0, staging_at_once=at_once)
        self.seen = Witness(policy, places, places + extra, slots)
        self.now, self.count = 0.0, 0
        self.sound = True

    def decide(self) -> None:
        self.seen.obey(self.seen.policy.decide(self.now))

    @rule(digest=digests)
    def enqueue(self, digest: str | None) -> None:
        self.count += 1
        self.seen.waiting[str(self.count)] = digest
        self.seen.policy.enqueue(str(self.count), digest, self.now)

    @rule()
    def plan(self) -> None:
        self.decide()

    @rule(step=st.floats(0, 2))
    def wait(self, step: float) -> None:
        self.now += step

    @precondition(lambda self: self.seen.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.seen.finish(data.draw(st.sampled_from(sorted(self.seen.running))), self.now)

    @precondition(lambda self: self.seen.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.seen.waiting)))
        del self.seen.waiting[request]
        assert self.seen.policy.cancel(request)

    @precondition(lambda self: self.seen.staging)
    @rule(data=st.data(), fails=st.booleans())
    def staging_ends(self, data: st.DataObject, fails: bool) -> None:
        digest = data.draw(st.sampled_from(sorted(self.seen.staging)))
        if fails:
            self.seen.staging.remove(digest)
            self.fail(digest)
        else:
            self.seen.finish_staging(digest)

    @precondition(lambda self: self.seen.placing.keys() - self.seen.admitted)
    @rule(data=st.data())
    def placing_is_sent(self, data: st.DataObject) -> None:
        waiting = sorted(self.seen.placing.keys() - self.seen.admitted)
        self.seen.admit(data.draw(st.sampled_from(waiting)), self.now)

    @precondition(lambda self: self.seen.placing)
    @rule(data=st.data(), fails=st.booleans())
    def placing_ends(self, data: st.DataObject, fails: bool) -> None:
        digest = data.draw(st.sampled_from(sorted(self.seen.placing)))
        if fails:
            self.seen.fail_placing(digest)
            self.fail(digest)
        else:
            self.seen.finish_placing(digest, self.now)

    def fail(self, digest: str) -> None:
        ended = self.seen.policy.failed(digest)
        assert set(ended) == {request for request, needed in self.seen.waiting.items() if needed == digest}
        for request in ended:
            del self.seen.waiting[request]

    @rule(digest=digests.filter(bool))
    def pin(self, digest: str) -> None:
        try:
            self.seen.policy.pin(digest)
            self.seen.pinned.add(digest)
        except Conflict:
            assert len(self.seen.pinned) >= self.seen.places - 1

    @rule(digest=digests.filter(bool))
    def unpin(self, digest: str) -> None:
        self.seen.policy.unpin(digest)
        self.seen.pinned.discard(digest)

    @rule(digest=digests.filter(bool))
    def forget(self, digest: str) -> None:
        self.seen.policy.forget(digest)
        self.seen.pinned.discard(digest)

    @rule()
    def restart(self) -> None:
        lost = self.seen.policy.reset()
        assert set(lost) == set(self.seen.running)
        seen = self.seen
        for table in (seen.running, seen.placing, seen.staged, seen.staging, seen.placed, seen.admitted, seen.failed):
            table.clear()

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "seen"):
            assert self.seen.policy.waiting == len(self.seen.waiting)
            assert self.seen.policy.running == len(self.seen.running)
            assert set(self.seen.policy.resident()) == self.seen.placed

    def teardown(self) -> None:
        """Check that all waiting requests are served as time passes and runs end."""
        if not hasattr(self, "seen"):
            return
        for _ in range(10 * (self.count + 12)):
            self.decide()
            for digest in list(self.seen.staging):
                self.seen.finish_staging(digest)
            for digest in list(self.seen.placing):
                self.seen.finish_placing(digest, self.now)
            for request in list(self.seen.running):
                self.seen.finish(request, self.now)
            self.now += 2.0
        assert not self.seen.waiting, "starved"


TestAnything = Anything.TestCase

TestAnything.settings = settings(max_examples=150, stateful_step_count=60)
