"""URLs that are refused when a batch is created, and URLs that are not called later."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
import uvloop

from batches.callbacks.addresses import CallbackAddresses
from batches.callbacks.sender import CallbackSender
from registry.base.address import Found
from registry.errors import BadRequest, QueueFull
from tests.eventually import PATIENCE
from tests.unit.batches.callbacks.receiver import Receiver, new_secret

LOOPBACK = ("127.0.0.0/8",)
TEN = ("10.0.0.0/8",)


class Names:
    """Replaces the machine's resolver, with answers in turn."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers, self.requested = answers, 0

    async def __call__(self, host: str, port: int, family: int) -> Sequence[Found]:
        found = self.answers[min(self.requested, len(self.answers) - 1)]
        self.requested += 1
        if not found:
            raise socket.gaierror
        return [(socket.AF_INET6 if ":" in one else socket.AF_INET, one) for one in found]


PUBLIC = Names(["93.184.216.34"])
REFUSED = [
    "http://example.com/x", "ftp://example.com", "https://", "https:///x", "example.com", "//example.com", "",
    "https://user@example.com", "https://user:password@example.com", "https://example.com/#part",
    "https://example.com:0/", "https://example.com:99999/", "https://exa mple.com/", "https://example.com/\n",
    "https://exämple.com/", "https://[::1", "javascript:alert(1)", f"https://example.com/{'x' * 3000}",
    "https://127.0.0.1/", "https://127.0.0.1:8443/x", "https://[::1]/", "https://[::ffff:127.0.0.1]/",
    "https://[64:ff9b::a00:1]/", "https://0.0.0.0/", "https://10.0.0.1/", "https://192.168.1.1/",
    "https://169.254.169.254/latest/meta-data", "https://[fe80::1%25eth0]/", "https://[fd00::1]/", "https://100.64.0.1/",
    "https://2130706433/", "https://127.1/", "https://0177.0.0.1/", "https://127.0.0.1./", "https://017700000001/",
]  # fmt: skip


@pytest.mark.parametrize("url", REFUSED, ids=range(len(REFUSED)))
async def test_private_and_invalid_urls_are_refused(url: str) -> None:
    with pytest.raises(BadRequest) as refused:
        await CallbackAddresses(look_up=PUBLIC).check(url, "callback_url")
    assert (refused.value.code, refused.value.param) == ("callback_refused", "callback_url")


@pytest.mark.parametrize("url", ["https://localhost/", "https://0x7f000001/", "https://localhost./x"])
async def test_names_that_this_machine_resolves_to_itself_are_refused(url: str) -> None:
    with pytest.raises(BadRequest, match=r"127\.0\.0\.1 is private|::1 is private|cannot be resolved"):
        await CallbackAddresses().check(url, "callback_url")


@pytest.mark.parametrize("found", [["10.0.0.1"], ["93.184.216.34", "127.0.0.1"], ["169.254.169.254"], ["::1"], []])
async def test_names_with_private_addresses_are_refused(found: list[str]) -> None:
    with pytest.raises(BadRequest) as refused:
        await CallbackAddresses(look_up=Names(found)).check("https://a.example/x", "callback_url")
    assert refused.value.code == "callback_refused"


async def test_public_urls_are_accepted() -> None:
    addresses = CallbackAddresses(look_up=PUBLIC)
    for url in (
        "https://a.example",
        "https://a.example:8443/x?y=1",
        "https://93.184.216.34/",
        "https://[2606:4700::1]",
    ):
        assert await addresses.check(url, "url") == url


async def test_a_slow_name_server_of_one_team_delays_no_other_team(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def look_up(host: str, port: int, family: int) -> Sequence[Found]:
        if host == "slow.example":
            answers.wait(PATIENCE)
        return [(socket.AF_INET, "93.184.216.34")]

    monkeypatch.setattr("batches.callbacks.addresses.look_up", look_up)
    addresses = CallbackAddresses()
    theirs = [asyncio.create_task(addresses.check("https://slow.example/", "url", "greedy")) for _ in range(68)]
    try:
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE / 2):
            assert await addresses.check("https://a.example/", "url", "search")
            with pytest.raises(QueueFull):
                await addresses.check("https://slow.example/", "url", "greedy")
    finally:
        answers.set()
        await asyncio.gather(*theirs)


