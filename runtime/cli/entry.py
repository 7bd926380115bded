"""The installed command. `serve` starts itself again with a run id (`processes`); done here, that costs no imports."""

import sys

from runtime.cli.local.processes import own_id, restart_with_id


def main() -> None:
    """What `roundhouse` runs."""
    if sys.argv[1:2] == ["serve"] and not {"-h", "--help"} & set(sys.argv) and own_id() is None:
        restart_with_id()
    from runtime.cli import main as commands

    commands.main()
