"""Grammars of several teams at one checker, where no team can block the others."""

import asyncio
import os
import threading
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from models.chat.grammars.checker import TEAMS, GrammarChecker
from models.chat.grammars.process import CheckerProcess, Verdict
from models.chat.vllm.grammars import CONSTRAINTS, OPTIONS
from registry.bounds import USUAL
from registry.errors import QueueFull
from tests.eventually import PATIENCE

MOST = USUAL.grammars_waiting


class Judge:
    """Replaces the process, and answers orders when `let` allows it."""

    def __init__(self) -> None:
        (read, self.orders), (self.verdicts, write) = os.pipe(), os.pipe()
        self.judged: list[str] = []
        self._turn = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(read, write), daemon=True)
        self._thread.start()

    def _run(self, read: int, write: int) -> None:
        with os.fdopen(read, "rb") as orders, os.fdopen(write, "wb", 0) as verdicts:
            for line in orders:
                self._turn.acquire()
                self.judged.append(msgspec.json.decode(line)["regex"])
                verdicts.write(msgspec.json.encode(Verdict()) + b"\n")

    def let(self, count: int) -> None:
        self._turn.release(count)

    def kill(self) -> None:
        self.let(1_000)

    def join(self, timeout: float | None = None) -> None:
        self._thread.join(timeout)


def constraint(regex: str) -> Any:
    fields = dict.fromkeys((*CONSTRAINTS, *OPTIONS))
    return SimpleNamespace(**{**fields, "regex": regex, "_backend": None, "_backend_was_auto": False})


def check(checker: GrammarChecker, regex: str, team: str) -> "asyncio.Task[None]":
    return asyncio.create_task(checker.check(constraint(regex), lambda path: ("", path), team))


async def test_a_team_waits_for_only_one_grammar_of_another() -> None:
    judge = Judge()
    checker = GrammarChecker(lambda: CheckerProcess(judge, judge.orders, judge.verdicts), USUAL)  # type: ignore[arg-type]
    await checker.begin()
    theirs = [check(checker, f"a{number}", "a") for number in range(MOST + 5)]
    await asyncio.sleep(0)
    ours = check(checker, "b", "b")
    judge.let(3)
    async with asyncio.timeout(PATIENCE):
        await ours
        judge.let(MOST)
        ended = await asyncio.gather(*theirs, return_exceptions=True)
    assert judge.judged.index("b") <= 2, judge.judged
    refused = [one for one in ended if one is not None]
    assert [one.code for one in refused if isinstance(one, QueueFull)] == ["grammar_queue_full"] * 5, refused
    await checker.close()


async def test_waiting_grammars_of_all_teams_are_bounded() -> None:
    judge = Judge()
    checker = GrammarChecker(lambda: CheckerProcess(judge, judge.orders, judge.verdicts), USUAL)  # type: ignore[arg-type]
    await checker.begin()
    waiting = [check(checker, f"{team} {number}", str(team)) for team in range(TEAMS) for number in range(MOST)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull, match=f"{TEAMS * MOST} grammars"):
        await check(checker, "more", "more")
    judge.let(len(waiting))
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*waiting)
    await checker.check(constraint("0 0"), lambda path: ("", path), "more")  # its result is already known
    await checker.close()


async def test_a_process_that_starts_for_a_client_that_leaves_serves_the_next_one() -> None:
    forked, judges, may_start = threading.Event(), list[Judge](), threading.Event()

    def fork() -> CheckerProcess:
        judges.append(Judge())
        judges[-1].let(1)
        forked.set()
        may_start.wait()
        return CheckerProcess(judges[-1], judges[-1].orders, judges[-1].verdicts)  # type: ignore[arg-type]

    checker = GrammarChecker(fork, USUAL)
    theirs = check(checker, "a", "a")
    assert await asyncio.to_thread(forked.wait, PATIENCE)
    theirs.cancel()
    ours = check(checker, "b", "b")
    may_start.set()
    with pytest.raises(asyncio.CancelledError):
        await theirs
    async with asyncio.timeout(PATIENCE):
        await ours
    assert [judge.judged for judge in judges] == [["b"]]
    await checker.close()
