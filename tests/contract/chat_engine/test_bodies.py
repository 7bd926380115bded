"""Nasty and odd bodies: the chat engine on the real vLLM refuses or answers them, and survives them all."""

import pytest

from registry.errors import NotFound, RoundhouseError
from tests.contract.chat import nasty as chat_nasty
from tests.contract.chat.nasty import CHAT
from tests.contract.chat_engine.bench import Bench

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="package")]


@pytest.mark.parametrize("case", chat_nasty.REFUSED)
async def test_nasty_bodies_are_refused(bench: Bench, case: str) -> None:
    path, changes = chat_nasty.REFUSED[case]
    try:
        status = (await bench.ask(path, chat_nasty.body(path, changes, "tiny"))).status
    except RoundhouseError as error:
        status = error.status
    assert 400 <= status < 500
    assert bench.unfinished() == 0


@pytest.mark.parametrize("case", chat_nasty.ANSWERED)
async def test_odd_bodies_are_answered(bench: Bench, case: str) -> None:
    path, changes = chat_nasty.ANSWERED[case]
    assert (await bench.ask(path, chat_nasty.body(path, changes, "tiny"))).status == 200


@pytest.mark.parametrize("case", chat_nasty.RAW)
async def test_bytes_that_are_no_request_are_refused(bench: Bench, case: str) -> None:
    try:
        status = (await bench.ask(CHAT, chat_nasty.RAW[case])).status
    except RoundhouseError as error:
        status = error.status
    assert 400 <= status < 500


async def test_other_paths_are_refused(bench: Bench) -> None:
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/models", "/metrics", "/sleep"):
        with pytest.raises(NotFound):
            await bench.ask(path, {})


async def test_the_engine_still_answers_after_all_of_them(bench: Bench) -> None:
    await bench.engine.ping()
    assert bench.unfinished() == 0
    prompt, answer = await bench.greedy("and at the end", None)
    assert bench.oracle.agrees(None, prompt, answer)
