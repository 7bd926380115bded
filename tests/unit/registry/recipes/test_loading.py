"""Loading recipe files: all faults are reported at once with their lines, and hostile files do no harm."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from registry.errors import Unfit
from registry.recipes.definition import Recipe, Task, WindowSpec
from registry.recipes.fields import MOST, HubSource, PathSource
from registry.recipes.loading import load_documents, load_recipes, remarks
from tests.unit.registry.recipes.files import GOOD, Write, faults

GOLDEN = Path(__file__).parent / "golden"


def test_all_faults_are_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts are in golden/faults.txt, so that changes of them are reviewed."""
    monkeypatch.chdir(GOLDEN)
    with pytest.raises(Unfit) as caught:
        load_recipes([Path("second.yaml"), Path("faulty.yaml"), Path("missing.yaml")])
    assert "\n".join(caught.value.faults) == Path("faults.txt").read_text().rstrip("\n")
    assert caught.value.message == f"The recipes have {len(caught.value.faults)} faults."


def test_files_and_documents_are_read_in_order(write: Write, tmp_path: Path) -> None:
    write(GOOD.format("b") + "---\n# nothing here\n---\n" + GOOD.format("a"), "2.yml")
    write(GOOD.format("c").replace("weights", "/else/where"), "1.yaml")
    write("no: recipe", "notes.txt")
    recipes = load_recipes(tmp_path)
    assert [recipe.id for recipe in recipes] == ["c", "b", "a"]
    assert [recipe.source for recipe in recipes[:2]] == [
        PathSource(path="/else/where"),
        PathSource(path=str(tmp_path / "weights")),
    ]
    assert load_recipes([tmp_path / "2.yml", tmp_path]) == (*recipes[1:], recipes[0]), "each file is read once"


def test_values_are_read_as_written(write: Write) -> None:
    text = """
id: gpt-oss:120b
version: 3
task: chat
source: {hub: org/name, revision: main}
engine: {name: vllm, flags: {seed: 1, enable_auto_tool_choice: true, stop: [a, b], limit: 0.5, word: x}}
memory: &room {kv_cache: 1.5GiB, adapters: {device: 2, host: 4, max_rank: 32}}
queue: {max_wait: 1.5 h}
residency: {idle_timeout: 10m, min_resident: 250ms, drain_deadline: 30}
adapters: [{name: a, source: {path: a}}]
---
id: other
version: 1
task: chat
source: {path: x}
engine: {name: vllm}
memory: {<<: *room, kv_cache: 2GB}
"""
    first, second = text.split("---")
    recipe = load_recipes(write(first))[0]
    assert recipe.memory.kv_cache == 1.5 * 2**30
    assert recipe.queue.max_wait == 5400
    assert (recipe.residency.idle_timeout, recipe.residency.min_resident) == (600, 0.25)
    assert recipe.engine.flags == {
        "seed": 1, "enable_auto_tool_choice": True, "stop": ["a", "b"], "limit": 0.5, "word": "x",
    }  # fmt: skip
    assert recipe.source == HubSource(hub="org/name", revision="main")
    merged = second.replace("*room", "{overhead: 1MB, kv_cache: 1GB}")
    assert load_recipes(write(merged))[0].memory.kv_cache == 2 * 10**9
    assert "undefined alias 'room'" in faults(write(text))[0], "an anchor ends with its document"


SPEECH = "id: w\nversion: 1\ntask: transcribe\nsource: {path: x}\nengine: {name: faster-whisper}\n"


def test_a_speech_model_has_a_window(write: Write) -> None:
    assert load_recipes(write(SPEECH))[0].window == WindowSpec(seconds=30, padded=30)
    assert load_recipes(write(SPEECH + "window: {seconds: 1}"))[0].window == WindowSpec(seconds=1, padded=30)
    assert load_recipes(write(SPEECH + "window: {seconds: 8, padded: 8}"))[0].window == WindowSpec(seconds=8, padded=8)


