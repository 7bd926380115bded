"""A sink of request records: what teams use, for Prometheus. Teams beyond a bound share one label."""

from runtime.gateway.metrics import Metrics
from runtime.gateway.record import RequestRecord
from runtime.gateway.sinks.labels import FirstLabels
from runtime.gateway.sinks.limits import cost_of
from runtime.gateway.sinks.metrics import outcome
from tenants.costs.prices import MILLION
from tenants.limits.records import Limit

MAX_LABELS = 200


class TeamMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics, self._teams = metrics, FirstLabels(MAX_LABELS)

    def take(self, record: RequestRecord) -> None:
        metrics, context = self._metrics, record.context
        if record.target is None:
            return
        team, class_ = self._teams.of(context.caller.team), context.service_class.label
        metrics.of(metrics.team_requests, team, class_, _status(record)).inc()
        for cause, spent in record.causes.items():
            metrics.spent(metrics.team_wait, spent, team, cause)
        if "first" in record.seconds:
            metrics.of(metrics.team_first, team, class_).observe(record.seconds["first"])
        self.attempt(record)

    def attempt(self, record: RequestRecord) -> None:
        """What it used and costs; as a request it is counted at its end."""
        metrics, context = self._metrics, record.context
        team, class_ = self._teams.of(context.caller.team), context.service_class.label
        for kind, count in record.tokens().items():
            metrics.of(metrics.team_tokens, team, class_, kind).inc(count)
        if cost := cost_of(record):
            metrics.of(metrics.team_cost, team).inc(cost / MILLION)


def _status(record: RequestRecord) -> str:
    """Its outcome, where that is no error's code: there are too many of them for each team."""
    word = outcome(record)
    return word if word in ("ok", "cancelled") or word.isdecimal() else record.end.value


class LimitMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics, self._owners = metrics, FirstLabels(MAX_LABELS)

    def count(self, limit: Limit, what: str) -> None:
        metrics = self._metrics
        metrics.of(metrics.limits, self._owners.of(limit.subject), limit.kind.value, what).inc()
