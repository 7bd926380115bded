"""Limits without a database or a real clock are never exceeded, and never refuse while there is room."""

import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import BadRequest, LimitExceeded
from tenants.caller import Caller
from tenants.limits.limiter import Admission, Amounts, Limiter, PastRequest
from tenants.limits.meters import SECOND, Rate
from tenants.limits.records import MICRO, Kind, Limit, Mode, amount_of, period_of
from tests.fakes.clocks import LimiterClock
from tests.unit.tenants.line import Line

CALLER = Caller("search", "key00001")
BERLIN = ZoneInfo("Europe/Berlin")


def limit(kind: Kind, amount: int, mode: Mode = Mode.ENFORCE, owner: str = "team", model: str = "") -> Limit:
    subject = "search" if owner == "team" else "key00001"
    return Limit(f"{owner}-{kind}-{mode}-{model}", owner, subject, kind, amount, mode, model)  # type: ignore[arg-type]


def limiter(clock: LimiterClock, *limits: Limit, reported: list[tuple[str, str]] | None = None) -> Limiter:
    stated = [] if reported is None else reported
    made = Limiter(lambda one, what: stated.append((one.kind, what)), clock, clock.wall)
    made.replace(limits, {"search": BERLIN, "key00001": BERLIN})
    return made


NOTHING = Amounts()


def refused(of: Limiter, most: Amounts = NOTHING, model: str = "m") -> LimitExceeded:
    with pytest.raises(LimitExceeded) as error:
        of.admit(CALLER, model, most)
    return error.value


@pytest.mark.parametrize(
    ("kind", "most", "used"),
    [
        (Kind.AUDIO, Amounts(audio_ms=100_000), Amounts(audio_ms=10_000)),
        (Kind.TOKENS, Amounts(tokens=100_000), Amounts(tokens=10_000)),
    ],
)
def test_a_request_of_unknown_length_reserves_at_most_the_whole_limit(kind: Kind, most: Amounts, used: Amounts) -> None:
    one = limiter(LimiterClock(), limit(kind, 60_000))
    admission = one.admit(CALLER, "m", most)
    assert one.levels(CALLER, "m")[kind].remaining == 0
    one.settle(admission, used)
    assert one.levels(CALLER, "m")[kind].remaining == 50_000


def test_a_request_that_is_settled_twice_frees_its_place_once() -> None:
    one = limiter(LimiterClock(), limit(Kind.AT_ONCE, 2), limit(Kind.TOKENS, 100))
    first = one.admit(CALLER, "m", Amounts(tokens=40))
    one.admit(CALLER, "m", Amounts(tokens=40))
    for _ in range(2):
        one.settle(first, Amounts(tokens=10))
    assert {kind: level.remaining for kind, level in one.levels(CALLER, "m").items()} == {
        Kind.AT_ONCE: 1,
        Kind.TOKENS: 50,
    }
    one.admit(CALLER, "m", NOTHING)
    refused(one)


def test_the_wait_for_a_place_is_about_as_long_as_requests_take() -> None:
    clock = LimiterClock()
    one = limiter(clock, limit(Kind.AT_ONCE, 1))
    for _ in range(60):
        admission = one.admit(CALLER, "m", NOTHING)
        clock.pass_(5)
        one.settle(admission, NOTHING)
    long = one.admit(CALLER, "m", NOTHING)
    assert refused(one).retry_after == pytest.approx(5, abs=0.1)
    clock.pass_(45)
    one.settle(long, NOTHING)
    one.admit(CALLER, "m", NOTHING)
    assert refused(one).retry_after == pytest.approx(9, abs=0.1), "a single long one changes little"


