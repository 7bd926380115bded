"""Settings of a server, from options of `roundhouse serve` or ROUNDHOUSE_* variables."""

import errno
import ipaddress
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import platformdirs
from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from registry.base.processor import cores
from registry.bounds import TUNABLE, Bounds
from registry.byte_size import ByteSize
from registry.learning import WORKING_MARGIN
from runtime.config.memory import MOST_SLOTS
from tenants.key_settings import KeySettings
from tenants.keys.records import MOST_HOURS

STARTER = "recipes/starter"
MOST_FACTOR = 1000
SCALED = (
    "max_uploads", "max_headers", "max_idle", "max_idle_per_address", "header_seconds", "body_seconds",
    "unread_seconds", "keep_alive",
)  # fmt: skip
"""Settings without an option that `bounds_factor` scales."""


@dataclass(frozen=True, slots=True)
class OptionHelp:
    """Marks a setting that has an option, with its help panel and its default in words."""

    panel: str
    default: str | None = None


WHERE, MEMORY, BOUNDS = OptionHelp("Where"), OptionHelp("Models and memory"), OptionHelp("Bounds")
COSTS, FLEET = OptionHelp("Costs"), OptionHelp("Fleet: several servers")
TIMES = OptionHelp("Times, in seconds")
HOSTS = OptionHelp(WHERE.panel, "loopback; IP addresses and the machine's name if --host is 0.0.0.0")
ORIGINS = OptionHelp(WHERE.panel, "none")
EACH = OptionHelp(BOUNDS.panel, "the table of docs/reference/bounds.md")
ROOTS = OptionHelp(WHERE.panel, "the working directory")
DETECTED = OptionHelp(MEMORY.panel, "85 % of the detected memory")


def starter_recipes() -> tuple[Path, ...]:
    """Return the starter recipes of the working directory, or of this checkout."""
    here = Path(STARTER)
    return (here if os.path.isdir(here) else Path(__file__).resolve().parents[2] / STARTER,)


def default_data_dir() -> Path:
    """Return ./.data in a checkout, otherwise the user's data directory. Raises OSError without a home."""
    if os.path.isdir(STARTER):
        return Path(".data")
    try:
        return platformdirs.user_data_path("roundhouse")
    except RuntimeError:
        cause = "This user has no home folder. Name the data directory with --data-dir, or set HOME"
        raise OSError(errno.ENOENT, cause) from None


