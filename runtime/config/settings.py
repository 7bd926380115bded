"""Settings of one server: options of `roundhouse serve`, else ROUNDHOUSE_* variables. Recipes hold the rest."""

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import platformdirs
from pydantic import ByteSize, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from registry.bounds import USUAL, Bounds
from registry.learning import WORKING_MARGIN
from tenants.key_settings import KeySettings

STARTER = "recipes/starter"


@dataclass(frozen=True, slots=True)
class OptionHelp:
    """A setting that has an option: where the help shows it, and its default in words if it is found at the start."""

    panel: str
    default: str | None = None


WHERE, MEMORY, BOUNDS = OptionHelp("Where"), OptionHelp("Models and memory"), OptionHelp("Bounds")
COSTS = OptionHelp("Costs")
TIMES = OptionHelp("Times, in seconds")
HOSTS, ORIGINS = (
    OptionHelp(WHERE.panel, "loopback; IP addresses and the machine's name if --host is 0.0.0.0"),
    OptionHelp(WHERE.panel, "none"),
)
EACH = OptionHelp(BOUNDS.panel, "the table of docs/reference/bounds.md")
ROOTS = OptionHelp(WHERE.panel, "the working directory")
DETECTED = OptionHelp(MEMORY.panel, "85 % of what is there")


def starter_recipes() -> tuple[Path, ...]:
    """Those in the working directory, else those of the checkout that this package lies in."""
    here = Path(STARTER)
    return (here if os.path.isdir(here) else Path(__file__).resolve().parents[2] / STARTER,)


def default_data_dir() -> Path:
    """./.data in a checkout, else the user's own data directory."""
    return Path(".data") if os.path.isdir(STARTER) else platformdirs.user_data_path("roundhouse")


