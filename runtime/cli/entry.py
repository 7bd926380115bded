"""The installed command. `serve` first restarts itself with a run id, before any import."""

import os
import sys

from runtime.cli.local.processes import own_id, restart_with_id

PORTS = ("ROUNDHOUSE_PORT", "VLLM_PORT")
MULTIPROCESS = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")
"""Variables that some other servers need. With one, the library for metrics would keep ours in files of that folder,
continue from them after a restart with the same process id, and fail if there is no such folder."""


def main() -> None:
    """Run `roundhouse`."""
    for name in PORTS:
        if os.environ.get(name, "").startswith("tcp://"):  # Kubernetes sets it for a Service named roundhouse or vllm
            del os.environ[name]
    for name in MULTIPROCESS:
        os.environ.pop(name, None)
    if sys.argv[1:2] == ["serve"] and not {"-h", "--help"} & set(sys.argv) and own_id() is None:
        restart_with_id()
    try:
        from runtime.cli import main as commands

        commands.main()
    except KeyboardInterrupt:  # during the imports; later ones become exit codes in `CommandGroup`
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
