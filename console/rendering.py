"""Templates, words for numbers, and the headers that everything of the console has."""

import time
from pathlib import Path

import humanize
from jinja2 import Environment, FileSystemLoader, StrictUndefined

FOLDER = Path(__file__).parent
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "media-src 'self' blob:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(self)",
}
"""Pages have no scripts or styles of their own, load nothing from other hosts, and cannot be framed."""


def size(count: float) -> str:
    """1.2 GiB."""
    return humanize.naturalsize(count, binary=True, format="%.1f")


def seconds(value: float | None) -> str:
    """12.3 ms, 1.2 s, 3 min."""
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1e3:.1f} ms" if value < 0.1 else f"{value * 1e3:.0f} ms"
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.0f} min"


def money(value: float | None) -> str:
    """0.0123 and 12.30: small sums keep six decimals, as the database does."""
    if value is None:
        return "-"
    return f"{value:,.2f}" if value >= 10 or value == 0 else f"{value:.6f}".rstrip("0")


def moment(value: float) -> str:
    """2026-11-23 14:00, in UTC as sums of hours are."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(value))


def ago(moment: float | None) -> str:
    return "never" if not moment else humanize.naturaltime(time.time() - moment)


def count(value: float) -> str:
    return f"{value:,.0f}"


templates = Environment(
    loader=FileSystemLoader([FOLDER / "templates", FOLDER / "pages"]),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
templates.filters.update(size=size, seconds=seconds, ago=ago, count=count, money=money, moment=moment)