async def test_networks_that_the_operator_lists_are_accepted() -> None:
    inside = CallbackAddresses(TEN, Names(["10.1.2.3"]))
    for url in ("https://a.example/", "http://a.example/", "http://10.1.2.3:9000/"):
        assert await inside.check(url, "url") == url
    with pytest.raises(BadRequest, match="--callback-networks"):
        await CallbackAddresses(TEN, PUBLIC).check("http://a.example/", "url")
    with pytest.raises(BadRequest, match="none of the listed networks"):
        await inside.check("http://93.184.216.34/", "url")
    with pytest.raises(BadRequest, match="write an https URL"):
        await inside.check("ws://10.1.2.3/", "url")
    for url in ("https://127.0.0.1/", "https://169.254.169.254/"):
        with pytest.raises(BadRequest):
            await inside.check(url, "url")


async def test_a_host_without_an_answer_in_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(host: str, port: int, family: int) -> Sequence[Found]:
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr("batches.callbacks.addresses.LOOK_UP_SECONDS", 0.0)
    with pytest.raises(BadRequest, match="was not resolved within 0 s: try again"):
        await CallbackAddresses(look_up=never).check("https://a.example/", "url")


async def test_a_name_that_changes_to_a_private_address_is_not_called() -> None:
    """It was accepted at creation, but no connection is made later."""
    async with Receiver() as receiver:
        names = Names(["93.184.216.34"], ["127.0.0.1"])
        addresses = CallbackAddresses(look_up=names)
        url = f"https://a.example:{receiver.port}/"
        await addresses.check(url, "callback_url")
        sender = CallbackSender(addresses)
        outcome = await sender.send(url, "evt_1", b"{}", [new_secret()], 1.0)
        assert (outcome.status, names.requested) == (None, 2)
        assert outcome.error.startswith("It is not called: 127.0.0.1 is private")
        await sender.close()
    assert receiver.received == []


async def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    async with Receiver() as receiver:
        names = Names(["127.0.0.1"], ["169.254.169.254"])
        sender = CallbackSender(CallbackAddresses(LOOPBACK, names))
        url = f"http://a.example:{receiver.port}/"
        assert (await sender.send(url, "evt_1", b"{}", [new_secret()], 1.0)).status == 200
        assert (names.requested, len(receiver.received)) == (1, 1)
        outcome = await sender.send(url, "evt_1", b"{}", [new_secret()], 1.0)
        assert outcome.error == "It is not called: 169.254.169.254 is not a valid address for a callback."
        assert (names.requested, len(receiver.received)) == (2, 1), "names are resolved for each attempt"
        await sender.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "127.1", "0x7f.1", "localhost"])
async def test_no_form_of_a_private_address_is_called(host: str) -> None:
    """Also without an earlier check, because aiohttp resolves some of these by itself."""
    async with Receiver() as receiver:
        sender = CallbackSender(CallbackAddresses())
        for scheme in ("https", "http"):
            outcome = await sender.send(f"{scheme}://{host}:{receiver.port}/", "evt_1", b"{}", [new_secret()], 1.0)
            assert outcome.status is None
            assert outcome.error
        await sender.close()
    assert receiver.received == []


async def test_a_redirect_is_not_followed_and_no_cookie_comes_back() -> None:
    async with Receiver(200) as target, Receiver(302, headers={"location": target.url, "set-cookie": "a=b"}) as first:
        sender = CallbackSender(CallbackAddresses(LOOPBACK))
        for _ in range(2):
            outcome = await sender.send(first.url, "evt_1", b"{}", [new_secret()], 1.0)
            assert outcome.error == "It answered with a redirect (302), which is not followed."
        await sender.close()
    assert target.received == []
    assert all("Cookie" not in one.headers for one in first.received)
    assert len(first.received) == 2


@pytest.mark.parametrize(
    "part", [b"HTTP/1.1 103 Early Hints\r\n\r\n", b"x: y\r\n", b"x" * 100], ids=["1xx", "many", "long"]
)
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_an_answer_without_end_is_cut(part: bytes, run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    """Any number of informational answers is allowed, and would keep the gateway busy."""
    run(_call_what_never_ends(part))


async def _call_what_never_ends(part: bytes) -> None:
    sent: list[int] = []
    over = asyncio.Event()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        sent.append(0)
        try:
            writer.write(b"" if part.startswith(b"HTTP") else b"HTTP/1.1 200 OK\r\n")
            while True:
                writer.write(part * 100)
                sent[0] += len(part) * 100
                await writer.drain()
        except ConnectionError:
            over.set()
        finally:
            writer.close()

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        sender = CallbackSender(CallbackAddresses(LOOPBACK))
        outcome = await sender.send(f"http://127.0.0.1:{port}/", "evt_1", b"{}", [new_secret()], 1.0)
        assert outcome.status is None
        assert outcome.error.startswith("The connection broke")
        async with asyncio.timeout(PATIENCE):
            await over.wait()
        await sender.close()
    assert 0 < sent[0] < 64 * 2**20, "no more than fits into the buffers on the way"
