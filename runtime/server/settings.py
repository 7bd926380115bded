"""Settings of one server. The command line and ROUNDHOUSE_* variables fill them; recipes hold what is per model."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field


class Settings(BaseModel):
    """Frozen; handed to the gateway as a whole."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    recipes: tuple[Path, ...]
    """Recipe files or folders."""
    data_dir: Path
    """State that survives a restart: SQLite, adapter store, measured figures."""
    run_dir: Path
    """Sockets; a fresh folder per start, removed at the end."""
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=1024, le=65535)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    device_memory: ByteSize | None = None
    """Budget for all models on the device; None: detected (see runtime.server.device)."""
    host_memory: ByteSize | None = None
    """Budget for all models in host memory beside a GPU; None: detected. Not for a CPU."""
    slots: int = Field(default=6, ge=1, le=64)
    """Models that can be resident at once."""
    max_waiting: int = Field(default=2048, ge=1)
    """Requests that may wait in the whole server."""
    max_json: ByteSize = ByteSize(4 * 2**20)
    max_audio: ByteSize = ByteSize(32 * 2**20)
    max_adapter: ByteSize = ByteSize(2 * 2**30)
    max_audio_seconds: float = 4 * 3600.0
    drain_seconds: float = Field(default=60.0, ge=0)
    """How long running requests may go on after SIGTERM."""
    patience: float = Field(default=1.0, ge=0)
    """Seconds that a waiting model lets busy ones go on before the least recently used one must drain."""
    heartbeat: float = Field(default=5.0, gt=0)
    hung_after: float = Field(default=30.0, gt=0)
    prewarm: bool = True
    """Import engine libraries in empty slots ahead of need."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