@pytest.mark.parametrize(
    ("window", "stated"),
    [
        ("{seconds: 0}", "'window.seconds' cannot be 0; write 1 or more"),
        ("{seconds: 31}", "'window.seconds' cannot be 31; write 30 or less"),
        ("{seconds: 7.5}", "'window.seconds' cannot be 7.5; write a whole number"),
        ("{seconds: short}", "'window.seconds' cannot be 'short'; write a whole number"),
        ("{padded: 60}", "'window.padded' cannot be 60; write 30 or less"),
        ("{padded: 20}", "'window.padded': padded must be at least seconds, so that each piece fits"),
        ("{second: 20}", "unknown key 'window.second'; write 'seconds'"),
        ("12", "'window' cannot be 12; write its keys below it, or leave 'window' out"),
    ],
)
def test_invalid_windows_are_faults(write: Write, window: str, stated: str) -> None:
    assert faults(write(f"{SPEECH}window: {window}")) == [f"r.yaml:6: {stated}"]


def test_only_speech_has_windows(write: Write) -> None:
    text = SPEECH.replace("transcribe", "embed").replace("faster-whisper", "sentence-transformers")
    stated = "'window': only task transcribe has windows; leave 'window' out"
    assert faults(write(text + "window: {seconds: 12}")) == [f"r.yaml:6: {stated}"]


def test_only_embedding_models_cut_their_inputs(write: Write) -> None:
    embed = SPEECH.replace("transcribe", "embed").replace("faster-whisper", "sentence-transformers")
    assert [load_recipes(write(embed + more))[0].truncate for more in ("", "truncate: true")] == [False, True]
    stated = "'truncate': only task embed cuts its inputs; leave 'truncate' out"
    assert faults(write(SPEECH + "truncate: true")) == [f"r.yaml:6: {stated}"]
    missing = "r.yaml:1: 'task' is missing; write 'task: chat'"
    assert faults(write(embed.replace("task: embed\n", "") + "truncate: true")) == [missing], "that is no second fault"


def test_only_chat_models_have_a_system_message_and_stop_sequences(write: Write) -> None:
    loaded = load_recipes(write(GOOD.format("a") + "system: Be brief.\nstop: ['User:', '###']\n"))[0]
    assert (loaded.system, loaded.stop) == ("Be brief.", ("User:", "###"))
    assert load_recipes(write(GOOD.format("a") + "stop: '###'\n"))[0].stop == ("###",)
    assert faults(write(GOOD.format("a") + "stop: ''\n")) == ["r.yaml:6: 'stop[0]' is empty; write its text"]
    for more, stated in (
        ("system: Be brief.", "'system': only task chat has a system message; leave 'system' out"),
        ("stop: ['###']", "'stop': only task chat ends its answers at a text; leave 'stop' out"),
    ):
        assert faults(write(SPEECH + more)) == [f"r.yaml:6: {stated}"]


def test_most_replicas_default_to_least(write: Write) -> None:
    text = f"{GOOD.format('a')}replicas: {{least: 2}}\n---\n{GOOD.format('b')}replicas: {{most: 3}}\n"
    recipes = load_recipes(write(text))
    assert [(recipe.replicas.least, recipe.replicas.most) for recipe in recipes] == [(2, 2), (1, 3)]


@pytest.mark.parametrize(
    ("replicas", "stated"),
    [
        ("{least: 3, most: 2}", "'replicas': most must be at least `least`"),
        ("{most: 17}", "'replicas.most' cannot be 17; write 16 or less"),
        ("{least: 0}", "'replicas.least' cannot be 0; write 1 or more"),
        ("{least: two}", "'replicas.least' cannot be 'two'; write a whole number"),
        ("{lest: 2}", "unknown key 'replicas.lest'; write 'least'"),
        ("2", "'replicas' cannot be 2; write its keys below it, or leave 'replicas' out"),
    ],
)
def test_invalid_replicas_are_faults(write: Write, replicas: str, stated: str) -> None:
    assert faults(write(f"{GOOD.format('a')}replicas: {replicas}")) == [f"r.yaml:6: {stated}"]


