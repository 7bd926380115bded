"""Addresses to which connections are allowed, and names with several addresses or with others later."""

import asyncio
import ipaddress
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry.base.address import AddressRefused, AddressRules, fault, host_fault
from registry.base.session import Resolver
from routing.providers.connection import PRIVATE_REMEDY
from tests.fakes import traces
from tests.unit.providers.rig import Rig, rigged

RULES = AddressRules("a provider", PRIVATE_REMEDY)
WITH_PRIVATE = AddressRules("a provider", PRIVATE_REMEDY, private=True)
PUBLIC = ["93.184.216.34", "2606:4700::1", "64:ff9b::5db8:d822", "::ffff:93.184.216.34", "2002:5db8:d822::1"]
PRIVATE = [
    "127.0.0.1", "10.1.2.3", "192.168.0.1", "::1", "fd00::1", "fec0::1", "feff::1", "::127.0.0.1", "::10.0.0.1",
    "192.0.0.8", "5f00::1", "::ffff:192.0.0.8",
    "::ffff:10.0.0.1", "2002:0a00:0001::1", "64:ff9b::7f00:1", "64:ff9b::10.0.0.1",
    "::ffff:0:127.0.0.1",
]  # fmt: skip
NEVER = [
    "169.254.169.254", "fe80::1", "fe80::1%eth0", "::ffff:169.254.169.254", "::169.254.169.254",
    "64:ff9b::169.254.169.254", "64:ff9b:1::169.254.169.254", "2002:a9fe:a9fe::1", "0.0.0.0", "::", "224.0.0.1",
    "::ffff:0:169.254.169.254", "64:ff9b::0.0.0.0", "64:ff9b:1:a00:0:100:808:808",
    "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254", "::ffff:100.100.100.200",
]  # fmt: skip


@pytest.mark.parametrize(
    ("addresses", "by_itself", "with_private"),
    [(PUBLIC, True, True), (PRIVATE, False, True), (NEVER, False, False)],
    ids=["public", "private", "never"],
)
def test_public_private_and_forbidden_addresses_are_distinguished(
    addresses: list[str], by_itself: bool, with_private: bool
) -> None:
    for address in addresses:
        assert (fault(address, RULES) is None) is by_itself, address
        assert (fault(address, WITH_PRIVATE) is None) is with_private, address


def test_listed_networks_are_allowed() -> None:
    networks = (ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("169.254.0.0/16"))
    rules = AddressRules("a callback", "--callback-networks allows it", networks=networks)
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "93.184.216.34"):
        assert fault(address, rules) is None, address
    for address in ("10.2.2.3", "127.0.0.1", "169.254.169.254", "::ffff:10.2.2.3"):
        assert fault(address, rules) is not None, address
    assert fault("10.2.2.3", rules) == "10.2.2.3 is private; --callback-networks allows it"
    only = replace(rules, is_listed_only=True)
    assert fault("10.1.2.3", only) is None
    assert fault("93.184.216.34", only) is not None


def test_hosts_that_are_addresses_are_checked_without_a_resolver() -> None:
    for host in ("127.1", "2130706433", "0177.0.0.1", "127.0.0.1.", "127.0.0.1", "::1", "::1%lo"):
        assert host_fault(host, RULES) is not None, host
    for host in ("93.184.216.34", "2606:4700::1", "a.example", "0x7f.1", "localhost"):
        assert host_fault(host, RULES) is None, host


class Names:
    """Replaces the machine's resolver. Each lookup gets the next answer, and then the last one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> None:
        self.answers, self.requested = list(answers), 0
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", self._look_up, raising=False)

    async def _look_up(self, host: str, port: int, **_: Any) -> list[Any]:
        found = self.answers[min(self.requested, len(self.answers) - 1)]
        self.requested += 1
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]


async def test_a_name_with_an_allowed_and_a_forbidden_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Names(monkeypatch, ["93.184.216.34", "127.0.0.1"])
    with pytest.raises(AddressRefused, match="private_addresses"):
        await Resolver(RULES).resolve("a.example", 443)
    Names(monkeypatch, ["127.0.0.1", "169.254.169.254"])
    with pytest.raises(AddressRefused, match="not a valid address for a provider"):
        await Resolver(WITH_PRIVATE).resolve("a.example", 443)


def use_host_name(rig: Rig) -> None:
    upstream = rig.gateway.providers.upstreams["there"]
    url = f"http://a.example:{rig.fake.port}/v1"
    upstream.provider = upstream.provider.model_copy(update={"base_url": url})


async def test_a_name_that_changes_its_address_is_checked_at_each_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is looked up once per connection, and the connection goes to the address that was checked."""
    play = traces.chat("big")
    play.headers["connection"] = "close"
    async with rigged(tmp_path, lambda seen: play) as rig:
        use_host_name(rig)
        names = Names(monkeypatch, ["127.0.0.1"], ["169.254.169.254"])
        assert (await rig.chat()).status_code == 200
        assert names.requested == 1
        connector: Any = (await rig.gateway.providers.upstreams["there"].connect())._session.connector
        connector.clear_dns_cache()
        found = await rig.chat()
        assert (found.status_code, found.json()["error"]["code"]) == (502, "provider_address")
        assert (names.requested, len(rig.fake.seen)) == (2, 1)


async def test_the_first_connection_imports_its_library_in_a_thread(
    tmp_path: Path, imports: list[tuple[str, bool]]
) -> None:
    async with rigged(tmp_path, lambda seen: traces.chat("big")) as rig:
        for _ in range(2):
            assert (await rig.chat()).status_code == 200
    assert imports == [("registry.base.session", False)]
