"""Limits without a database and a clock: never more than a limit, never a refusal while there is room."""

import random
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
def test_a_request_of_unknown_length_reserves_the_whole_limit_at_most(kind: Kind, most: Amounts, used: Amounts) -> None:
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
    one.admit(CALLER, "m", NOTHING)
    assert refused(one).retry_after == pytest.approx(5, abs=0.1)


def test_a_refusal_tells_large_amounts_whole() -> None:
    tokens = refused(
        limiter(LimiterClock(), limit(Kind.TOKENS, 1_234_567)), Amounts(tokens=2_345_678, explicit_tokens=2_345_678)
    )
    assert "is 1234567, and this request alone may use 2345678:" in tokens.message
    of = limiter(LimiterClock(), limit(Kind.DAY, 1_234_567_891_000))
    of.admit(CALLER, "m", Amounts(money=1_000_000_000_000))
    money = refused(of, Amounts(money=1_000_000_000_000))
    assert "is 1234567.891, of which 234567.891 is left; this request may cost 1000000." in money.message


@given(st.integers(1, 500), st.integers(0, 2**32))
def test_a_rate_lets_in_what_a_bucket_holds_and_no_more(amount: int, seed: int) -> None:
    """10,000 requests of random sizes at random times, against exact fractions."""
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
            if chance.random() < 0.2:  # a client that waits for it gets in
                clock.pass_(wait + 1e-9)
                assert meter.wait(size, clock()) == 0.0


def test_ten_thousand_requests_against_random_limits() -> None:
    """With requests that end late, and use less than they reserved: in any time never more than was there, and none is
    refused that fits."""
    chance = random.Random(22)
    for _ in range(10):
        clock = LimiterClock()
        amount, most = chance.randint(1_000, 50_000), chance.randint(1, 20)
        of = limiter(clock, limit(Kind.TOKENS, amount), limit(Kind.AT_ONCE, most, owner="key"))
        line = Line(amount, clock.ns)
        running: list[tuple[float, Admission, int, int]] = []
        let_in: list[tuple[int, int]] = []
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
            let_in.append((clock.ns, used))
            assert len(running) <= most
        for first in range(0, len(let_in), 7):
            total = 0
            for at, used in let_in[first:]:
                total += used
                assert total * 60 * SECOND <= amount * (60 * SECOND + at - let_in[first][0])


