"""A front, which chooses nodes by its reports, and tries a second one."""

from collections.abc import Callable, Mapping

from fleet.choose import FleetTarget, choose
from fleet.simulation.clock import VirtualClock
from fleet.simulation.limits import SimLimits
from fleet.simulation.nodes import SimNode
from fleet.simulation.scenario import Scenario
from fleet.simulation.traffic import SimRequest
from fleet.table import ReportTable

RESET_SECONDS = 0.001
MOST_ATTEMPTS = 4
SILENT_SECONDS = 3.0
"""TCP_USER_TIMEOUT, after which a silent node is given up."""


class SimFront:
    def __init__(
        self,
        scenario: Scenario,
        clock: VirtualClock,
        nodes: Mapping[str, SimNode],
        limits: SimLimits,
        on_outcome: Callable[[SimRequest, str], None],
    ) -> None:
        self._scenario, self._clock, self._nodes, self._limits = scenario, clock, nodes, limits
        self._on_outcome = on_outcome
        self.table = ReportTable()

    def arrive(self, request: SimRequest) -> None:
        """Choose nodes for a request, and send it to the first."""
        target = FleetTarget(request.model, "", request.digest, request.draw)
        request.tries = list(choose(target, request.prefix, self.table, self._clock.now))
        self._try(request)

    def _try(self, request: SimRequest) -> None:
        if not request.tries:
            self._on_outcome(request, "failed")
            return
        name = request.node = request.tries.pop(0)
        request.attempts += 1
        self.table.count_sent(name, request.model, self._clock.now)
        self._clock.after(self._scenario.times.hop, self._send, request, self._nodes[name])

    def _send(self, request: SimRequest, node: SimNode) -> None:
        if node.is_cut or (not node.is_up and node.is_dark):
            self._clock.after(SILENT_SECONDS, self.give_up, request, node.name)
        elif not node.is_up:
            self._clock.after(RESET_SECONDS, self.give_up, request, node.name)
        elif not node.accepts(request.model):
            self._clock.after(self._scenario.times.hop, self._try, request)
        elif not self._limits.admit(node.name, request.team, self._clock.now):
            self._on_outcome(request, "refused")
        else:
            node.arrive(request)

    def give_up(self, request: SimRequest, name: str) -> None:
        """Try another node, unless a byte was passed on, because this one did not answer."""
        self.table.exclude(name)
        if request.outcome or request.node != name:  # it has ended, or continues on another node
            return
        if request.first >= 0:
            self._on_outcome(request, "broken")
        else:
            self._try(request)

    def move(self, request: SimRequest) -> None:
        """Choose again for a request that its node sent back before it started."""
        if request.attempts < MOST_ATTEMPTS:
            self.arrive(request)
        else:
            self._on_outcome(request, "failed")