@pytest.mark.parametrize(
    ("line", "stated"),
    [
        ("memory: {adapters: {device: true}}", "'memory.adapters.device' cannot be true; write a whole number"),
        ("memory: {kv_cache: yes}", "'memory.kv_cache' cannot be true; write a size such as 512MiB or 4GB"),
        ("queue: {max_wait: on}", "'queue.max_wait' cannot be true; write a duration such as 30s, 10m or 2h"),
        ("queue: {floor: true}", "'queue.floor' cannot be true; write a number"),
        ("queue: {floor: 0.5}", "'queue.floor' cannot be 0.5; write less than 0.5"),
        ("pools: {a: {classes: []}}", "'pools.a.classes' is an empty list; name at least 1, or leave it out"),
        (f"context_length: {2**63}", f"'context_length' cannot be {2**63}; write {MOST} or less"),
        (
            f"batching: {{max_tokens: '{2**63}'}}",
            f"'batching.max_tokens' cannot be '{2**63}'; write {2**63 - 1} or less",
        ),
        (
            "pools: {Fast: {}}",
            "'pools.Fast' cannot be 'Fast'; write 1 to 32 lower-case letters, digits, '_' or '-', and begin with a "
            "letter",
        ),
        (
            f"pools: {{{', '.join(f'p{number}: {{}}' for number in range(17))}}}",
            "'pools' has too many entries; write 16 or fewer",
        ),
        ("memory: {host: 3}", "unknown key 'memory.host'; write it below 'memory.adapters'"),
        ("pools: {a: {max_waitings: 3}}", "unknown key 'pools.a.max_waitings'; write 'max_waiting'"),
        ("Context_Length: 512", "unknown key 'Context_Length'; write 'context_length'"),
        (
            "{memory: {adapters: {device: two}}, batching: {tokens_while_swapping: 8}}",
            "'memory.adapters.device' cannot be 'two'; write a whole number",
        ),
    ],
)
def test_faults_suggest_what_to_write(write: Write, line: str, stated: str) -> None:
    lines = line[1:-1].replace("}}, ", "}}\n") if line.startswith("{") else line
    assert faults(write(GOOD.format("a") + lines)) == [f"r.yaml:6: {stated}"]


@pytest.mark.parametrize(
    ("line", "stated"),
    [
        ("source: {path: x, revision: main}", "unknown key 'source.revision'; it goes with 'hub'"),
        ("source: {package: x, file: a.gguf}", "unknown key 'source.file'; it goes with 'hub'"),
        ("source: {hub: a/b, revision: main, inside: x}", "unknown key 'source.inside'; it goes with 'package'"),
        ("source: {hub: a/b, file: a.gguf}", "'source.revision' is missing; write 'revision: main'"),
        (
            "source: {hub: a/b, revision: main, file: a.bin}",
            "'source.file': write the path of a .gguf file inside the repository",
        ),
        ("engine: {name: vllm, device: cuda}", "unknown key 'engine.device'; the device is a setting of the server: "
         "roundhouse serve --device"),
        ("engine: {name: vllm, dtype: half}", "unknown key 'engine.dtype'; write it at the top level"),
        ("engine: {name: vllm, contextlength: 5}", "unknown key 'engine.contextlength'; write 'context_length' at the "
         "top level"),
    ],
)  # fmt: skip
def test_hints_for_misplaced_keys(write: Write, line: str, stated: str) -> None:
    key = line.partition(":")[0]
    lines = [line if one.startswith(f"{key}:") else one for one in GOOD.format("a").splitlines()]
    number = lines.index(line) + 1
    assert faults(write("\n".join(lines))) == [f"r.yaml:{number}: {stated}"]


@pytest.mark.parametrize("name", ["load_seconds", "tokens_per_second"])
def test_expected_figures_are_finite(write: Write, name: str) -> None:
    """A wait that is computed from it could not be reported."""
    (stated,) = faults(write(f"{SPEECH}expected: {{{name}: .inf}}"))
    assert f"'expected.{name}' cannot be inf" in stated