def test_a_refusal_has_large_amounts_in_full() -> None:
    tokens = refused(
        limiter(LimiterClock(), limit(Kind.TOKENS, 1_234_567)), Amounts(tokens=2_345_678, explicit_tokens=2_345_678)
    )
    assert "is 1234567, and this request alone may use 2345678:" in tokens.message
    of = limiter(LimiterClock(), limit(Kind.DAY, 1_234_567_891_000))
    of.admit(CALLER, "m", Amounts(money=1_000_000_000_000))
    money = refused(of, Amounts(money=1_000_000_000_000))
    assert "is 1234567.891, of which 234567.891 is left; this request may cost 1000000." in money.message


@given(st.integers(1, 500), st.integers(0, 2**32))
def test_a_rate_admits_exactly_what_its_bucket_holds(amount: int, seed: int) -> None:
    """Requests of random sizes at random times, compared with exact fractions."""
    chance, clock = random.Random(seed), LimiterClock()
    meter = Rate(amount, clock())
    level, at = Fraction(0), clock()
    for _ in range(100):
        clock.pass_(chance.choice((0, 0, 0.001, 0.3, 2, 61)) * chance.random())
        size = chance.randint(1, max(1, amount // 3))
        level, at = max(Fraction(0), level - Fraction((clock() - at) * amount, 60 * SECOND)), clock()
        wait = meter.wait(size, clock())
        assert (wait == 0.0) == (level + size <= amount)
        if wait == 0.0:
            meter.take(size, clock())
            level += size
        else:
            assert wait is not None
            assert wait <= 60.0
            if chance.random() < 0.2:  # a client that waits is admitted
                clock.pass_(wait + 1e-9)
                assert meter.wait(size, clock()) == 0.0


def test_ten_thousand_requests_against_random_limits() -> None:
    """Requests end late and use less than they reserved. No limit is exceeded, and no request that fits is refused."""
    chance = random.Random(22)
    for _ in range(10):
        clock = LimiterClock()
        amount, most = chance.randint(1_000, 50_000), chance.randint(1, 20)
        of = limiter(clock, limit(Kind.TOKENS, amount), limit(Kind.AT_ONCE, most, owner="key"))
        line = Line(amount, clock.ns)
        running: list[tuple[float, Admission, int, int]] = []
        admitted: list[tuple[int, int]] = []
        for number in range(1, 1001):
            clock.pass_(chance.expovariate(4.0))
            line.pass_to(clock.ns)
            for one in [one for one in running if one[0] <= clock.wall_now]:
                running.remove(one)
                of.settle(one[1], Amounts(tokens=one[2]))
                line.end(one[3], one[1].most.tokens, one[2])
            expected_ = chance.randint(1, amount // 4)
            fits = line.fits(expected_) and len(running) < most
            try:
                admission = of.admit(CALLER, "m", Amounts(tokens=expected_, explicit_tokens=expected_))
            except LimitExceeded:
                assert not fits
                continue
            assert fits
            used = chance.randint(0, expected_)
            running.append((clock.wall_now + chance.expovariate(0.5), admission, used, number))
            line.take(number, expected_)
            admitted.append((clock.ns, used))
            assert len(running) <= most
        for first in range(0, len(admitted), 7):
            total = 0
            for at, used in admitted[first:]:
                total += used
                assert total * 60 * SECOND <= amount * (60 * SECOND + at - admitted[first][0])


def test_a_hundred_requests_at_once_do_not_exceed_a_budget() -> None:
    clock = LimiterClock()
    of = limiter(clock, limit(Kind.DAY, 45 * MICRO // 100))
    most = Amounts(money=15 * MICRO // 100)
    admitted = 0
    for _ in range(100):
        try:
            of.admit(CALLER, "m", most)
            admitted += 1
        except LimitExceeded:
            pass
    assert admitted == 3


def test_a_refusal_names_every_exceeded_limit_and_reserves_nothing() -> None:
    clock = LimiterClock()
    reported: list[tuple[str, str]] = []
    limits = limit(Kind.REQUESTS, 2), limit(Kind.TOKENS, 100, owner="key"), limit(Kind.AT_ONCE, 1)
    of = limiter(clock, *limits, reported=reported)
    first = of.admit(CALLER, "m", Amounts(tokens=90, explicit_tokens=10))
    error = refused(of, Amounts(tokens=50, explicit_tokens=10))
    assert [one.kind for one in error.binding] == [Kind.AT_ONCE, Kind.TOKENS]
    assert reported == [(Kind.AT_ONCE, "refused"), (Kind.TOKENS, "refused")]
    assert (error.status, error.type, error.code, error.should_retry) == (429, "tokens", "rate_limit_exceeded", True)
    assert error.retry_after == pytest.approx(24.0)
    of.settle(first, Amounts(tokens=20))
    of.settle(first, Amounts(tokens=20))
    second = of.admit(CALLER, "m", Amounts(tokens=50, explicit_tokens=10))
    assert of.levels(CALLER, "m")[Kind.TOKENS].remaining == 30
    of.settle(second, Amounts(tokens=70))
    assert of.levels(CALLER, "m")[Kind.TOKENS].remaining == 10
    assert refused(of).type == "requests"


def test_a_request_that_can_never_fit_must_not_be_retried() -> None:
    of = limiter(LimiterClock(), limit(Kind.TOKENS, 100))
    error = refused(of, Amounts(tokens=150, explicit_tokens=120))
    assert (error.should_retry, error.retry_after) == (False, None)
    assert "max_tokens" in error.message
    of.admit(
        CALLER, "m", Amounts(tokens=5000, explicit_tokens=10)
    )  # its maximum is not explicit, so it reserves all that is left
    assert of.levels(CALLER, "m")[Kind.TOKENS].remaining == 0


def test_reserved_tokens_that_have_drained_are_not_returned() -> None:
    """A reserves 100 and uses none. B is admitted after they have drained, so A's end makes no room for a third."""
    clock = LimiterClock()
    of = limiter(clock, limit(Kind.TOKENS, 100))
    a = of.admit(CALLER, "m", Amounts(tokens=100, explicit_tokens=1))
    clock.pass_(60)
    of.admit(CALLER, "m", Amounts(tokens=100, explicit_tokens=1))
    of.settle(a, Amounts())
    assert of.levels(CALLER, "m")[Kind.TOKENS].remaining == 0


def test_shadow_limits_are_counted_and_warn_limits_reported() -> None:
    reported: list[tuple[str, str]] = []
    shadow, warn = limit(Kind.REQUESTS, 1, Mode.SHADOW), limit(Kind.MONTH, 5, Mode.WARN)
    of = limiter(LimiterClock(), shadow, warn, reported=reported)
    for expected in ([], ["over"], ["over"]):
        admission = of.admit(CALLER, "m", Amounts(money=4))
        assert ["over" for _ in admission.warnings] == expected
    assert reported == [(Kind.REQUESTS, "shadow"), (Kind.MONTH, "warned")] * 2
    assert Kind.REQUESTS not in of.levels(CALLER, "m")


def test_a_shadow_limit_counts_no_request_that_it_would_refuse() -> None:
    reported: list[tuple[str, str]] = []
    of = limiter(LimiterClock(), limit(Kind.TOKENS, 100, Mode.SHADOW), reported=reported)
    for tokens in (80, 40, 20):
        of.admit(CALLER, "m", Amounts(tokens=tokens))
    assert reported == [(Kind.TOKENS, "shadow")]


def test_further_attempts_at_a_request_report_no_limit_again() -> None:
    reported: list[tuple[str, str]] = []
    of = limiter(
        LimiterClock(), limit(Kind.REQUESTS, 1, Mode.SHADOW), limit(Kind.MONTH, 5, Mode.WARN), reported=reported
    )
    of.settle(of.admit(CALLER, "m", Amounts()), Amounts())
    first = of.admit(CALLER, "m", Amounts(money=9))
    of.settle(first, Amounts(), last=False)
    last = of.admit(CALLER, "m", Amounts(money=9), first)
    assert reported == [(Kind.REQUESTS, "shadow"), (Kind.MONTH, "warned")]
    assert last.warnings == ["spend per month of team 'search': over 0.000005"]


def test_further_attempts_at_a_request_count_it_once() -> None:
    of = limiter(LimiterClock(), limit(Kind.REQUESTS, 2), limit(Kind.AT_ONCE, 1))
    first = of.admit(CALLER, "m", NOTHING)
    of.settle(first, NOTHING, last=False)
    last = of.admit(CALLER, "m", NOTHING, first)
    assert refused(of).binding[0].kind is Kind.AT_ONCE
    of.settle(last, NOTHING)
    of.settle(of.admit(CALLER, "m", NOTHING), NOTHING)
    assert [one.kind for one in refused(of).binding] == [Kind.REQUESTS]


def test_an_exceeded_rate_is_logged_once_a_day(caplog: pytest.LogCaptureFixture) -> None:
    clock = LimiterClock()
    caplog.set_level("WARNING", "roundhouse.tenants")
    of = limiter(clock, limit(Kind.REQUESTS, 1, Mode.WARN))
    for hours in (0, 0, 1, 24):
        clock.pass_(hours * 3600)
        for _ in range(3):
            of.admit(CALLER, "m", Amounts())
    assert caplog.messages == ["over a limit"] * 2


def test_a_budgets_day_ends_at_midnight_in_the_teams_time_zone() -> None:
    clock = LimiterClock(1_792_782_600.0)  # 2026-10-23 19:10 UTC, 21:10 in Berlin
    of = limiter(clock, limit(Kind.DAY, 100))
    held = of.admit(CALLER, "m", Amounts(money=80))
    error = refused(of, Amounts(money=30))
    assert (error.type, error.code) == ("insufficient_quota", "project_spend_limit_exceeded")
    assert (error.should_retry, error.retry_after) == (False, 2 * 3600 + 50 * 60)
    of.settle(of.admit(CALLER, "m", Amounts()), Amounts(money=30))  # it cost more than foreseen
    level = of.levels(CALLER, "m")[Kind.DAY]
    assert (level.remaining, level.seconds) == (0, 2 * 3600 + 50 * 60)
    of.admit(CALLER, "m", Amounts())  # a free request needs no budget
    clock.pass_(2 * 3600 + 50 * 60)
    of.admit(CALLER, "m", Amounts(money=100))
    of.settle(held, Amounts(money=10))
    refused(of, Amounts(money=1))


def test_a_caller_may_spend_the_least_that_is_left_of_the_budgets_that_refuse() -> None:
    of = limiter(LimiterClock(), limit(Kind.DAY, 100), limit(Kind.MONTH, 300), limit(Kind.DAY, 50, Mode.WARN))
    of.settle(of.admit(CALLER, "m", Amounts(money=30)), Amounts(money=30))
    assert of.spendable(CALLER, "m") == 70
    of.replace([limit(Kind.DAY, 400), limit(Kind.MONTH, 300), limit(Kind.TOKENS, 5)], {"search": BERLIN})
    assert of.spendable(CALLER, "m") == 270, "a changed budget applies at once"
    of.replace([limit(Kind.TOKENS, 5)], {})
    assert of.spendable(CALLER, "m") is None


def test_a_request_that_costs_more_than_the_whole_budget_never_fits() -> None:
    """Even if another budget has room again the next day."""
    of = limiter(LimiterClock(), limit(Kind.DAY, 3 * MICRO), limit(Kind.MONTH, 50 * MICRO))
    error = refused(of, Amounts(money=4 * MICRO))
    assert (error.code, error.should_retry, error.retry_after) == ("project_spend_limit_exceeded", False, None)
    assert "spend per day of team 'search' is 3, and this request alone may cost 4" in error.message
    of.admit(CALLER, "m", Amounts(money=3 * MICRO))
    assert refused(of, Amounts(money=2 * MICRO)).retry_after is not None
    assert refused(of, Amounts(money=60 * MICRO)).retry_after is None


@pytest.mark.parametrize(
    ("most", "advice"),
    [
        (Amounts(money=4 * MICRO, tokens=100), "lower max_tokens"),
        (Amounts(money=4 * MICRO, audio_ms=100), "send the recording in parts, or as WAV"),
    ],
)
def test_the_refusal_of_a_request_that_can_never_fit_has_advice(most: Amounts, advice: str) -> None:
    assert refused(limiter(LimiterClock(), limit(Kind.DAY, 3 * MICRO)), most).message.endswith(f"may cost 4: {advice}.")


def test_a_changed_time_zone_applies_at_once() -> None:
    clock = LimiterClock(1_792_782_600.0)  # 2026-10-23 19:10 UTC, 21:10 in Berlin
    cap = limit(Kind.DAY, 100)
    of = limiter(clock, cap)
    running = of.admit(CALLER, "m", Amounts(money=80))
    of.replace([cap], {cap.subject: ZoneInfo("UTC")}, (), {cap.id: 7})
    assert refused(of, Amounts(money=30)).retry_after == 4 * 3600 + 50 * 60
    of.settle(running, Amounts(money=10))
    assert of.levels(CALLER, "m")[Kind.DAY].remaining == 100 - 7 - 10


def test_a_changed_time_zone_does_not_change_a_rate() -> None:
    cap = limit(Kind.REQUESTS, 1)
    of = limiter(LimiterClock(), cap)
    of.settle(of.admit(CALLER, "m", NOTHING), NOTHING)
    of.replace([cap], {cap.subject: ZoneInfo("UTC")})
    refused(of)


def test_a_changed_mode_applies_at_once() -> None:
    cap = limit(Kind.REQUESTS, 1)
    of = limiter(LimiterClock(), cap)
    of.admit(CALLER, "m", NOTHING)
    of.replace([replace(cap, mode=Mode.WARN)], {"search": BERLIN})
    assert of.admit(CALLER, "m", NOTHING).warnings == ["requests per minute of team 'search': over 1"]


def test_a_limit_that_counts_something_else_starts_anew() -> None:
    cap = limit(Kind.REQUESTS, 2)
    of = limiter(LimiterClock(), cap)
    of.settle(of.admit(CALLER, "m", NOTHING), NOTHING)
    for other in (replace(cap, model="m"), replace(cap, kind=Kind.TOKENS)):
        of.replace([other], {"search": BERLIN})
        assert of.levels(CALLER, "m")[other.kind].remaining == 2


@pytest.mark.parametrize(
    ("kind", "at", "hours"),
    [(Kind.DAY, 1_792_900_000, 25), (Kind.DAY, 1_790_000_000, 24), (Kind.MONTH, 1_792_900_000, 31 * 24 + 1)],
)
def test_the_length_of_periods_includes_clock_changes(kind: Kind, at: int, hours: int) -> None:
    begin, end = period_of(kind, BERLIN, at)
    assert begin <= at < end
    assert (end - begin) / 3600 == hours


def test_a_day_begins_at_the_first_of_two_midnights() -> None:
    havana = ZoneInfo("America/Havana")  # on 2026-11-01 its clocks go back from 1:00 to 0:00
    first = 1_793_505_600
    for at in (first, first + 1800, first + 5400):
        assert period_of(Kind.DAY, havana, at) == (first, first + 25 * 3600)


def test_limits_can_be_changed_and_added_while_requests_run() -> None:
    clock = LimiterClock()
    of = limiter(clock, limit(Kind.REQUESTS, 2))
    running = of.admit(CALLER, "m", Amounts(money=5, tokens=50))
    recent = [
        PastRequest("search", "key00001", "m", 30.0, Amounts(tokens=40)),
        PastRequest("else", "", "m", 1.0, Amounts(99)),
    ]
    limits = [limit(Kind.REQUESTS, 3), limit(Kind.DAY, 20), limit(Kind.TOKENS, 120), limit(Kind.AT_ONCE, 2)]
    with of.collecting():
        ended = of.admit(CALLER, "m", Amounts(money=7))
        of.settle(ended, Amounts(money=3))
        of.replace(limits, {}, recent, {limits[1].id: 2})
    levels = of.levels(CALLER, "m")
    assert levels[Kind.REQUESTS].remaining == 1
    assert levels[Kind.DAY].remaining == 20 - 2 - 3 - 5
    assert levels[Kind.TOKENS].remaining == 120 - 50, "the 40 of half a minute ago have drained"
    of.settle(running, Amounts(money=1, tokens=10))
    levels = of.levels(CALLER, "m")
    assert levels[Kind.DAY].remaining == 20 - 2 - 3 - 1
    assert levels[Kind.AT_ONCE].remaining == 2
    of.replace([], {})
    assert of.is_empty


def test_new_limits_start_from_the_last_minute_of_the_ledger() -> None:
    of, per_minute = limiter(LimiterClock()), limit(Kind.TOKENS, 120)
    for age, left in ((5.0, 90), (-3.0, 80), (60.0, 120)):  # another server's clock may be ahead
        of.replace([], {})
        of.replace([per_minute], {}, [PastRequest("search", "key00001", "m", age, Amounts(tokens=40))])
        assert of.levels(CALLER, "m")[Kind.TOKENS].remaining == left


def test_a_start_with_a_limit_for_each_key_reads_the_last_requests_once() -> None:
    """With 2,000 keys and 50 requests a second, each limit's own reading kept the event loop for seconds."""

    class Requests(list[PastRequest]):
        reads = 0

        def __iter__(self) -> Iterator[PastRequest]:
            self.reads += 1
            return super().__iter__()

    of, keys = limiter(LimiterClock()), [f"key{number:05}" for number in range(3)]
    recent = Requests(
        PastRequest("search", key, model, 0.0, Amounts(tokens=10))
        for key, model in ((keys[0], "m"), (keys[1], "m"), (keys[1], "n"), (keys[1], "m@2"))
    )
    of.replace(
        [*(Limit(key, "key", key, Kind.TOKENS, 100, model="m") for key in keys), limit(Kind.TOKENS, 100)], {}, recent
    )
    assert recent.reads == 1
    left = [of.levels(Caller("other", key), "m")[Kind.TOKENS].remaining for key in keys]
    assert left == [90, 80, 100]
    assert of.levels(Caller("search", "another"), "m")[Kind.TOKENS].remaining == 60


def test_a_new_limit_counts_its_teams_running_requests() -> None:
    of = limiter(LimiterClock(), limit(Kind.REQUESTS, 9), Limit("other", "team", "other", Kind.REQUESTS, 9))
    of.admit(CALLER, "m", NOTHING)
    of.admit(Caller("other", "key00002"), "m", NOTHING)
    of.admit(CALLER, "m", Amounts(money=3), spends_only=True)  # a batch line
    of.replace([limit(Kind.AT_ONCE, 3), limit(Kind.DAY, 10)], {})
    assert {kind: level.remaining for kind, level in of.levels(CALLER, "m").items()} == {Kind.AT_ONCE: 2, Kind.DAY: 7}


def test_a_new_limit_counts_a_request_once_while_two_attempts_at_it_run() -> None:
    of = limiter(LimiterClock(), limit(Kind.REQUESTS, 9))
    of.admit(CALLER, "m", NOTHING, of.admit(CALLER, "m", NOTHING))
    of.replace([limit(Kind.AT_ONCE, 2)], {})
    assert of.levels(CALLER, "m")[Kind.AT_ONCE].remaining == 1


def test_a_changed_number_of_concurrent_requests_applies_at_once() -> None:
    of = limiter(LimiterClock(), limit(Kind.AT_ONCE, 1))
    of.admit(CALLER, "m", NOTHING)
    refused(of)
    of.replace([limit(Kind.AT_ONCE, 2)], {})
    of.admit(CALLER, "m", NOTHING)
    of.replace([limit(Kind.AT_ONCE, 1)], {})
    assert of.levels(CALLER, "m")[Kind.AT_ONCE].remaining == 0
    refused(of)


def test_levels_have_the_seconds_until_the_whole_limit_is_free() -> None:
    of = limiter(LimiterClock(), limit(Kind.TOKENS, 60), limit(Kind.AT_ONCE, 2))
    assert [level.seconds for level in of.levels(CALLER, "m").values()] == [0.0, 0.0]
    of.admit(CALLER, "m", Amounts(tokens=30))
    assert [level.seconds for level in of.levels(CALLER, "m").values()] == [30.0, 1.0]


def test_there_is_room_if_a_request_would_be_admitted() -> None:
    most = Amounts(tokens=40)
    of = limiter(LimiterClock(), limit(Kind.TOKENS, 60), limit(Kind.REQUESTS, 1, Mode.WARN))
    assert of.has_room(CALLER, "m", most)
    of.admit(CALLER, "m", most)
    assert not of.has_room(CALLER, "m", most)
    assert of.has_room(CALLER, "m", Amounts(tokens=20)), "a limit that only warns refuses nothing"
    assert of.has_room(Caller("other", "key00002"), "m", most)


def test_a_request_that_costs_the_whole_budget_waits_for_the_next_day() -> None:
    of = limiter(LimiterClock(), limit(Kind.DAY, 10 * MICRO))
    of.settle(of.admit(CALLER, "m", Amounts(money=4 * MICRO)), Amounts(money=4 * MICRO))
    error = refused(of, Amounts(money=10 * MICRO))
    assert error.retry_after is not None
    assert (error.binding[0].remaining, error.levels[Kind.DAY][:2]) == (6.0, (10 * MICRO, 6 * MICRO))
    assert refused(of, Amounts(money=10 * MICRO + 1)).retry_after is None


def test_a_refusal_on_a_single_server_names_no_servers_share() -> None:
    of = limiter(LimiterClock(), limit(Kind.REQUESTS, 1))
    of.admit(CALLER, "m", NOTHING)
    assert str(refused(of)) == "requests per minute of team 'search' is 1."


@pytest.mark.parametrize(("kind", "least"), [(Kind.DAY, 0), (Kind.ADAPTERS, 0), (Kind.REQUESTS, 1), (Kind.AUDIO, 1)])
def test_budgets_and_stored_amounts_may_be_limited_to_zero(kind: Kind, least: int) -> None:
    assert limit(kind, least).amount == least
    with pytest.raises(BadRequest, match=f"must be {least} or more"):
        limit(kind, least - 1)


def test_a_limit_may_be_for_one_model() -> None:
    of = limiter(LimiterClock(), limit(Kind.REQUESTS, 1, model="m"))
    of.admit(CALLER, "m", Amounts())
    refused(of)
    of.admit(CALLER, "other", Amounts())
    of.admit(CALLER, "m-2", Amounts())
    of.admit(Caller("else"), "m", Amounts())


def test_a_models_limit_applies_to_its_former_versions() -> None:
    of = limiter(LimiterClock(), limit(Kind.REQUESTS, 2, model="m"), limit(Kind.REQUESTS, 1, model="m@1"))
    of.admit(CALLER, "m@1", Amounts())
    assert [one.limit for one in refused(of, model="m@1").binding] == [1]
    of.admit(CALLER, "m@2", Amounts())
    refused(of)


def test_amounts_are_read_in_users_units() -> None:
    assert amount_of(Kind.DAY, "12.50") == 12_500_000
    assert amount_of(Kind.AUDIO, "0.5") == 500
    for wrong in ("x", "1.5", "nan", "snan", "inf", "-inf", "1e999"):
        with pytest.raises(Exception, match="not an amount"):
            amount_of(Kind.REQUESTS, wrong)
