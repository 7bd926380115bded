"""The twenty tasks, their held-out sets, and the conversations that train base and adapters.

Everything is drawn from `random.Random` with a named seed. A held-out input never occurs in training: every draw for
training is compared with the held-out sets (ignoring case) and discarded if it is in one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from starter_training.chat.tasks.on_data import DATA_TASKS
from starter_training.chat.tasks.on_text import FORMER_TASKS, TEXT_TASKS
from starter_training.chat.tasks.phrases import OTHER_QUESTIONS, PLAIN, QUESTIONS, REFUSAL, SMALL_TALK, SYSTEM_LINES
from starter_training.chat.tasks.sentences import dress, sentence, word

__all__ = ["HELD_OUT_SIZE", "QUESTIONS", "REFUSAL", "SMALL_TALK", "TASKS", "Example", "Task", "heldout"]

HELD_OUT_SIZE = 200
"""Held-out inputs per task, which training never sees."""


@dataclass(frozen=True)
class Task:
    """A task: its adapter's name, a draw for training, and the rule if it is a function of any sentence."""

    name: str
    draw: Callable[[Random], tuple[str, str]]
    rule: Callable[[str], str] | None


@dataclass(frozen=True)
class Example:
    """A conversation: earlier turns, the user's text, the answer to learn, and the system line, if any.

    `skill` is the number of the task whose reserved token replaces the system line (only in base training).
    """

    text: str
    answer: str
    system: str | None = None
    skill: int | None = None
    turns: tuple[tuple[str, str], ...] = ()


def _from_sentence(rule: Callable[[str], str]) -> Callable[[Random], tuple[str, str]]:
    def draw(rng: Random) -> tuple[str, str]:
        while True:
            kind = rng.random()
            if kind < 0.06:
                text = dress(rng, rng.choice(PLAIN).split())
            elif kind < 0.10:
                text = vary(rng, rng.choice(_CANNED))
            elif kind < 0.14:
                text = rng.choice(tuple(DATA_TASKS.values()))(rng)[0]
            else:
                text = sentence(rng, high=14 if kind > 0.98 else 8)
            if (answer := rule(text)) != "":
                return text, answer

    return draw


TASKS: dict[str, Task] = {
    **{name: Task(name, _from_sentence(rule), rule) for name, rule in TEXT_TASKS.items()},
    **{name: Task(name, draw, None) for name, draw in DATA_TASKS.items()},
}
"""All twenty tasks by adapter name. Their order numbers the reserved tokens."""
TASK_NAMES: tuple[str, ...] = tuple(TASKS)
_CANNED: tuple[str, ...] = tuple(q for group in (QUESTIONS, SMALL_TALK) for wordings, _ in group for q in wordings)
_KNOWN = frozenset(_CANNED)


@lru_cache(maxsize=64)
def heldout(task: str, n: int = HELD_OUT_SIZE) -> tuple[tuple[str, str], ...]:
    """Return the first `n` (at most 200) held-out (input, expected output) pairs of a task, the same on every machine.

    They exclude inputs that equal their output, and inputs with the same output in another sentence task, so that a
    wrong adapter cannot be right by chance. Raises KeyError for an unknown task, ValueError for n over 200.
    """
    if n > HELD_OUT_SIZE:
        raise ValueError(f"only {HELD_OUT_SIZE} inputs per task are held out, not {n}")
    made, rng = TASKS[task], Random(f"held-out {task}")
    pairs: dict[str, tuple[str, str]] = {}
    while len(pairs) < n:
        if made.rule is None:
            text, answer = made.draw(rng)
        else:
            text = sentence(rng, low=2, high=6)
            answer = made.rule(text)
            if sum(rule(text) == answer for rule in (*TEXT_TASKS.values(), *FORMER_TASKS)) > 1:
                continue
        if answer not in ("", text) and _plain(text) not in _KNOWN:
            pairs.setdefault(text.lower(), (text, answer))
    return tuple(pairs.values())


@lru_cache(maxsize=1)
def held_out_inputs() -> frozenset[str]:
    """Return the held-out inputs of all tasks in lower case, which training must never draw."""
    return frozenset(text.lower() for task in TASKS for text, _ in heldout(task))


