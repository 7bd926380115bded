"""A sink of request records: what teams use, for Prometheus. Teams beyond a bound share one label."""

from runtime.gateway.metrics import Metrics
from runtime.gateway.record import RequestRecord
from runtime.gateway.sinks.limits import cost_of
from runtime.gateway.sinks.metrics import outcome
from tenants.costs.prices import MILLION
from tenants.limits.records import Limit

MOST, OTHER = 200, "other"


class Labels:
    """The first names that come keep their own label."""

    def __init__(self, most: int = MOST) -> None:
        self._most, self._known = most, set[str]()

    def of(self, name: str) -> str:
        if name not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(name)
        return name


class TeamMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics, self._teams = metrics, Labels()

    def take(self, record: RequestRecord) -> None:
        context, usage = record.context, record.usage
        if record.target is None:
            return
        team, class_ = self._teams.of(context.caller.team), context.service_class.name.lower()
        self._metrics.team_requests.labels(team, class_, outcome(record)).inc()
        for kind, count in (
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("completion", usage.completion_tokens),
        ):
            if count:
                self._metrics.team_tokens.labels(team, class_, kind).inc(count)
        if cost := cost_of(record):
            self._metrics.team_cost.labels(team).inc(cost / MILLION)


class LimitMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics, self._owners = metrics, Labels()

    def told(self, limit: Limit, what: str) -> None:
        self._metrics.limits.labels(self._owners.of(limit.subject), limit.kind.value, what).inc()