LONG_NUMBER = "r.yaml:2: holds a number of more than 100 characters; write it in quotes if it is text"


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        (b"\xff\xfe", ["r.yaml:1: is not UTF-8 text; save it as UTF-8"]),
        (b"id: a\nb: \x07", ["r.yaml:2: holds the control character U+0007; remove it"]),
        (b'id: a\nb: ["\\ud83d"]', ["r.yaml:2: holds half of a character; write the whole one"]),
        (b"", ["r.yaml: holds no recipe; write one document per model, or remove the file"]),
        (b"# only words\n---\n", ["r.yaml: holds no recipe; write one document per model, or remove the file"]),
        (b"id: a\n\tversion: 1", ["r.yaml:2: a tab cannot indent; use spaces"]),
        (b"just text", ["r.yaml:1: a recipe cannot be 'just text'; write keys and values, beginning with "
                        "'id: my-model'"]),
        (b"a" * (2**20 + 1), ["r.yaml: is larger than 1 MiB; split it, one model a file"]),
        (b"[" * 100_000, ["r.yaml:1: is not valid YAML here: more than 32 levels, one inside the other"]),
        (b"{a: " * 5_000, ["r.yaml:1: is not valid YAML here: more than 32 levels, one inside the other"]),
        (b"x: 2026-13-45", ["r.yaml:1: is not valid YAML here: month must be in 1..12"]),
        (b"id: a\nv: 1" + b":1" * 60 + b".5", [LONG_NUMBER]),
        (b"id: a\nv: 1" + b":1" * 60_000, [LONG_NUMBER]),
        (b"id: a\nv: 0x" + b"f" * 5000, [LONG_NUMBER]),
        (b"id: a\nv: !!float '1" + b":1" * 60_000 + b"'", [LONG_NUMBER]),
        (b"id: a\n? 1" + b":1" * 60_000 + b"\n: v", [LONG_NUMBER]),
        (b"a: &a [*a]", ["r.yaml:1: holds more than 20000 values or 32 levels once its aliases are written out; "
                         "write fewer '*aliases'"]),
    ],
    ids=["utf-8", "control", "half", "empty", "comments", "tab", "text", "large", "deep", "deep-map", "date",
         "too large a float", "base 60", "base 16", "a tag", "a key", "itself"],
)  # fmt: skip
def test_files_that_are_no_recipes_are_faults(write: Write, text: bytes, stated: list[str]) -> None:
    assert faults(write(text)) == stated


