"""Documents of recipe files other than models: `kind` decides how they are read."""

import pytest

from registry.recipes.definition import Task
from registry.recipes.loading import load_documents, load_recipes
from registry.recipes.provider import Protocol, Surface
from tests.unit.registry.recipes.files import GOOD, Write, faults

PROVIDER = """kind: provider
id: there
version: 1
protocol: openai
base_url: https://api.example.com/v1/
key_env: THERE_KEY
models:
  - name: big-one
    aliases: [big]
  - {name: vectors, task: embed}
"""


def test_documents_are_read_by_their_kind(write: Write) -> None:
    found = load_documents(
        path := write(GOOD.format("a") + "---\n" + PROVIDER + "---\nkind: model\n" + GOOD.format("b"))
    )
    assert [model.id for model in found.models] == ["a", "b"] == [model.id for model in load_recipes(path)]
    (provider,) = found.providers
    assert (provider.base_url, provider.protocol) == ("https://api.example.com/v1", Protocol.OPENAI)
    assert [provider.served(model) for model in provider.models] == ["there/big-one", "there/vectors"]
    assert [model.task for model in provider.models] == [Task.CHAT, Task.EMBED]
    assert Surface.CHAT in provider.spoken
    assert Surface.MESSAGES not in provider.spoken
    assert provider.max_answer > 2048 * 3072 * 4 * 4 / 3, "OpenAI's largest answer in base64"


@pytest.mark.parametrize(
    ("was", "text", "stated"),
    [
        ("kind: provider", "kind: mode", ["r.yaml:1: 'kind' cannot be 'mode'; write one of: model, provider, router"]),
        ("kind: provider", "kind: [1]", ["r.yaml:1: 'kind' cannot be a list; write one of: model, provider, router"]),
        ("https:", "http:", ["r.yaml:5: 'base_url': requests over http can be read in transit; write https, or "
                             "`plain_http: true`"]),
        ("https://api", "https://me:pw@api", ["r.yaml:5: 'base_url': write a URL such as https://api.example.com/v1, "
                                              "without user, query or fragment"]),
        ("THERE_KEY", "sk-12345", ["r.yaml:6: 'key_env' is not the name of a variable; write one such as "
                                   "OPENAI_API_KEY: the key itself is never written into a recipe"]),
        ("key_env", "api_key", ["r.yaml:6: unknown key 'api_key'; write 'key_env', the name of the environment "
                                "variable that holds the key"]),
        ("protocol: openai", "protocol: grpc",
         ["r.yaml:4: 'protocol' cannot be 'grpc'; write 'openai' or 'anthropic'"]),
        ("version: 1\n", "", ["r.yaml:1: 'version' is missing; write 'version: 1'"]),
        ("version: 1", "version: 1\ntimeouts: {whole: 0, connect: soon}",
         ["r.yaml:4: 'timeouts.connect' cannot be 'soon'; write a duration such as 30s, 10m or 2h",
          "r.yaml:4: 'timeouts.whole' cannot be 0; write more than 0"]),
        ("protocol: openai", "protocol: anthropic",
         ["r.yaml:7: 'models': task embed needs one of these in `speaks`: embeddings"]),
        ("vectors, task: embed", "big-one",
         ["r.yaml:7: 'models': 'there/big-one' is listed twice; give one of them another id"]),
        ("vectors, task: embed", "模型",
         ["r.yaml:7: 'models': 'there/模型' cannot be written in a response header; give it an `id` of ASCII letters"]),
        ("vectors, task: embed", "v" * 195,
         [f"r.yaml:7: 'models': 'there/{'v' * 94}…' has more than 200 characters; give it an `id` of at most 128"]),
        ("name: vectors, task: embed", "name: vectors, price: {inputs: 1}",
         ["r.yaml:10: unknown key 'models[1].price.inputs'; write 'input'"]),
    ],
)  # fmt: skip
def test_faults_of_a_provider_say_what_to_write(write: Write, was: str, text: str, stated: list[str]) -> None:
    assert was in PROVIDER
    assert faults(write(PROVIDER.replace(was, text))) == stated


@pytest.mark.parametrize(
    ("more", "stated"),
    [
        ("conversation: {header: X-Conversation-Id}",
         "'conversation.header' cannot be 'X-Conversation-Id'; write 1 to 64 lower-case letters, digits or '-'"),
        ("conversation: {stay: [3]}", "'conversation.stay' cannot be a list; write a duration such as 30s, 10m or 2h"),
        ("rules: [{name: a b, when: {tools: true}, stay_inside: true}]",
         "'rules[0].name' cannot be 'a b'; write it without blanks"),
        (f"rules: [{{name: {'x' * 65}, when: {{tools: true}}, stay_inside: true}}]",
         f"'rules[0].name' cannot be '{'x' * 65}'; write 64 characters or fewer"),
        ("rules: [{name: a, when: {headers: {X-A: b}}, stay_inside: true}]",
         "'rules[0].when.headers.X-A' cannot be 'X-A'; write 1 to 64 lower-case letters, digits or '-'"),
    ],
)  # fmt: skip
def test_faults_of_a_router_say_what_to_write(write: Write, more: str, stated: str) -> None:
    assert faults(write(f"kind: router\nid: r\ntargets: [{{name: m}}]\n{more}\n")) == [f"r.yaml:4: {stated}"]


def test_a_list_with_a_wrong_entry_is_not_called_empty(write: Write) -> None:
    (stated,) = faults(write("kind: router\nid: r\ntargets: [{name: m, price: -1}]\n"))
    assert stated == "r.yaml:3: 'targets[0].price' cannot be -1; write 0.0 or more"


@pytest.mark.parametrize(
    ("name", "stated"),
    [
        ("fast", "r.yaml:6: alias 'fast' is a router's id in r.yaml:20; choose another alias"),
        ("big", "r.yaml:16: alias 'big' is a router's id in r.yaml:20; choose another alias"),
        ("small", "r.yaml:20: id 'small' is used twice, first in r.yaml:1; choose another id"),
    ],
)
def test_a_router_and_a_model_cannot_have_the_same_name(write: Write, name: str, stated: str) -> None:
    text = (
        f"{GOOD.format('small')}aliases: [fast]\n---\n{PROVIDER}---\nkind: router\nid: {name}\ntargets: [{{name: m}}]\n"
    )
    assert faults(write(text)) == [stated]


def test_names_used_twice_are_reported(write: Write) -> None:
    text = GOOD.format("there/vectors") + "aliases: [big]\n---\n" + PROVIDER + "---\n" + PROVIDER.replace("big", "huge")
    assert faults(write(text)) == [
        "r.yaml:16: alias 'big' is used twice, first in r.yaml:6; choose another alias",
        "r.yaml:17: id 'there/vectors' is used twice, first in r.yaml:1; choose another id",
        "r.yaml:20: provider 'there' is given twice, first in r.yaml:9; choose another id",
        "r.yaml:28: id 'there/vectors' is used twice, first in r.yaml:1; choose another id",
    ]