def is_loopback(host: str) -> bool:
    """Can only this machine reach what listens there?"""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Settings(BaseSettings):
    """Frozen; handed to the server and to the gateway as a whole. What is given wins over variables."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix="ROUNDHOUSE_", env_ignore_empty=True)

    recipes: Annotated[tuple[Path, ...], NoDecode, OptionHelp(WHERE.panel, "the starter set")] = Field(
        default_factory=starter_recipes, description="Recipe file or folder; may be given more than once."
    )
    watch: Annotated[bool, WHERE] = Field(
        default=False, description="Read the recipes again when their files change; SIGHUP does that at any time."
    )
    host: Annotated[str, WHERE] = Field(default="127.0.0.1", description="Address to listen on; 0.0.0.0 for all.")
    allowed_hosts: Annotated[tuple[str, ...], NoDecode, HOSTS] = Field(
        default=(),
        description="Host of requests, beside the machine's own; may be given more than once, in the variable with "
        "commas. *: any.",
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode, ORIGINS] = Field(
        default=(), description="Origin of web pages elsewhere that may use this server; as --allowed-hosts."
    )
    port: Annotated[int, WHERE] = Field(default=8000, ge=1024, le=65535, description="Port to listen on.")
    data_dir: Annotated[Path, OptionHelp(WHERE.panel, "./.data in a checkout, else ~/.local/share/roundhouse")] = Field(
        default_factory=default_data_dir, description="What survives a restart: adapters, aliases, pins."
    )
    database: Annotated[str | None, OptionHelp(WHERE.panel, "SQLite in the data directory")] = Field(
        default=None,
        repr=False,
        description="Where teams, keys and the state of adapters are kept: postgresql+psycopg://user@host/name. A "
        "password belongs into the variable: others on this machine can read command lines.",
    )
    pepper: SecretStr | None = None
    """Of the keys' hashes; None: the file `pepper` in the data directory. No option: others can read those."""
    open: Annotated[bool, WHERE] = Field(
        default=False,
        description="Let in whoever shows no key, also from other machines, as the team 'default': "
        "for everything while there is no key, once there is one only to ask models.",
    )
    adapter_roots: Annotated[tuple[Path, ...], NoDecode, ROOTS] = Field(
        default=(),
        description="Folder below which adapters and models may be added by path; may be given more than once.",
    )
    trust_clients: Annotated[bool, WHERE] = Field(
        default=False, description="Clients may set any engine flag of models that they add: some run code of others."
    )
    run_dir: Path
    """Sockets; a fresh folder per start, removed at the end. The command line makes it."""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], WHERE] = Field(
        default="info", description="Of the log on standard error: JSON lines, or plain ones on a terminal."
    )
    device: Annotated[str, MEMORY] = Field(
        default="auto",
        pattern=r"^(auto|cuda|cpu(:[1-9]\d?)?)$",
        description="auto, cpu, cuda; auto: the first GPU, else the CPU. cpu:2: the CPU as two, half the budget each.",
    )
    device_memory: Annotated[ByteSize | None, DETECTED] = Field(
        default=None, gt=0, description="Budget for all models, such as 20GiB."
    )
    host_memory: Annotated[ByteSize | None, DETECTED] = Field(
        default=None, description="Beside a GPU: budget in host memory, for sleeping models too."
    )
    working_margin: Annotated[ByteSize, MEMORY] = Field(
        default=ByteSize(WORKING_MARGIN), description="So much more than after its load may a model hold on a CPU."
    )
    slots: Annotated[int, MEMORY] = Field(
        default=6, ge=1, le=64, description="How many models can be in memory at once."
    )
    prewarm: Annotated[bool, MEMORY] = Field(
        default=True, description="Import engine libraries ahead of need: faster loads."
    )
    currency: Annotated[str, COSTS] = Field(
        default="USD", pattern=r"^[A-Z]{3}$", description="Of all prices: three letters, such as EUR."
    )
    machine_price: Annotated[float, COSTS] = Field(
        default=0.0, ge=0, le=1e6, description="What this machine costs an hour: requests are charged their part of it."
    )
    cold_starts: Annotated[Literal["caller", "pot"], COSTS] = Field(
        default="caller", description="Who is charged a load's time: who caused it, or nobody by itself."
    )
    provider_prices: Annotated[Path | None, OptionHelp(COSTS.panel, "none")] = Field(
        default=None, description="YAML table of providers' prices, to compare with; see docs/costs.md."
    )
    max_waiting: Annotated[int, BOUNDS] = Field(
        default=2048, ge=1, description="Requests that may wait in the whole server, then 429."
    )
    max_json: Annotated[ByteSize, BOUNDS] = Field(default=ByteSize(4 * 2**20), description="Largest JSON body.")
    max_bodies: Annotated[ByteSize, BOUNDS] = Field(
        default=ByteSize(256 * 2**20), description="All such bodies that come or wait at one time together, then 429."
    )
    max_headers: Annotated[ByteSize, BOUNDS] = Field(
        default=ByteSize(64 * 2**10), description="Largest request line and headers together."
    )
    max_idle: Annotated[int, BOUNDS] = Field(
        default=4096, ge=1, description="Connections that wait for a request, then the longest idle one is closed."
    )
    max_idle_per_address: Annotated[int, BOUNDS] = Field(
        default=1024, ge=1, description="Of them from one address, then its longest idle one is closed."
    )
    min_rate: Annotated[ByteSize, BOUNDS] = Field(
        default=ByteSize(4 * 2**10), ge=1, description="Bytes of a body per second once --body-seconds are over."
    )
    max_audio: Annotated[ByteSize, BOUNDS] = Field(default=ByteSize(32 * 2**20), description="Largest recording.")
    max_adapter: Annotated[ByteSize, BOUNDS] = Field(
        default=ByteSize(2 * 2**30), description="Largest adapter archive."
    )
    max_uploads: Annotated[ByteSize, BOUNDS] = Field(
        default=ByteSize(8 * 2**30), description="All uploads that are there at one time together, then 429."
    )
    max_audio_seconds: Annotated[float, BOUNDS] = Field(
        default=4 * 3600.0, description="Longest recording, in seconds."
    )
    bounds: Annotated[Bounds, NoDecode, EACH] = Field(
        default=USUAL,
        description="NAME=VALUE, such as tools=200: what else one request may ask for; may be given more than once, in "
        "the variable with commas.",
    )
    header_seconds: Annotated[float, TIMES] = Field(
        default=10.0, gt=0, description="How long a connection may take to send a request's headers."
    )
    body_seconds: Annotated[float, TIMES] = Field(
        default=60.0, gt=0, description="How long a body may take, and more for each --min-rate bytes of it."
    )
    unread_seconds: Annotated[float, TIMES] = Field(
        default=60.0, gt=0, description="How long a client may leave an answer unread, then it is cut."
    )
    keep_alive: Annotated[float, TIMES] = Field(
        default=75.0, gt=0, description="How long a connection may be idle between two requests."
    )
    drain_seconds: Annotated[float, TIMES] = Field(
        default=60.0,
        ge=0,
        allow_inf_nan=False,
        description="How long running requests may go on after Ctrl-C or SIGTERM.",
    )
    patience: Annotated[float, TIMES] = Field(
        default=1.0, ge=0, description="How long a waiting model lets busy ones go on, then one goes."
    )
    heartbeat: Annotated[float, TIMES] = Field(
        default=5.0, gt=0, description="How often engines are asked if they live."
    )
    hung_after: Annotated[float, TIMES] = Field(
        default=30.0, gt=0, description="An engine that is silent for so long is restarted."
    )

    @property
    def keys(self) -> KeySettings:
        """Where keys are, and who needs none."""
        pepper = None if self.pepper is None else self.pepper.get_secret_value()
        return KeySettings(self.data_dir, self.database, pepper, is_loopback(self.host), self.open)

    @field_validator("allowed_hosts", "cors_origins", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        given = [value] if isinstance(value, str) else value
        if not isinstance(given, list | tuple):
            return value
        return [part.strip() for text in given for part in str(text).split(",") if part.strip()]

    @field_validator("allowed_hosts")
    @classmethod
    def _hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Raises ValueError for what no Host header can be."""
        for host in value:
            if "/" in host:
                raise ValueError(f"{host} is no host: write a name or an address, such as models.example")
        return value

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Raises ValueError for what no browser sends as Origin."""
        for origin in value:
            scheme, separator, host = origin.rstrip("/").partition("://")
            if origin not in ("*", "null") and not (scheme and separator and host and "/" not in host):
                raise ValueError(f"{origin} is no origin: write scheme and host, such as https://app.example")
        return value

    @field_validator("bounds", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        """Raises ValueError with the names that there are."""
        pairs = value.split(",") if isinstance(value, str) else value
        if not isinstance(pairs, list | tuple):
            return pairs
        result = {name.strip(): number.strip() for name, _, number in (str(pair).partition("=") for pair in pairs)}
        if unknown := result.keys() - Bounds.model_fields.keys():
            raise ValueError(f"{min(unknown)} is none of {', '.join(Bounds.model_fields)}")
        return result

    @field_validator("recipes", "adapter_roots", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        """A variable holds paths as PATH does."""
        return value.split(os.pathsep) if isinstance(value, str) else value