def test_another_librarys_changes_to_the_shared_yaml_loader_have_no_effect(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lm-format-enforcer makes such a change when vLLM gets its first JSON schema."""
    shared = yaml.SafeLoader.yaml_constructors
    monkeypatch.setitem(shared, "tag:yaml.org,2002:timestamp", shared["tag:yaml.org,2002:str"])
    assert yaml.safe_load("2026-13-45") == "2026-13-45"
    assert faults(write(b"x: 2026-13-45")) == ["r.yaml:1: is not valid YAML here: month must be in 1..12"]


@pytest.mark.parametrize("item", ["[{}]", "{{<<: [{}]}}"], ids=["lists", "merges"])
def test_alias_bombs_are_refused(write: Write, item: str) -> None:
    """500 bytes would be expanded to a billion values."""
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} " + item.format(", ".join([f"*a{n - 1}"] * 10)) for n in range(1, 10)]
    assert faults(write("\n".join(lines))) == [
        "r.yaml:1: holds more than 20000 values or 32 levels once its aliases are written out; write fewer '*aliases'"
    ]


def test_tags_never_run_code(write: Write, tmp_path: Path) -> None:
    victim = tmp_path / "was-here"
    found = faults(write(f"id: !!python/object/apply:os.mkdir ['{victim}']"))
    assert "could not determine a constructor for the tag" in found[0]
    assert not victim.exists()


def test_names_used_in_several_files_are_faults(write: Write) -> None:
    places = "memory: {adapters: {device: 1, host: 1}}\n"
    first = write(GOOD.format("m") + places + "aliases: [x]\nadapters: [{name: a, source: {path: a}}]\n", "1.yaml")
    second = write(
        GOOD.format("n")
        + places
        + "aliases: [m, x]\nadapters: [{name: a, source: {path: a}}, {name: m, source: {path: a}}]\n",
        "2.yaml",
    )
    third = write(GOOD.format("n:a") + "---\n" + GOOD.format("m"), "3.yaml")
    assert faults([first, second, third]) == [
        "2.yaml:7: alias 'm' is a model's id in 1.yaml:1; choose another alias",
        "2.yaml:7: alias 'x' is used twice, first in 1.yaml:7; choose another alias",
        "2.yaml:8: adapter 'a' clashes with the model name 'n:a' in 3.yaml:1; choose another name",
        "2.yaml:8: adapter 'm' clashes with the model name 'm' in 1.yaml:1; choose another name",
        "3.yaml:7: id 'm' is used twice, first in 1.yaml:1; choose another id",
    ]


def test_two_models_may_have_adapters_of_the_same_name(write: Write) -> None:
    more = "memory: {adapters: {device: 1, host: 1}}\nadapters: [{name: a, source: {path: a}}]\n"
    assert len(load_recipes(write(GOOD.format("m") + more + "---\n" + GOOD.format("n") + more))) == 2


def test_sources_are_checked_if_requested(write: Write, tmp_path: Path) -> None:
    file = write(
        GOOD.format("m") + "---\n"
        + GOOD.format("n").replace("{path: weights}", "{package: no_such_package.at.all}") + "---\n"
        + GOOD.format("o").replace("{path: weights}", "{package: registry, inside: nothing}")
        + "memory: {adapters: {device: 1, host: 1}}\nadapters:\n- name: a\n  source: {path: away}\n---\n"
        + GOOD.format("p").replace("{path: weights}", "{hub: never/asked, revision: main}") + "---\n"
        + GOOD.format("q").replace("{path: weights}", "{package: registry}")
    )  # fmt: skip
    assert len(load_recipes(file)) == 5
    assert faults(file, check_sources=True) == [
        "r.yaml:4: there is no folder weights",
        "r.yaml:10: there is no installed package 'no_such_package.at.all'; install it, or correct the name",
        "r.yaml:16: package 'registry' has no folder 'nothing'",
        "r.yaml:21: there is no folder away",
    ]


def test_folders_without_recipes_are_faults(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.yaml").write_text(GOOD.format("a"))
    with pytest.raises(Unfit) as caught:
        load_recipes([tmp_path, tmp_path / "none"])
    assert caught.value.faults == (
        f"{tmp_path}: holds no .yaml or .yml file; name one of its folders: set",
        f"{tmp_path}/none: does not exist; name a recipe file or a folder of them",
    )


def test_a_folder_of_a_model_is_no_folder_of_recipes(tmp_path: Path) -> None:
    """Servers were started with such a folder, and had no model."""
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(Unfit) as caught:
        load_documents(tmp_path, may_be_empty=True)
    assert "roundhouse models add" in caught.value.faults[0]
    (tmp_path / "a.yaml").write_text(GOOD.format("a"))
    assert [recipe.id for recipe in load_recipes(tmp_path)] == ["a"]


def test_a_revision_that_can_move_is_remarked(write: Write) -> None:
    text = GOOD.format("m").replace("{path: weights}", "{hub: a/b, revision: main}")
    fixed = GOOD.format("n").replace("{path: weights}", f"{{hub: a/b, revision: {'a' * 40}}}")
    found = remarks(load_recipes(write(text + "---\n" + fixed)))
    assert len(found) == 1
    assert found[0].startswith("m: revision 'main' of a/b can move")


KEYS = [
    *Recipe.model_fields,
    "name",
    "path",
    "hub",
    "revision",
    "kv_cache",
    "adapters",
    "flags",
    "pin",
    "max_rank",
    "<<",
]

VALUES: st.SearchStrategy[object] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([*Task, "vllm", "1GB"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=15,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=300)
@given(values=VALUES, good=st.booleans())
@pytest.mark.long
def test_loading_any_values_returns_recipes_or_faults(values: object, good: bool, write: Write) -> None:
    if good and isinstance(values, dict):
        values = {**yaml.safe_load(GOOD.format("m")), **values}
    path = write(yaml.dump(values))
    try:
        found: Sequence[str] = [str(path) for _ in load_documents(path, check_sources=True).models]
    except Unfit as refused:
        found = refused.faults
    assert found
    assert all(fault.startswith(str(path)) for fault in found)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=300)
@given(text=st.text(alphabet="ab:-[]{}&*!|>'\"#%@,?<= \n\t0", max_size=60) | st.text(max_size=40))
def test_loading_any_text_returns_faults(text: str, write: Write) -> None:
    with pytest.raises(Unfit):
        load_recipes(write(text.encode("utf-8", "surrogatepass")))
