"""`roundhouse fleet ca`: certificates by which the servers of a fleet identify each other. Needs no server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli.failures import translated_faults
from runtime.cli.options import AsJson
from runtime.cli.output import emit, note

if TYPE_CHECKING:
    from fleet.certificates import ServerCertificate

Authority = Annotated[
    Path, typer.Option("--authority", help="Folder of the authority, with the key that signs. Keep it offline.")
]
FOLDER = Path("fleet-authority")
DAYS, AUTHORITY_DAYS = 90, 3650
Days = Annotated[int, typer.Option(min=1, max=3650, help="Days until the certificate expires.")]
app = typer.Typer(help="Certificates of a fleet's servers.", no_args_is_help=True)


@app.command()
def init(authority: Authority = FOLDER, days: Days = AUTHORITY_DAYS, as_json: AsJson = False) -> None:
    """Create the fleet's authority: a key, and the certificate by which servers identify each other.

    Example: roundhouse fleet ca init --authority fleet-authority
    """
    with translated_faults():
        from fleet.certificates import make_authority

        make_authority(authority, days)
    if as_json:
        emit({"object": "fleet.authority", "folder": str(authority), "days": days})
    else:
        note(f"created the authority in {authority}. Next, for each server: roundhouse fleet ca issue NAME")


@app.command()
def issue(
    name: Annotated[str, typer.Argument(help="Name of the server in the fleet.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Folder for its files.", show_default="NAME")] = None,
    authority: Authority = FOLDER,
    days: Days = DAYS,
    as_json: AsJson = False,
) -> None:
    """Create a server's key and certificate. Copy the folder to that server and use it as --fleet-certificates.

    Example: roundhouse fleet ca issue node-1 --out node-1
    """
    with translated_faults():
        from fleet import certificates

        folder = out or Path(name)
        _show(certificates.issue(authority, name, folder, days), folder, as_json)


@app.command()
def renew(
    folder: Annotated[Path, typer.Argument(help="Folder of the server's files.", show_default=False)],
    authority: Authority = FOLDER,
    days: Days = DAYS,
    as_json: AsJson = False,
) -> None:
    """Replace a server's key and certificate. A running server uses them from the next connection on.

    Example: roundhouse fleet ca renew node-1
    """
    with translated_faults():
        from fleet import certificates

        _show(certificates.renew(authority, folder, days), folder, as_json)


def _show(made: "ServerCertificate", folder: Path, as_json: bool) -> None:
    ends = f"{made.ends:%Y-%m-%d %H:%M}"
    if as_json:
        emit({"object": "fleet.certificate", "name": made.name, "folder": str(folder), "ends": ends})
    else:
        note(f"created the certificate of {made.name} in {folder}, valid until {ends} UTC")