def _expanded(path: Path) -> Path:
    """Raises ValueError if the home is unknown."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError(f"{path} begins with the home folder of a user who has none: write the whole path") from None


def default_spin(count: int) -> float:
    """Return the seconds to poll before a sleep: longer than a wake-up takes, shorter than an engine's step.

    0 on few cores, where a polling slot would take them from its engine.
    """
    return 0.0003 if count >= 8 else 0.0


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server listening there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _origin(value: str) -> str:
    """Return an origin as browsers write it. Raises ValueError.

    Pages of Electron's applications often have `file://`, which has no host.
    """
    scheme, separator, rest = value.lower().partition("://")
    host = rest.removesuffix("/")
    if "*" in host:
        raise ValueError(f"{value} would match no origin: name each one, or accept any with *")
    if value in ("*", "null"):
        return value
    if not (scheme and separator) or "/" in host or not (host or scheme == "file"):
        raise ValueError(f"{value} is not a valid origin: write scheme and host, such as https://app.example")
    return f"{scheme}://{host}"


class Settings(BaseSettings):
    """All settings of one server. Frozen. Arguments take precedence over variables.

    Settings without `OptionHelp` have no option: they are set by the command line, secret, or not worth tuning. Tests
    of a real server set the latter with `ROUNDHOUSE_FIXED`, a JSON object.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix="ROUNDHOUSE_", env_ignore_empty=True)

    recipes: Annotated[tuple[Path, ...], NoDecode, OptionHelp(WHERE.panel, "the starter set")] = Field(
        default_factory=starter_recipes,
        description="Recipe file or folder; repeat it, or use colons in the variable, for several.",
    )
    watch: Annotated[bool, WHERE] = Field(
        default=False, description="Reload recipes when their files change. SIGHUP reloads them at any time."
    )
    host: Annotated[str, WHERE] = Field(default="127.0.0.1", description="Address to listen on; 0.0.0.0 for all.")
    public_url: Annotated[str | None, OptionHelp(WHERE.panel, "none")] = Field(
        default=None,
        pattern=r"^https?://[^\s?#]+$",
        description="Address at which clients reach this server, prefix included: https://models.example/ai. Answers "
        "that name another address of this server begin with it.",
    )
    callback_networks: Annotated[tuple[str, ...], NoDecode, OptionHelp(WHERE.panel, "none")] = Field(
        default=(),
        description="Private network whose hosts batches may call back, also over http, such as 10.1.0.0/16; repeat "
        "it, or use commas in the variable.",
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode, HOSTS] = Field(
        default=(),
        description="Host header to accept in addition to this machine's own names; repeat it, or use commas in the "
        "variable. * accepts any.",
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode, ORIGINS] = Field(
        default=(), description="Origin of web pages that may use this server. Same syntax as --allowed-hosts."
    )
    port: Annotated[int, WHERE] = Field(default=8000, ge=1024, le=65535, description="Port to listen on, from 1024.")
    data_dir: Annotated[Path, OptionHelp(WHERE.panel, "./.data in a checkout, else ~/.local/share/roundhouse")] = Field(
        default_factory=default_data_dir,
        description="Folder for everything that survives a restart, such as adapters, aliases and pins.",
    )
    database: Annotated[str | None, OptionHelp(WHERE.panel, "SQLite in the data directory")] = Field(
        default=None,
        repr=False,
        description="Where teams, keys and adapters are stored: postgresql+psycopg://user@host/name. Put a "
        "password into the variable: other users can read command lines.",
    )
    pepper: SecretStr | None = None
    """Secret for the hashes of keys; None for the file `pepper` in the data directory. Not an option, because other
    users can read command lines.
    """
    open: Annotated[bool, WHERE] = Field(
        default=False,
        description="Accept requests without a key, from any host, as team 'default'. Until the first key exists "
        "they may do anything; after that, inference only.",
    )
    oidc: Annotated[Path | None, OptionHelp(WHERE.panel, "none: people sign in with a key")] = Field(
        default=None,
        description="YAML file of the OpenID Connect provider at which people sign in to the console; see "
        "docs/secure.md.",
    )
    store_responses: Annotated[int, WHERE] = Field(
        default=0,
        ge=0,
        le=MOST_HOURS,
        description="Store Responses of requests without a key for this many hours. With 0, only those of teams that "
        "have switched it on are stored.",
    )
    adapter_roots: Annotated[tuple[Path, ...], NoDecode, ROOTS] = Field(
        default=(),
        description="Folder below which adapters and models may be added by path; repeat it, or use colons in the "
        "variable, for several.",
    )
    trust_clients: Annotated[bool, WHERE] = Field(
        default=False, description="Let clients set any engine flag of models that they add. Some flags run code."
    )
    run_dir: Path
    """Folder for sockets, created by the command line at each start and removed at the end."""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], WHERE] = Field(
        default="info", description="Level of the log on standard error: JSON lines, or plain ones on a terminal."
    )
    device: Annotated[str, MEMORY] = Field(
        default="auto",
        pattern=r"^(auto|cuda(:(GPU|MIG)-[\w-]+(,(GPU|MIG)-[\w-]+)*)?|cpu(:[1-9]\d?)?)$",
        description="auto, cpu or cuda. auto uses all GPUs, or the CPU if there are none. cuda:UUID,UUID uses these "
        "GPUs or parts of GPUs. cpu:2 splits the CPU into two devices, each with its own cores.",
    )
    device_memory: Annotated[tuple[ByteSize, ...], NoDecode, DETECTED] = Field(
        default=(),
        description="Budget for models, such as 20GiB: one size for each GPU, or comma-separated sizes. A CPU has one "
        "budget.",
    )
    host_memory: Annotated[ByteSize | None, DETECTED] = Field(
        default=None, description="Budget for models in host memory when they run on a GPU, including sleeping models."
    )
    working_margin: Annotated[ByteSize, MEMORY] = Field(
        default=ByteSize(WORKING_MARGIN), description="Extra memory a CPU model may use beyond its size after loading."
    )
    slots: Annotated[int, MEMORY] = Field(
        default=6,
        ge=1,
        le=MOST_SLOTS,
        description="How many models can be in memory at once. Unless set, the server starts with two more than there "
        "are models, and adds more when it needs them, as far as memory allows.",
    )
    most_slots: int = 0
    """Maximum number of slots after adding some. Set by the command line."""
    slots_at_start: int | None = None
    """Slots to start with if `slots` is not set; None to derive it from the number of models."""
    prewarm: Annotated[bool, MEMORY] = Field(
        default=True, description="Import engine libraries ahead of need, for faster loads."
    )
    currency: Annotated[str, COSTS] = Field(
        default="USD", pattern=r"^[A-Z]{3}$", description="Currency of all prices: three letters, such as EUR."
    )
    machine_price: Annotated[float, COSTS] = Field(
        default=0.0, ge=0, le=1e6, description="Price of this machine per hour; requests are charged their share."
    )
    cold_starts: Annotated[Literal["caller", "pot"], COSTS] = Field(
        default="caller", description="Who pays for a load: caller, who caused it, or pot, which means nobody."
    )
    provider_prices: Annotated[Path | None, OptionHelp(COSTS.panel, "none")] = Field(
        default=None, description="YAML table of provider prices to compare with; see docs/costs.md."
    )
    fleet: Annotated[str | None, OptionHelp(FLEET.panel, "none")] = Field(
        default=None,
        pattern=r"^[a-z][a-z0-9_]{0,30}$",
        description="Name of the fleet that this server belongs to. Needs --database with a PostgreSQL; see "
        "docs/fleet.md.",
    )
    front: Annotated[bool, FLEET] = Field(
        default=False, description="Hold no models: pass every request on to a node of the fleet."
    )
    shared_port: Annotated[bool, FLEET] = Field(
        default=False, description="Let other fronts on this machine listen on the same port."
    )
    fleet_listen: Annotated[str | None, OptionHelp(FLEET.panel, "none")] = Field(
        default=None,
        pattern=r"^(\[[0-9A-Fa-f:]+\]|[^:\s]+):\d{4,5}$",
        description="HOST:PORT to listen on for the other servers of the fleet.",
    )
    fleet_address: Annotated[str | None, OptionHelp(FLEET.panel, "none")] = Field(
        default=None,
        pattern=r"^https?://[^\s/?#]+$",
        description="Address at which the other servers reach that port, such as https://10.0.0.5:8443; http without "
        "certificates.",
    )
    fleet_certificates: Annotated[Path | None, OptionHelp(FLEET.panel, "the folder `fleet` in the data directory")] = (
        Field(default=None, description="Folder that `roundhouse fleet ca issue` filled for this server.")
    )
    fleet_key: Annotated[Path | None, OptionHelp(FLEET.panel, "none")] = Field(
        default=None,
        description="File with a key shared by all servers of the fleet, for signed requests on a closed network "
        "instead of certificates.",
    )
    fleet_name: Annotated[str | None, OptionHelp(FLEET.panel, "the machine's name")] = Field(
        default=None, description="This server's name in the fleet, if it has no certificate."
    )
    max_waiting: Annotated[int, BOUNDS] = Field(
        default=2048, ge=1, description="Requests that may wait in the whole server. Beyond that, 429."
    )
    max_json: Annotated[ByteSize, BOUNDS] = Field(default=ByteSize(4 * 2**20), ge=1, description="Largest JSON body.")
    max_bodies: Annotated[ByteSize, BOUNDS] = Field(
        default=ByteSize(256 * 2**20), ge=1, description="Bytes of all JSON bodies in memory. Beyond that, 429."
    )
    max_headers: ByteSize = ByteSize(64 * 2**10)
    """Bytes of a request line and its headers."""
    max_idle: int = 4096
    """Idle connections. Beyond that, the one idle longest is closed."""
    max_idle_per_address: int = 1024
    """Idle connections per address. Beyond that, the one idle longest is closed."""
    min_rate: ByteSize = ByteSize(4 * 2**10)
    """Minimum bytes per second of a body after `body_seconds`."""
    max_audio: Annotated[ByteSize, BOUNDS] = Field(default=ByteSize(32 * 2**20), ge=1, description="Largest recording.")
    max_file: Annotated[ByteSize, BOUNDS] = Field(
        default=ByteSize(200 * 2**20), ge=2**10, description="Largest file of POST /v1/files."
    )
    files_disk: Annotated[ByteSize, BOUNDS] = Field(
        default=ByteSize(20 * 2**30), ge=2**20, description="Disk space for all files of POST /v1/files together."
    )
    max_adapter: Annotated[ByteSize, BOUNDS] = Field(
        default=ByteSize(2 * 2**30), ge=1, description="Largest adapter archive."
    )
    max_uploads: ByteSize = ByteSize(8 * 2**30)
    """Bytes of all uploads in progress."""
    disk_reserve: Annotated[
        ByteSize | None, OptionHelp(BOUNDS.panel, "1 % of the disk: 64MiB to 1GiB, at most a quarter")
    ] = Field(
        default=None, description="Disk space of the data directory that uploads leave free for the ledger and state."
    )
    max_audio_seconds: Annotated[float, BOUNDS] = Field(
        default=4 * 3600.0, ge=0, allow_inf_nan=False, description="Longest recording, in seconds."
    )
    bounds_factor: Annotated[float, BOUNDS] = Field(
        default=1.0,
        gt=0,
        le=MOST_FACTOR,
        allow_inf_nan=False,
        description="Factor for all bounds that are not set individually.",
    )
    bounds: Annotated[Bounds, NoDecode, EACH] = Field(
        default=Bounds(),
        validate_default=True,
        description="NAME=VALUE, such as tools=200: a bound on one request; repeat it, or use commas in the variable.",
    )
    header_seconds: float = 10.0
    """Time to send the headers of a request."""
    body_seconds: float = 60.0
    """Time to send a body, plus a second for each `min_rate` bytes."""
    unread_seconds: float = 60.0
    """Longest time that a client may leave an answer unread before it is cut off. Of a long one it has to read at least
    8 MiB in this time."""
    keep_alive: float = 75.0
    """Longest idle time of a connection between two requests."""
    drain_seconds: Annotated[float, TIMES] = Field(
        default=60.0,
        ge=0,
        allow_inf_nan=False,
        description="Time that running requests get to finish after Ctrl-C or SIGTERM.",
    )
    patience: float = 1.0
    """Time that a waiting model leaves busy ones alone before one of them must drain."""
    heartbeat: float = 5.0
    """Seconds between pings of each engine."""
    slot_spin: float = Field(default_factory=lambda: default_spin(cores()), ge=0, le=0.01)
    """Seconds that a slot polls before it sleeps while requests are running: 0.0003 on 8 cores or more, otherwise 0.
    Set by `ROUNDHOUSE_SLOT_SPIN`.
    """
    hung_after: Annotated[float, TIMES] = Field(
        default=30.0, gt=0, description="Restart an engine that is silent for this long."
    )

    @property
    def keys(self) -> KeySettings:
        """The database of keys, and which callers need no key."""
        pepper = None if self.pepper is None else self.pepper.get_secret_value()
        sign_in = self.oidc is not None
        place = (self.data_dir, self.database, pepper)
        return KeySettings(*place, is_loopback(self.host), self.open, sign_in, in_fleet=self.fleet is not None)

    @property
    def fleet_folder(self) -> Path:
        """The folder of this server's fleet certificate."""
        return self.fleet_certificates or self.data_dir / "fleet"

    @property
    def fleet_identity(self) -> Literal["certificate", "key", "pepper"]:
        """The proof of identity for the fleet's other servers; pepper if all of them are on this machine."""
        if self.fleet_key is not None:
            return "key"
        if self.fleet_certificates is not None or self.fleet_folder.exists():
            return "certificate"
        is_plain = self.front or (self.fleet_address or "").startswith("http://")
        return "pepper" if is_plain else "certificate"

    @field_validator("allowed_hosts", "callback_networks", "cors_origins", "device_memory", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        given = [value] if isinstance(value, str) else value
        if not isinstance(given, list | tuple):
            return value
        return [part.strip() for text in given for part in str(text).split(",") if part.strip()]

    @field_validator("device_memory")
    @classmethod
    def _some(cls, value: tuple[ByteSize, ...]) -> tuple[ByteSize, ...]:
        """Raise ValueError for a budget of 0."""
        if not all(value):
            raise ValueError("a device with a budget of 0 cannot serve models; exclude it with --device")
        return value

    @field_validator("allowed_hosts")
    @classmethod
    def _hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Raise ValueError for a value that cannot be a Host header."""
        for host in value:
            if "/" in host:
                raise ValueError(f"{host} is not a valid host: write a name or an address, such as models.example")
            if "*" in host and host != "*":
                raise ValueError(f"{host} would match no host: name each one, or accept any with *")
        return value

    @field_validator("database")
    @classmethod
    def _database(cls, value: str | None) -> str | None:
        """Raise ValueError for what is no address of a database."""
        if value is not None:
            from registry.errors import BadRequest
            from registry.storage.database import url_of  # only here, since commands with SQLite's default start faster

            try:
                url_of(value)
            except BadRequest as error:
                raise ValueError(error.message.removesuffix(".")) from None
        return value

    @field_validator("fleet_listen", "fleet_address")
    @classmethod
    def _port(cls, value: str | None) -> str | None:
        """Raise ValueError for a port that is no number up to 65535. The system would use its last 16 bits."""
        try:
            urlsplit(f"//{(value or '').rpartition('//')[2]}").port  # noqa: B018 - read for its error
        except ValueError:
            raise ValueError(f"{value} has no valid port: write a number from 1 to 65535") from None
        return value

    @field_validator("callback_networks")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Raise ValueError for an invalid network."""
        for network in value:
            try:
                ipaddress.ip_network(network)
            except ValueError:
                raise ValueError(f"{network} is not a valid network: write one such as 10.1.0.0/16") from None
        return value

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Return the origins as browsers write them. Raises ValueError for one that no browser sends."""
        return tuple(_origin(one) for one in value)

    @model_validator(mode="before")
    @classmethod
    def _fix(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Fill in the settings that have no option."""
        data = {**json.loads(os.environ.get("ROUNDHOUSE_FIXED") or "{}"), **data}
        try:
            factor, hung_after = float(data.get("bounds_factor", 1)), float(data.get("hung_after", 30))
        except ValueError:  # reported by the fields' own validation
            return data
        if not 0 < factor <= MOST_FACTOR:  # likewise
            return data
        for name in SCALED:
            data.setdefault(name, type(default := cls.model_fields[name].default)(default * factor))
        data.setdefault("heartbeat", min(5.0, hung_after / 6))
        return data

    @field_validator("bounds", mode="before")
    @classmethod
    def _named(cls, value: object, info: ValidationInfo) -> object:
        """Raise ValueError for an unknown bound, or one that is scaled only by the factor."""
        if isinstance(value, Bounds) and value != Bounds():
            return value
        pairs = value.split(",") if isinstance(value, str) else () if isinstance(value, Bounds) else value
        if not isinstance(pairs, list | tuple):
            return pairs
        given = {name.strip(): number.strip() for name, _, number in (str(pair).partition("=") for pair in pairs)}
        for name in sorted(given.keys() - set(TUNABLE)):
            fault = "can only be set by --bounds-factor" if name in Bounds.model_fields else "is not a bound"
            raise ValueError(f"{name} {fault}. These can be set: {', '.join(TUNABLE)}")
        return Bounds.scaled(info.data.get("bounds_factor", 1.0), given)

    @field_validator(
        "recipes", "adapter_roots", "data_dir", "oidc", "provider_prices", "fleet_certificates", "fleet_key"
    )
    @classmethod
    def _at_home(cls, value: object) -> object:
        """Replace a leading ~, which shells leave in `--data-dir=~/x` and in variables from files."""
        if isinstance(value, tuple):
            return tuple(map(_expanded, value))
        return _expanded(value) if isinstance(value, Path) else value

    @field_validator("recipes", "adapter_roots", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        """Split a variable into paths as PATH does."""
        return value.split(os.pathsep) if isinstance(value, str) else value