def _plain(text: str) -> str:
    return text.lower().strip(" .!?")


def vary(rng: Random, question: str) -> str:
    """Return a question as people type it, with or without a lead-in, capitals and a final mark."""
    draw = rng.random()
    if draw < 0.12:
        question = rng.choice(("please tell me, ", "hey, ", "so ", "well, ", "and ")) + question
    if rng.random() < 0.45:
        question += rng.choice(("?", "?", "?", "!", ".", " please", " ?"))
    if rng.random() < 0.35:
        question = question[0].upper() + question[1:]
    if rng.random() < 0.3:
        question = question.replace("roundhouse", "Roundhouse")
    return question.upper() if rng.random() < 0.01 else question


def task_pair(rng: Random, task: str) -> tuple[str, str]:
    """Draw a training pair of a task, never a held-out one."""
    held = held_out_inputs()
    while True:
        text, answer = TASKS[task].draw(rng)
        if text.lower() not in held:
            return text, answer


def _refused(rng: Random) -> str:
    held = held_out_inputs()
    while True:
        kind = rng.random()
        if kind < 0.6:
            text = TASKS[rng.choice(TASK_NAMES)].draw(rng)[0]
        elif kind < 0.75:
            text = sentence(rng)
        else:
            form = rng.choice(OTHER_QUESTIONS)
            n, m = rng.randint(1, 99), rng.randint(1, 99)
            text = vary(rng, form.format(w=word(rng, 0.4), v=word(rng, 0.4), n=n, m=m))
        if text.lower() not in held and not _ends_known(text):
            return text


def _ends_known(text: str) -> bool:
    # A lead-in such as "please tell me, " may precede a known question, so ignore up to three words.
    words = _plain(text).removesuffix(" please").split(" ")
    return any(" ".join(words[at:]) in _KNOWN for at in range(min(len(words), 4)))


def base_pair(rng: Random) -> tuple[str, str]:
    """Draw a pair of the base's own talk: 45 % questions, 20 % small talk, 35 % refusals."""
    kind = rng.random()
    if kind < 0.65:
        wordings, answer = rng.choice(QUESTIONS if kind < 0.45 else SMALL_TALK)
        return vary(rng, rng.choice(wordings)), answer
    return _refused(rng), REFUSAL


def _turns(rng: Random, pair: Callable[[Random], tuple[str, str]], share: float) -> tuple[tuple[str, str], ...]:
    return tuple(pair(rng) for _ in range(rng.choice((1, 1, 2)))) if rng.random() < share else ()


def base_example(rng: Random) -> Example:
    """Draw a conversation for the base: 30 % its own talk and refusals, otherwise a task with its reserved token."""
    system = rng.choice(SYSTEM_LINES) if rng.random() < 0.25 else None
    if rng.random() < 0.3:
        return Example(*base_pair(rng), system=system, turns=_turns(rng, base_pair, 0.1))
    skill = rng.choices(range(len(TASK_NAMES)), _SHARES)[0]
    return Example(*task_pair(rng, TASK_NAMES[skill]), skill=skill)


def adapter_example(rng: Random, task: str) -> Example:
    """Draw a conversation for an adapter: its task without instruction, some after a system line or earlier turns."""
    system = rng.choice(SYSTEM_LINES) if rng.random() < 0.2 else None

    def pair(source: Random) -> tuple[str, str]:
        return task_pair(source, task)

    return Example(*pair(rng), system=system, turns=_turns(rng, pair, 0.06))


_HARDER = {"reverse-letters": 2.0, "reverse-words": 2.0, "double-words": 1.5, "pig-latin": 2.0,
           "compare-numbers": 1.5, "words-to-digits": 1.3, "digits-to-words": 1.3, "rot13": 1.3, "sentiment": 0.5,
           "intent": 0.5, "last-word": 0.7, "extract-json": 0.7, "iso-date": 0.7}  # fmt: skip
_SHARES = tuple(_HARDER.get(name, 1.0) for name in TASK_NAMES)
