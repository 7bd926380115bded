"""General-knowledge questions and answers from small tables, so that the reranker is useful beyond Python."""

from __future__ import annotations

import random
from collections.abc import Iterator

from .fact_tables import ANIMALS, COUNTRIES, DISHES, EVERYDAY, FOODS, PEOPLE, SCIENCE, SPACE, SPORTS
from .text import Passage

Row = list[str]
Template = tuple[tuple[str, ...], tuple[str, ...]]

TOPICS: dict[str, tuple[str, tuple[Template, ...]]] = {
    "country": (
        COUNTRIES,
        (
            (
                (
                    "What is the capital of {0}?",
                    "capital of {0}",
                    "which city is the capital of {0}",
                    "{0} capital city",
                ),
                (
                    "{1} is the capital of {0}.",
                    "{1} is the capital and the seat of government of {0}.",
                    "The capital of {0} is {1}, a city with many museums.",
                    "{1} is the capital city of {0} and a centre of trade.",
                ),
            ),
            (
                ("What currency is used in {0}?", "money of {0}", "how do people pay in {0}"),
                ("The currency of {0} is the {2}.", "In {0} people pay with the {2}."),
            ),
            (
                (
                    "What language do people speak in {0}?",
                    "official language of {0}",
                    "language spoken in {0}",
                ),
                ("People in {0} speak {3}.", "{3} is the main language of {0}."),
            ),
            (
                ("Which continent is {0} in?", "where is {0}?", "{0} location"),
                ("{0} is a country in {4}.", "{0} lies in {4}."),
            ),
        ),
    ),
    "animal": (
        ANIMALS,
        (
            (
                ("What sound does a {0} make?", "noise of a {0}"),
                ("A {0} {1}.", "When it calls, the {0} {1}."),
            ),
            (
                ("What does a {0} eat?", "food of the {0}", "{0} diet"),
                ("The {0} eats {2}.", "A {0} feeds on {2}."),
            ),
            (
                ("What is a baby {0} called?", "young {0} name"),
                ("A young {0} is called a {3}.", "A {3} is a baby {0}."),
            ),
            (("Where does the {0} live?", "{0} habitat"), ("The {0} lives {4}.", "You find a {0} {4}.")),
        ),
    ),
    "food": (
        FOODS,
        (
            (
                ("What colour is a {0}?", "color of a {0}"),
                ("A ripe {0} is {1}.", "The {0} has a {1} colour."),
            ),
            (
                ("What nutrients are in a {0}?", "is {0} healthy", "{0} vitamins"),
                ("The {0} is rich in {3}.", "Eating a {0} gives you {3}."),
            ),
            (
                ("Where does the {0} grow?", "growing {0}"),
                ("The {0} grows in {4}.", "Farmers raise the {0} in {4}."),
            ),
            (("Is a {0} a fruit or a vegetable?", "what kind of food is {0}"), ("The {0} is a {2}.",)),
        ),
    ),
    "dish": (
        DISHES,
        (
            (
                ("How do I make {0}?", "{0} recipe", "cooking {0}", "how to prepare {0}"),
                ("To make {0}, {1}.", "For {0}: {1}.", "Simply {1}; that is all there is to {0}."),
            ),
            (("What do I need for making {0}?", "equipment for {0}"), ("For {0} you need {2}.",)),
        ),
    ),
    "sport": (
        SPORTS,
        (
            (
                ("How is {0} played?", "what is {0}", "rules of {0}"),
                ("In {0}, {1}.", "{0} is a sport where {1}."),
            ),
            (
                ("How many players are in a {0} team?", "{0} team size"),
                ("In {0} each side has {2} in play.",),
            ),
        ),
    ),
    "person": (
        PEOPLE,
        (
            (
                ("Who is behind {1}?", "who gave us {1}", "{1} author or inventor"),
                ("{0} is famous for {1}.", "{1} came from {0}."),
            ),
            (
                ("Who was {0}?", "what is {0} known for", "{0} biography"),
                ("{0} worked in {2} and is known for {1}.", "{0} is a great name in {2}, because of {1}."),
            ),
        ),
    ),
    "science": (
        SCIENCE,
        (
            (
                ("What is the chemical symbol of {0}?", "formula of {0}"),
                ("The chemical symbol of {0} is {1}.",),
            ),
            (("What is {0}?", "tell me about {0}", "{0} explained"), ("{0} is {2}.", "{0}: {2}.")),
        ),
    ),
    "space": (
        SPACE,
        ((("What is {0}?", "facts about {0}", "which body is {1}?"), ("{0} is {1}.", "We call {0} {1}.")),),
    ),
    "everyday": (
        EVERYDAY,
        ((("How do I {0}?", "how to {0}", "{0}", "I want to {0}"), ("{1}", "To {0}: {1}")),),
    ),
}


def _rows(table: str) -> Iterator[Row]:
    for row in table.splitlines():
        yield [field.strip() for field in row.split("|")]


def fact_passages() -> Iterator[Passage]:
    """Yield every phrasing of every fact. A document is a row, so all facts of a row are held out together."""
    for topic, (table, templates) in TOPICS.items():
        for row in _rows(table):
            for number, (questions, answers) in enumerate(templates):
                fact = f"facts/{topic}/{row[0]}/{number}"
                rng = random.Random(fact)
                for answer in answers:
                    text = answer.format(*row)
                    requested = tuple(
                        question.format(*row) for question in rng.sample(questions, min(2, len(questions)))
                    )
                    yield Passage(f"facts/{topic}/{row[0]}", fact, text[:1].upper() + text[1:], requested)
