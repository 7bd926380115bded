"""What of others is shipped in `static/vendor`: what it is, which version, its licence, and the sum of its bytes."""

from typing import NamedTuple


class Vendored(NamedTuple):
    package: str
    """On npm."""
    version: str
    license: str
    sha256: str


VENDORED = {
    "htmx.min.js": Vendored(
        "htmx.org", "4.0.1", "htmx.LICENSE", "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130"
    ),
    "uPlot.iife.min.js": Vendored(
        "uplot", "1.6.32", "uPlot.LICENSE", "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
    ),
    "uPlot.min.css": Vendored(
        "uplot", "1.6.32", "uPlot.LICENSE", "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"
    ),
}
"""`npm pack PACKAGE@VERSION` brings the file again, below `package/dist`."""
