"""Which folders of this machine a client may name as a source."""

from collections.abc import Sequence
from pathlib import Path

from registry.errors import BadRequest, NotFound
from registry.wording import quoted


def check_folder(path: str, roots: Sequence[Path], param: str, what: str = "adapters") -> None:
    """Raises NotFound unless `path` is a folder below one of `roots`, links followed.

    One answer for what is not there and for what may not be read: nobody learns what lies elsewhere.
    """
    if path.startswith("~"):
        raise BadRequest(f"Write the whole path in '{param}': '~' would be the server's home, not yours.", param=param)
    if not Path(path).is_absolute():
        raise BadRequest(f"'{param}' must be an absolute path on the server.", param=param)
    try:
        real = Path(path).resolve()
        fits = any(real.is_relative_to(root.resolve()) for root in roots) and real.is_dir()
    except (OSError, ValueError, RuntimeError):  # too long, with a zero, a loop of links
        fits = False
    if not fits:
        raise NotFound(
            f"There is no folder {quoted(path)} below those that {what} may be taken from. "
            "The server's --adapter-roots says which: by default its working directory and its data directory. To take "
            "from elsewhere, start it with that folder there, too." + (" Or upload it." if what == "adapters" else ""),
            code="source_not_found",
            param=param,
        )
