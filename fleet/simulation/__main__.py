"""Run a simulation: `python -m fleet.simulation --nodes 64`.

Lines of output report progress, such as {"part": 0.25}. The last line has the figures.
"""

import argparse
import sys
from pathlib import Path

import msgspec

from fleet.simulation.figures import figures_of
from fleet.simulation.run import simulate
from fleet.simulation.scenario import Scenario, read_scenario, scenario_of
from registry.errors import BadRequest


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fleet.simulation", description="Simulate a fleet.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("file", nargs="?", type=Path, help="a scenario in YAML")
    what.add_argument("--nodes", type=int, help="number of nodes, of which a rack is lost")
    args = parser.parse_args()
    try:
        scenario = _checked(scenario_of(args.nodes)) if args.file is None else read_scenario(args.file)
    except BadRequest as error:
        print(error, file=sys.stderr)
        return 2
    print(msgspec.json.encode(figures_of(simulate(scenario, _print_part))).decode())
    return 0


def _checked(scenario: Scenario) -> Scenario:
    """Check a scenario. Raises BadRequest for values out of bounds."""
    try:
        return msgspec.convert(msgspec.to_builtins(scenario), Scenario)
    except msgspec.ValidationError as error:
        raise BadRequest(f"This cannot be simulated: {error}.") from None


def _print_part(part: float) -> None:
    print(msgspec.json.encode({"part": part}).decode(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
