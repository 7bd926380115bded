"""Demand for each model from reports, in the number of fully busy replicas."""

from math import exp

from fleet.place import LEASE_SECONDS
from fleet.table import ReportTable

SMOOTHING_SECONDS = 30.0


def demand_of(reports: ReportTable, now: float) -> dict[str, float]:
    """Return the current demand by model: running and waiting requests / requests that one replica runs at once."""
    demand: dict[str, float] = {}
    for report, at in reports:
        if now - at <= LEASE_SECONDS:
            for replica in report.replicas:
                busy = (replica.running + replica.waiting) / (replica.capacity / max(1, replica.ready))
                demand[replica.model] = demand.get(replica.model, 0.0) + busy
    return demand


class DemandMean:
    """Smoothed demand: an exponential mean over SMOOTHING_SECONDS."""

    def __init__(self) -> None:
        self.by_model: dict[str, float] = {}
        self._at: float | None = None

    def take(self, demand: dict[str, float], now: float) -> None:
        """Add a result of `demand_of` at `now`."""
        part = 1.0 if self._at is None else 1 - exp((self._at - now) / SMOOTHING_SECONDS)
        for model in self.by_model.keys() | demand.keys():
            before = self.by_model.get(model, 0.0)
            self.by_model[model] = before + part * (demand.get(model, 0.0) - before)
        self._at = now
