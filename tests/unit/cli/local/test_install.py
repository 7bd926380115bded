"""The pinned packages, the scripts and the Makefile."""

import ast
import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from runtime.cli.options import root

ROOT = root()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OTHER_FOLDERS = {
    "pynvml", "langchain_cohere", "langchain_huggingface", "semantic_router", "litellm", "pydantic_ai", "agents",
    "llama_index", "instructor",
}  # fmt: skip
"""Modules of the CUDA build or of the environments of scripts/install-clients only."""
FOLDERS = {
    "registry", "adapters", "models", "tenants", "routing", "batches", "launch", "console", "fleet", "runtime", "tests",
    "benchmarks", "docs", "starter-training",
}  # fmt: skip
OURS = FOLDERS | {"starter_training"}
PINNED = re.compile(r"^([a-z0-9-]+)==([^ ;]+)( ; .+)?$")


def lines(name: str) -> list[str]:
    return (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()


def pins(*names: str) -> dict[str, set[str]]:
    """Return each package's pinned versions; there may be several, with markers."""
    result: dict[str, set[str]] = {}
    for name in names:
        for line in lines(name):
            matched = PINNED.match(line)
            assert matched, f"{name}.txt: '{line}' is not a plain pin"
            result.setdefault(matched[1], set()).add(matched[2])
    return result


@pytest.mark.parametrize("build", ["cpu", "cuda"])
def test_everything_in_pyproject_is_pinned(build: str) -> None:
    result = pins(build, "test")
    expected = [*PROJECT["dependencies"], *EXTRAS[build], *EXTRAS["test"], *EXTRAS["bench"], *EXTRAS["starter"]]
    for text in expected:
        requirement = Requirement(text)
        versions = result.get(canonicalize_name(requirement.name), set())
        assert versions, f"{text} is not pinned: run make lock"
        for version in versions:
            assert requirement.specifier.contains(version, prereleases=True), f"{text} is pinned to {version}"


def test_the_server_needs_no_test_tools() -> None:
    for text in (*PROJECT["dependencies"], *EXTRAS["cpu"]):
        assert canonicalize_name(Requirement(text).name) in pins("cpu")


def test_the_minutes_of_byte_code_are_announced() -> None:
    script = (ROOT / "scripts" / "install").read_text()
    assert (
        0
        < script.index("then their byte code is compiled, minutes on few cores")
        < script.index("--compile-bytecode --python")
    )


@pytest.mark.parametrize("build", ["cpu", "cuda"])
def test_each_build_has_postgresqls_driver(build: str) -> None:
    """With its library, because `psycopg` alone needs the system's."""
    assert {"psycopg", "psycopg-binary"} <= set(pins(build))


def test_the_cpu_build_has_cpu_torch_and_no_cuda_builds() -> None:
    result = pins("cpu")
    assert result["torch"] == {"2.13.0+cpu"}
    assert not {"torchvision", "torchaudio", "torchcodec"} & set(result)
    assert not {name for name in (*result, *pins("test")) if name.startswith(("nvidia-", "cuda-"))}


def test_one_version_on_top_of_either_build() -> None:
    """test.txt is installed after cpu.txt or cuda.txt."""
    for build in ("cpu", "cuda"):
        both = set(pins(build)) & set(pins("test"))
        assert not both, f"{build}.txt and test.txt both pin {both}"


def test_no_hosts_in_the_pins() -> None:
    for file in filter(Path.is_file, (ROOT / "requirements").rglob("*")):
        assert "://" not in file.read_text(), file.name


def imported(folder: Path) -> dict[str, Path]:
    """Return the top-level names of all imports in a folder."""
    result: dict[str, Path] = {}
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                result.update({alias.name.partition(".")[0]: file for alias in node.names})
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                result[node.module.partition(".")[0]] = file
    return {name: file for name, file in result.items() if name not in sys.stdlib_module_names | OURS}


@cache
def distributions_of_modules() -> Mapping[str, Sequence[str]]:
    return packages_distributions()


@pytest.mark.parametrize("folder", sorted(FOLDERS))
def test_what_is_imported_is_declared(folder: str) -> None:
    """No module may rely on another package's dependencies."""
    declared = [*PROJECT["dependencies"], *EXTRAS["cpu"], *EXTRAS["cuda"], *EXTRAS["ray"]]
    tools = [*EXTRAS["test"], *EXTRAS["bench"], *EXTRAS["starter"]]
    names: set[str] = {canonicalize_name(Requirement(text).name) for text in declared + tools}
    names |= {"pydantic-core", "annotated-types"}  # parts of pydantic itself
    distributions = distributions_of_modules()
    for module, file in imported(ROOT / folder).items():
        known = {canonicalize_name(name) for name in distributions.get(module, ())}
        if not known:
            optional = {Requirement(text).name for text in EXTRAS["ray"]}  # in no lock
            assert module in {*OTHER_FOLDERS, *optional}, f"{file} imports {module}, which is not installed"
            continue
        assert known & names, f"{file} imports {module}: name one of {sorted(known)} in pyproject.toml"


SCRIPTS = ["install", "install-clients", "install-programs", "lock", "settings.sh"]


@pytest.mark.parametrize("script", [*(f"scripts/{name}" for name in SCRIPTS), ".ci/run"])
def test_scripts_parse_and_stop_at_errors(script: str) -> None:
    file = ROOT / script
    assert subprocess.run(["bash", "-n", str(file)], check=False).returncode == 0
    if not script.endswith(".sh"):
        assert file.stat().st_mode & 0o111, f"{script} cannot be run"
        assert "set -euo pipefail" in file.read_text()


def make(*arguments: str) -> str:
    done = subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=240)
    return done.stdout


