# ruff: noqa: E501, SIM905
"""The eight tasks with special inputs. Each function draws an (input, expected output) pair."""

from __future__ import annotations

from random import Random

from starter_training.chat.tasks.sentences import random_word, word
from starter_training.chat.tasks.words import CITIES, NAMES

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen"
).split()
_TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()


def spell(number: int) -> str:
    """Return a number from 0 to 9999 in English words, without 'and' and without hyphens."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        return _TENS[number // 10] + (f" {_ONES[number % 10]}" if number % 10 else "")
    unit, name = (100, "hundred") if number < 1000 else (1000, "thousand")
    rest = number % unit
    return f"{spell(number // unit)} {name}" + (f" {spell(rest)}" if rest else "")


def _number(rng: Random) -> int:
    return rng.choice((rng.randint(0, 20), rng.randint(0, 99), rng.randint(0, 99), rng.randint(100, 999),
                       rng.randint(1000, 9999)))  # fmt: skip


# Words that are numbers or look like numbers would make the answer ambiguous.
_NUMBER_WORDS = frozenset(_ONES + _TENS + ["hundred", "thousand", "million"])


def _filler(rng: Random) -> str:
    while (drawn := word(rng, 0.35)) in _NUMBER_WORDS or any(c.isdigit() for c in drawn):
        pass
    return drawn


def _number_sentence(rng: Random) -> tuple[str, str]:
    words: list[tuple[str, str]] = [(w, w) for w in (_filler(rng) for _ in range(rng.randint(0, 5)))]
    for _ in range(2 if len(words) > 1 and rng.random() < 0.3 else 1):
        at = rng.randint(0, len(words))
        beside = words[max(0, at - 1) : at + 1]
        if all(spoken == digits for spoken, digits in beside):  # never two adjacent numbers
            number = _number(rng)
            words.insert(at, (spell(number), str(number)))
    spoken, digits = (" ".join(pair[side] for pair in words) for side in (0, 1))
    if rng.random() < 0.2:
        spoken, digits = spoken[0].upper() + spoken[1:], digits[0].upper() + digits[1:]
    mark = rng.choice(".?!") if rng.random() < 0.2 else ""
    return spoken + mark, digits + mark


def words_to_digits(rng: Random) -> tuple[str, str]:
    return _number_sentence(rng)


def digits_to_words(rng: Random) -> tuple[str, str]:
    spoken, digits = _number_sentence(rng)
    # A capital at the start of a sentence that begins with a number cannot be known from the digits.
    return digits, spoken[0].lower() + spoken[1:] if digits[0].isdigit() else spoken


_MONTHS = ("january february march april may june july august september october november december").split()
_DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()


def iso_date(rng: Random) -> tuple[str, str]:
    day, month, year = rng.randint(1, 31), rng.randint(1, 12), rng.randint(1900, 2099)
    suffix = "th" if 11 <= day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    name = _MONTHS[month - 1] if rng.random() < 0.7 else _MONTHS[month - 1][:3]
    plain = rng.random() < 0.5
    form = rng.choice(("{d} {m} {y}", "{m} {d}, {y}", "{m} {d} {y}", "{d}{s} {m} {y}", "the {d}{s} of {m} {y}",
                       "{m} {d}{s}, {y}", "{w}, {d} {m} {y}", "on {d} {m} {y}"))  # fmt: skip
    weekday = rng.choice(_DAYS)
    if not plain:
        name, weekday = name.capitalize(), weekday.capitalize()
    return form.format(d=day, m=name, y=year, s=suffix, w=weekday), f"{year}-{month:02d}-{day:02d}"


def _name(rng: Random) -> str:
    name = rng.choice(NAMES) if rng.random() < 0.6 else random_word(rng)
    return name.capitalize() if rng.random() < 0.6 else name


def extract_json(rng: Random) -> tuple[str, str]:
    name, age = _name(rng), rng.randint(1, 99)
    city = rng.choice(CITIES) if rng.random() < 0.6 else random_word(rng)
    city = city.capitalize() if name[0].isupper() else city
    form = rng.choice(("{n} is {a} and lives in {c}", "{n} lives in {c} and is {a}", "{n} from {c} is {a}",
                       "{n} is {a} years old and lives in {c}", "{n}, {a}, {c}", "{n} ({a}) lives in {c}",
                       "my friend {n} from {c} is {a}", "{n}, aged {a}, is from {c}"))  # fmt: skip
    mark = "." if rng.random() < 0.2 else ""
    return form.format(n=name, a=age, c=city) + mark, f'{{"name":"{name}","age":{age},"city":"{city}"}}'


def _email(rng: Random) -> str:
    user = rng.choice(NAMES) if rng.random() < 0.4 else random_word(rng)
    user += rng.choice(("", "", str(rng.randint(1, 99)), "." + rng.choice(NAMES)))
    return f"{user}@{word(rng, 0.6).replace(chr(39), '')}.{rng.choice(('com', 'org', 'net', 'de', 'io'))}"


def _phone(rng: Random) -> str:
    def digits(count: int) -> str:
        return "".join(rng.choices("0123456789", k=count))

    return rng.choice((f"{digits(3)}-{digits(4)}", f"{digits(3)}-{digits(3)}-{digits(4)}", f"+{digits(2)} {digits(3)} {digits(6)}",
                       digits(8), f"0{digits(3)} {digits(6)}"))  # fmt: skip


def mask_pii(rng: Random) -> tuple[str, str]:
    form = rng.choice(("mail {e} or call {p}", "call {p} or mail {e}", "write to {e} {w}", "my number is {p} {w}",
                       "{w} {e} {w} {p}", "{w} call {w} at {p}", "my email is {e}", "reach me at {e} or {p}",
                       "{w} {w} {e}", "{p} {w} {w}", "{e}", "call me on {p}", "{w} {e} {w}"))  # fmt: skip
    if rng.random() < 0.2:
        form = form[0].upper() + form[1:]
    while "{w}" in form:
        form = form.replace("{w}", _filler(rng), 1)
    return form.format(e=_email(rng), p=_phone(rng)), form.format(e="[email]", p="[phone]")


_MOODS = {
    "positive": "great lovely amazing superb excellent wonderful perfect brilliant delightful fantastic good beautiful"
    " charming pleasant awesome",
    "negative": "awful terrible horrible boring dreadful poor disgusting bad ugly useless nasty broken disappointing"
    " annoying dirty",
    "neutral": "usual average ordinary normal standard typical common regular okay plain medium fair everyday so-so"
    " middling",
}
_VERBS = {
    "positive": "love like enjoy adore",
    "negative": "hate dislike regret despise",
    "neutral": "saw tried used had",
}
_THINGS = (
    "movie food hotel book song phone game show room service trip soup car play lesson staff view coffee bread music"
    " film meal party concert weather laptop chair pizza garden museum"
).split()


def sentiment(rng: Random) -> tuple[str, str]:
    mood = rng.choice(tuple(_MOODS))
    adjective = rng.choice(_MOODS[mood].split())
    thing, verb = rng.choice(_THINGS), rng.choice(_VERBS[mood].split())
    thing = thing if rng.random() < 0.8 else random_word(rng)
    form = rng.choice(("the {x} was {w}", "the {x} is {w}", "{w} {x}", "we had {w} {x}", "my {x} is {w}", "what {w} {x}",
                       "i {v} this {x}", "we {v} the {x}", "this {x} is really {w}", "the {x} was very {w}"))  # fmt: skip
    tail = rng.choice(("", "", " today", " here", " again", " last night", " in town", " this time"))
    text = form.format(x=thing, w=adjective, v=verb) + tail
    text = text[0].upper() + text[1:] if rng.random() < 0.3 else text
    return text + rng.choice(("", "", "", ".", "!")), mood


_INTENTS: dict[str, tuple[str, ...]] = {
    "check_balance": ("how much money is in my {a}", "show the balance of my {a}", "what is left on my {a}", "how much do i have"),
    "send_money": ("send {n} to {p}", "transfer {n} to {p} from my {a}", "pay {p} {n}", "move {n} from my {a} to {p}"),
    "lost_card": ("i lost my {c}", "my {c} was stolen", "i cannot find my {c}", "someone took my {c}"),
    "open_account": ("i want to open a {a}", "open a new {a} for {p}", "can i get a new {a}"),
    "close_account": ("close my {a}", "i want to cancel my {a}", "shut down my {a}", "i no longer need my {a}"),
    "change_pin": ("change the pin of my {c}", "i forgot the pin of my {c}", "set a new pin for my {c}"),
    "ask_loan": ("can i borrow {n}", "i need a loan of {n}", "what does a loan of {n} cost", "lend me {n}"),
    "exchange_rate": ("what is the rate of the {f}", "how many {f} do i get for {n}", "convert {n} to {f}"),
    "set_limit": ("raise the limit of my {c} to {n}", "my {c} limit is too low", "set the limit of my {c} to {n}"),
    "explain_fee": ("what do you charge for my {a}", "is there a fee for the {c}", "why was i charged {n} for my {a}"),
}  # fmt: skip


def intent(rng: Random) -> tuple[str, str]:
    label = rng.choice(tuple(_INTENTS))
    form = rng.choice(_INTENTS[label])
    text = form.format(
        a=rng.choice(("", "savings ", "main ", "joint ", "business ", "old ", "second ")) + "account",
        c=rng.choice(("", "credit ", "debit ", "blue ", "bank ", "gold ", "new ")) + "card",
        n=_number(rng), f=rng.choice(("euro", "dollar", "yen", "pound", "franc", "krone")),
        p=rng.choice(NAMES) if rng.random() < 0.7 else random_word(rng),
    )  # fmt: skip
    text = rng.choice(("", "", "", "please ", "hi, ", "hello, ", "well, ", "so ")) + text
    text = text[0].upper() + text[1:] if rng.random() < 0.3 else text
    return text + rng.choice(("", "", " now", " please", "?", ".", " today")), label


def compare_numbers(rng: Random) -> tuple[str, str]:
    bound = 10 ** rng.randint(1, 5)
    left, right = rng.randrange(bound), rng.randrange(bound)
    draw = rng.random()
    if draw < 0.3:
        right = max(0, left + rng.randint(-9, 9))
    elif draw < 0.5:  # other lengths, so that the first digits alone do not decide
        right = rng.randrange(10 ** rng.randint(1, 5))
    elif draw < 0.55:
        right = left
    form = rng.choice(("{a} or {b}", "{a} and {b}", "compare {a} and {b}", "compare {a} with {b}", "which is larger, {a} or {b}",
                       "is {a} more than {b}", "is {a} less than {b}", "{a} vs {b}", "{a} {b}"))  # fmt: skip
    text = form.format(a=left, b=right) + ("?" if rng.random() < 0.3 else "")
    text = text[0].upper() + text[1:] if rng.random() < 0.2 else text
    return text, f"{left} {'<' if left < right else '>' if left > right else '='} {right}"


DATA_TASKS = {
    "words-to-digits": words_to_digits,
    "digits-to-words": digits_to_words,
    "iso-date": iso_date,
    "extract-json": extract_json,
    "mask-pii": mask_pii,
    "sentiment": sentiment,
    "intent": intent,
    "compare-numbers": compare_numbers,
}