def test_a_hundred_at_once_on_one_cap() -> None:
    clock = LimiterClock()
    of = limiter(clock, limit(Kind.DAY, 45 * MICRO // 100))
    most = Amounts(money=15 * MICRO // 100)
    let_in = 0
    for _ in range(100):
        try:
            of.admit(CALLER, "m", most)
            let_in += 1
        except LimitExceeded:
            pass
    assert let_in == 3


def test_every_limit_that_binds_is_named_and_nothing_is_reserved() -> None:
    clock = LimiterClock()
    of = limiter(clock, limit(Kind.REQUESTS, 2), limit(Kind.TOKENS, 100, owner="key"), limit(Kind.AT_ONCE, 1))
    first = of.admit(CALLER, "m", Amounts(tokens=90, explicit_tokens=10))
    error = refused(of, Amounts(tokens=50, explicit_tokens=10))
    assert [one.kind for one in error.binding] == [Kind.AT_ONCE, Kind.TOKENS]
    assert (error.status, error.type, error.code, error.should_retry) == (429, "tokens", "rate_limit_exceeded", True)
    assert error.retry_after == pytest.approx(24.0)
    of.settle(first, Amounts(tokens=20))
    of.settle(first, Amounts(tokens=20))
    second = of.admit(CALLER, "m", Amounts(tokens=50, explicit_tokens=10))
    assert of.levels(CALLER, "m")[Kind.TOKENS].remaining == 30
    of.settle(second, Amounts(tokens=70))
    assert of.levels(CALLER, "m")[Kind.TOKENS].remaining == 10
    assert refused(of).type == "requests"


def test_what_can_never_fit_is_not_to_be_tried_again() -> None:
    of = limiter(LimiterClock(), limit(Kind.TOKENS, 100))
    error = refused(of, Amounts(tokens=150, explicit_tokens=120))
    assert (error.should_retry, error.retry_after) == (False, None)
    assert "max_tokens" in error.message
    of.admit(
        CALLER, "m", Amounts(tokens=5000, explicit_tokens=10)
    )  # what it may come to is no wish: it has all there is
    assert of.levels(CALLER, "m")[Kind.TOKENS].remaining == 0


def test_what_drained_while_it_was_held_is_not_given_back() -> None:
    """A holds 90 of 100 and uses none; B came when they had drained. A's end does not make room for a third."""
    clock = LimiterClock()
    of = limiter(clock, limit(Kind.TOKENS, 100))
    a = of.admit(CALLER, "m", Amounts(tokens=100, explicit_tokens=1))
    clock.pass_(60)
    of.admit(CALLER, "m", Amounts(tokens=100, explicit_tokens=1))
    of.settle(a, Amounts())
    assert of.levels(CALLER, "m")[Kind.TOKENS].remaining == 0


def test_shadow_is_counted_and_warned_is_reported() -> None:
    reported: list[tuple[str, str]] = []
    shadow, warn = limit(Kind.REQUESTS, 1, Mode.SHADOW), limit(Kind.MONTH, 5, Mode.WARN)
    of = limiter(LimiterClock(), shadow, warn, reported=reported)
    for expected in ([], ["over"], ["over"]):
        admission = of.admit(CALLER, "m", Amounts(money=4))
        assert ["over" for _ in admission.warnings] == expected
    assert reported == [(Kind.REQUESTS, "shadow"), (Kind.MONTH, "warned")] * 2
    assert Kind.REQUESTS not in of.levels(CALLER, "m")


def test_further_attempts_at_a_request_tell_of_no_limit_again() -> None:
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


def test_the_log_tells_of_a_rate_once_a_day(caplog: pytest.LogCaptureFixture) -> None:
    clock = LimiterClock()
    caplog.set_level("WARNING", "roundhouse.tenants")
    of = limiter(clock, limit(Kind.REQUESTS, 1, Mode.WARN))
    for hours in (0, 0, 1, 24):
        clock.pass_(hours * 3600)
        for _ in range(3):
            of.admit(CALLER, "m", Amounts())
    assert caplog.messages == ["over a limit"] * 2


def test_a_budget_ends_at_midnight_where_the_team_is() -> None:
    clock = LimiterClock(1_792_782_600.0)  # 2026-10-23 19:10 UTC, 21:10 in Berlin
    of = limiter(clock, limit(Kind.DAY, 100))
    held = of.admit(CALLER, "m", Amounts(money=80))
    error = refused(of, Amounts(money=30))
    assert (error.type, error.code) == ("insufficient_quota", "project_spend_limit_exceeded")
    assert (error.should_retry, error.retry_after) == (False, 2 * 3600 + 50 * 60)
    of.admit(CALLER, "m", Amounts())  # what costs nothing needs no money
    clock.pass_(2 * 3600 + 50 * 60)
    of.admit(CALLER, "m", Amounts(money=100))
    of.settle(held, Amounts(money=10))
    refused(of, Amounts(money=1))


def test_what_costs_more_than_the_whole_budget_never_fits() -> None:
    """Also beside one that has room again tomorrow."""
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
def test_what_can_never_fit_is_given_advice_what_to_do(most: Amounts, advice: str) -> None:
    assert refused(limiter(LimiterClock(), limit(Kind.DAY, 3 * MICRO)), most).message.endswith(f"may cost 4: {advice}.")


def test_a_team_that_moves_has_its_new_midnight_at_once() -> None:
    clock = LimiterClock(1_792_782_600.0)  # 2026-10-23 19:10 UTC, 21:10 in Berlin
    cap = limit(Kind.DAY, 100)
    of = limiter(clock, cap)
    running = of.admit(CALLER, "m", Amounts(money=80))
    of.replace([cap], {cap.subject: ZoneInfo("UTC")}, (), {cap.id: 7})
    assert refused(of, Amounts(money=30)).retry_after == 4 * 3600 + 50 * 60
    of.settle(running, Amounts(money=10))
    assert of.levels(CALLER, "m")[Kind.DAY].remaining == 100 - 7 - 10


@pytest.mark.parametrize(
    ("kind", "at", "hours"),
    [(Kind.DAY, 1_792_900_000, 25), (Kind.DAY, 1_790_000_000, 24), (Kind.MONTH, 1_792_900_000, 31 * 24 + 1)],
)
def test_days_are_as_long_as_the_zone_makes_them(kind: Kind, at: int, hours: int) -> None:
    begin, end = period_of(kind, BERLIN, at)
    assert begin <= at < end
    assert (end - begin) / 3600 == hours


def test_limits_that_change_and_come_while_requests_run() -> None:
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
    assert levels[Kind.TOKENS].remaining == 120 - 50, "40 half a minute ago have drained by now"
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


def test_a_new_limit_counts_what_its_own_team_runs() -> None:
    of = limiter(LimiterClock(), limit(Kind.REQUESTS, 9), Limit("other", "team", "other", Kind.REQUESTS, 9))
    of.admit(CALLER, "m", NOTHING)
    of.admit(Caller("other", "key00002"), "m", NOTHING)
    of.replace([limit(Kind.AT_ONCE, 2)], {})
    assert of.levels(CALLER, "m")[Kind.AT_ONCE].remaining == 1


def test_fewer_or_more_requests_at_once_hold_from_the_change_on() -> None:
    of = limiter(LimiterClock(), limit(Kind.AT_ONCE, 1))
    of.admit(CALLER, "m", NOTHING)
    refused(of)
    of.replace([limit(Kind.AT_ONCE, 2)], {})
    of.admit(CALLER, "m", NOTHING)
    of.replace([limit(Kind.AT_ONCE, 1)], {})
    assert of.levels(CALLER, "m")[Kind.AT_ONCE].remaining == 0
    refused(of)


def test_levels_tell_when_the_whole_limit_is_there_again() -> None:
    of = limiter(LimiterClock(), limit(Kind.TOKENS, 60), limit(Kind.AT_ONCE, 2))
    assert [level.seconds for level in of.levels(CALLER, "m").values()] == [0.0, 0.0]
    of.admit(CALLER, "m", Amounts(tokens=30))
    assert [level.seconds for level in of.levels(CALLER, "m").values()] == [30.0, 1.0]


def test_there_is_room_where_a_request_would_be_admitted() -> None:
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


def test_a_limit_of_one_server_is_reported_without_a_part_of_it() -> None:
    of = limiter(LimiterClock(), limit(Kind.REQUESTS, 1))
    of.admit(CALLER, "m", NOTHING)
    assert str(refused(of)) == "requests per minute of team 'search' is 1."


@pytest.mark.parametrize(("kind", "least"), [(Kind.DAY, 0), (Kind.ADAPTERS, 0), (Kind.REQUESTS, 1), (Kind.AUDIO, 1)])
def test_budgets_and_stores_may_be_closed_by_a_limit_of_zero(kind: Kind, least: int) -> None:
    assert limit(kind, least).amount == least
    with pytest.raises(BadRequest, match=f"must be {least} or more"):
        limit(kind, least - 1)


def test_of_one_model_only() -> None:
    of = limiter(LimiterClock(), limit(Kind.REQUESTS, 1, model="m"))
    of.admit(CALLER, "m", Amounts())
    refused(of)
    of.admit(CALLER, "other", Amounts())
    of.admit(CALLER, "m-2", Amounts())
    of.admit(Caller("else"), "m", Amounts())


def test_a_former_version_of_a_model_is_no_way_around_its_limit() -> None:
    of = limiter(LimiterClock(), limit(Kind.REQUESTS, 2, model="m"), limit(Kind.REQUESTS, 1, model="m@1"))
    of.admit(CALLER, "m@1", Amounts())
    assert [one.limit for one in refused(of, model="m@1").binding] == [1]
    of.admit(CALLER, "m@2", Amounts())
    refused(of)


def test_amounts_as_users_write_them() -> None:
    assert amount_of(Kind.DAY, "12.50") == 12_500_000
    assert amount_of(Kind.AUDIO, "0.5") == 500
    for wrong in ("x", "1.5", "nan", "1e999"):
        with pytest.raises(Exception, match="not an amount"):
            amount_of(Kind.REQUESTS, wrong)
