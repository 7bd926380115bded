"""`roundhouse fleet ca`: certificates without a server."""

import json
from pathlib import Path

from fleet.certificates import read
from tests.unit.cli.conftest import Run


def test_certificates_are_made_and_renewed(run: Run, tmp_path: Path) -> None:
    authority, out = str(tmp_path / "authority"), tmp_path / "node-1"
    assert run("fleet", "ca", "init", "--authority", authority).exit_code == 0
    made = run("fleet", "ca", "issue", "node-1", "--authority", authority, "--out", str(out), "--days", "1", "--json")
    assert made.exit_code == 0, made.stderr
    assert json.loads(made.stdout)["name"] == "node-1"
    first = read(out).ends
    assert run("fleet", "ca", "renew", str(out), "--authority", authority).exit_code == 0
    assert read(out).ends > first


def test_certificates_that_cannot_be_made_are_refused_with_what_to_do(run: Run, tmp_path: Path) -> None:
    authority = str(tmp_path / "authority")
    missing = run("fleet", "ca", "issue", "node-1", "--authority", authority, "--out", str(tmp_path / "out"))
    assert (missing.exit_code, "roundhouse fleet ca init" in missing.stderr) == (1, True)
    run("fleet", "ca", "init", "--authority", authority)
    again = run("fleet", "ca", "init", "--authority", authority)
    assert (again.exit_code, "has an authority already" in again.stderr) == (1, True)
    odd = run("fleet", "ca", "issue", "No Name", "--authority", authority)
    assert (odd.exit_code, "lower-case letters" in odd.stderr) == (2, True)