def test_make_help_names_every_target() -> None:
    reported = make("help")
    for target in ("serve", "test", "check", "lint", "bench", "starter", "lock", "clean"):
        assert re.search(rf"^  {target} +\w", reported, re.MULTILINE)


def test_make_serve_passes_its_variables_on() -> None:
    reported = make("-n", "serve", "PORT=9000", "HOST=0.0.0.0", "RECIPES=a b")
    assert "roundhouse serve --host 0.0.0.0 --port 9000 --recipes a --recipes b" in " ".join(reported.split())
    bare = make("-n", "serve").splitlines()
    assert ["exec", ".venv/bin/roundhouse", "serve"] in [line.split() for line in bare]  # its own variables count


def test_make_serve_ignores_the_shells_host_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST", "x86_64-conda-linux-gnu")
    assert "--host" not in make("-n", "serve")


def test_the_ci_brings_programs_and_calls_make_test() -> None:
    commands = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line and not line.startswith("#")]
    assert commands == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "scripts/install-programs", "make test"]


def test_programs_that_cannot_be_installed_do_not_fail_the_script(tmp_path: Path) -> None:
    for name in ("bash", "dirname", "sed"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    script = [str(ROOT / "scripts/install-programs")]
    done = subprocess.run(script, capture_output=True, text=True, check=True, timeout=240, env={"PATH": str(tmp_path)})
    assert "apt-get install chromium" in done.stderr


def install(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(ROOT / "scripts/install"), *arguments],
        capture_output=True, text=True, check=False, timeout=240, env={"PATH": "/usr/bin:/bin", **environment},
    )  # fmt: skip


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The scripts and pins alone, in a folder whose name has a space."""
    folder = tmp_path / "a checkout"
    for name in ("scripts", "requirements"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


def run(script: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": "/bin/false"}
    return subprocess.run([script, *arguments], capture_output=True, text=True, check=False, env=environment)


def test_without_a_home_the_likely_cause_of_a_failure_is_given_too() -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", ". scripts/settings.sh; why"],
        cwd=ROOT, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout
    assert not done.stderr


@pytest.mark.parametrize("words", ["install-clients infinity", "install-clients routing", "lock"])
def test_without_a_suitable_python_there_is_one_clear_error(checkout: Path, words: str) -> None:
    name, *arguments = words.split()
    done = run(checkout / "scripts" / name, *arguments)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: Python 3.11 to 3.14 is needed and /bin/false is not one")


def programs(folder: Path, **scripts: str) -> None:
    folder.mkdir(parents=True)
    for name, code in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{code}\n")
        (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("named", "there", "whole", "anew"),
    [
        (True, "3.14", True, True),
        (True, "{}.{}".format(*sys.version_info), True, False),
        (False, "3.14", True, False),
        (False, "3.14", False, True),
    ],
)
def test_the_named_python_is_used_for_the_environment(
    checkout: Path, named: bool, there: str, whole: bool, anew: bool
) -> None:
    """Also if there is an environment with another suitable version, and if its path has a space.

    whole: the environment was made to its end. The Python of a half-made one is the system's.
    """
    shutil.copy(ROOT / "pyproject.toml", checkout)
    programs(checkout / ".venv-installer/bin", uv='echo "$@" >> said', python="exit 0")
    shutil.copy(checkout / "requirements/installer.txt", checkout / ".venv-installer/pins")
    programs(checkout / ".venv/bin", python=f"echo {there}", roundhouse="exit 0")
    if whole:
        (checkout / ".venv/pyvenv.cfg").touch()
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    (checkout / "named").symlink_to(sys.executable)
    environment = {"PATH": path, "PYTHON": str(checkout / "named") if named else "", "ACCELERATOR": "cuda"}
    script = [checkout / "scripts/install", "run"]
    subprocess.run(script, capture_output=True, text=True, check=True, timeout=240, env=environment)
    assert ("venv --quiet --clear" in (checkout / "said").read_text()) is anew


@pytest.mark.parametrize(
    ("seen", "smi", "build"),
    [
        ("/dev/nvidia0", "exit 9", "cuda"),  # gVisor
        ("/proc/driver/nvidia/gpus/0000:01:00.0", "exit 9", "cpu"),  # a container without the host's GPU
        ("none", "echo 'GPU 0: NVIDIA H100'", "cuda"),  # WSL
        ("none", "exit 9", "cpu"),
    ],
)
def test_the_build_is_chosen_by_the_gpus_that_can_be_used(checkout: Path, seen: str, smi: str, build: str) -> None:
    shutil.copy(ROOT / "pyproject.toml", checkout)
    programs(checkout / ".venv-installer/bin", uv="exit 0", python="exit 0")
    shutil.copy(checkout / "requirements/installer.txt", checkout / ".venv-installer/pins")
    programs(checkout / ".venv/bin", python="echo 3.12", roundhouse="exit 0")
    programs(checkout / "host", **{"nvidia-smi": smi})
    there = checkout / "bash-env"  # read by bash before the script
    there.write_text(
        'compgen() { case $SEEN in $2) return ;; esac; case $2 in *nvidia*) false ;; *) builtin compgen "$@" ;; esac; }'
    )
    path = f"{checkout / 'host'}:{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = {"PATH": path, "PYTHON": sys.executable, "BASH_ENV": str(there), "SEEN": seen}
    script = [checkout / "scripts/install", "run"]
    done = subprocess.run(script, capture_output=True, text=True, check=True, timeout=240, env=environment)
    assert f"installed the {build} build" in done.stderr


def test_a_new_lock_starts_from_the_current_pins(checkout: Path) -> None:
    """uv keeps the versions in the file that it writes, so that only `--upgrade` changes them."""
    shutil.copy(ROOT / "pyproject.toml", checkout)
    witness = 'while [ "$1" != --output-file ]; do shift; done; cp "$2" "$2.seen"; cat'  # all of a pipe
    programs(checkout / ".venv-installer/bin", uv=witness, python="exit 0")
    shutil.copy(checkout / "requirements/installer.txt", checkout / ".venv-installer/pins")
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable}
    subprocess.run(
        [checkout / "scripts/lock"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
        env=environment,
    )  # fmt: skip
    shared = set(lines("cpu"))
    for name in ("cuda", "test", "langchain", "others", "routing"):
        seen = (checkout / "requirements" / f"{name}.txt.seen").read_text().splitlines()
        names = {line.partition("==")[0] for line in shared & set(seen)}
        assert {line for line in lines(name) if line.partition("==")[0] not in names} <= set(seen), name
        assert name not in ("cuda", "test") or {line for line in shared if "+cpu" not in line} <= set(seen)


def test_the_peers_environment_is_made_again_after_its_checkout_was_moved(checkout: Path) -> None:
    """Its programs contain the interpreter's absolute path."""
    digest = hashlib.sha256((checkout / "requirements/infinity.txt").read_bytes()).hexdigest()
    stamp = checkout / ".venv-infinity" / "roundhouse-stamp"
    stamp.parent.mkdir()
    for key, code in ((digest, 1), (f"{digest} /elsewhere", 1), (f"{digest} {checkout}", 0)):
        stamp.write_text(key)
        assert run(checkout / "scripts/install-clients", "infinity").returncode == code, key


def test_the_installer_refuses_unknown_arguments() -> None:
    assert "run|test" in install("all").stderr
    assert "cpu or cuda" in install("run", ACCELERATOR="tpu").stderr
