"""Resolving names to targets: the order of rules, refusals, and the lists in error messages."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.catalog import Catalog
from registry.errors import BadRequest, Conflict, NotFound
from registry.recipes.definition import Task
from registry.recipes.fields import origin
from registry.records import Adapter, AdapterKey
from tests.unit.registry.makers import adapter, digest, recipe


@pytest.fixture
def catalog() -> Catalog:
    recipes = [
        recipe("llama", aliases=("chat",)),
        recipe("gpt-oss"),
        recipe("gpt-oss:120b"),
        recipe("minilm", "embed", aliases=("embed",)),
        recipe("whisper", "transcribe"),
    ]
    adapters = [
        adapter("llama", "sql", 1, 2, 3, aliases={"prod": 2}),
        adapter("llama", "both", 4),
        adapter("gpt-oss:120b", "both", 5),
        adapter("gpt-oss:120b", "tone", 6),
        adapter("gpt-oss", "small", 7),
        adapter("gone", "lost", 8),
    ]
    return Catalog(recipes, adapters, {"main": "llama", "chat": "gpt-oss", "old": "gone"})


@pytest.mark.parametrize(
    ("name", "model", "bare", "version"),
    [
        ("llama", "llama", None, None),
        ("gpt-oss:120b", "gpt-oss:120b", None, None),
        ("main", "llama", None, None),
        ("chat", "llama", None, None),  # the recipe's alias has priority over the one set at run time
        ("sql", "llama", "sql", 3),
        ("sql@v1", "llama", "sql", 1),
        ("sql@prod", "llama", "sql", 2),
        (f"sql@{digest(2)}", "llama", "sql", 2),
        ("llama:sql", "llama", "sql", 3),
        ("main:sql@v2", "llama", "sql", 2),
        ("llama:both", "llama", "both", 1),
        ("gpt-oss:120b:both", "gpt-oss:120b", "both", 1),
        (f"gpt-oss:120b:tone@{digest(6)}", "gpt-oss:120b", "tone", 1),
    ],
)
def test_a_name_resolves_to_its_target(
    catalog: Catalog, name: str, model: str, bare: str | None, version: int | None
) -> None:
    target = catalog.resolve(name)
    assert (target.recipe.id, target.adapter_name) == (model, bare)
    assert (target.version.number if target.version else None) == version


@pytest.mark.parametrize(
    ("name", "error", "code", "says"),
    [
        ("", NotFound, "model_not_found", "There is no model or adapter ''"),
        ("lama", NotFound, "model_not_found", "There are: llama"),
        ("both", BadRequest, "ambiguous_model", "'gpt-oss:120b:both', 'llama:both'"),
        ("sql@v9", NotFound, "adapter_version_not_found", "Its newest versions: v1, v2, v3. Its aliases: prod."),
        ("sql@", NotFound, "adapter_version_not_found", "has no version ''"),
        ("llama@v1", NotFound, "model_version_not_found", "Model 'llama' has no version 'v1'"),
        ("gpt-oss:tone", NotFound, "model_not_found", "on model 'gpt-oss'. There are: small."),
        ("whisper:x", NotFound, "model_not_found", "There is no adapter yet."),
        ("lost", NotFound, "model_not_found", "There is no model or adapter 'lost'"),
        ("gone:lost", NotFound, "model_not_found", "There is no model or adapter 'gone:lost'"),
        ("old", NotFound, "model_not_found", "There is no model or adapter 'old'"),
        ("LLAMA", NotFound, "model_not_found", "There is no model or adapter 'LLAMA'"),
    ],
)
def test_unknown_and_ambiguous_names_are_refused(
    catalog: Catalog, name: str, error: type[NotFound], code: str, says: str
) -> None:
    with pytest.raises(error) as caught:
        catalog.resolve(name)
    assert caught.value.code == code
    assert caught.value.param == ("model" if code != "adapter_version_not_found" else None)
    assert says in caught.value.message


def test_the_error_of_a_wrong_task_names_the_right_endpoint(catalog: Catalog) -> None:
    with pytest.raises(BadRequest, match=r"made for embed, and this endpoint for chat\. .* /v1/embeddings") as caught:
        catalog.resolve("embed", Task.CHAT)
    assert caught.value.code == "wrong_task"
    assert catalog.resolve("embed", Task.RERANK, Task.EMBED).recipe.id == "minilm"


def test_a_pair_never_reaches_another_model(catalog: Catalog) -> None:
    """`gpt-oss` with adapter `120b` or `120b:tone` must not become the model gpt-oss:120b."""
    assert catalog.resolve_pair("main", "sql@prod").version == catalog.resolve("llama:sql@v2").version
    for base in ("llama@1", "main@1"):  # as lines of batches name it
        assert catalog.resolve_pair(base, "sql@prod") == catalog.resolve_pair("llama", "sql@prod")
    with pytest.raises(NotFound, match="Model 'llama' has no version '9'"):
        catalog.resolve_pair("llama@9", "sql")
    for name in ("120b", "120b:tone"):
        with pytest.raises(NotFound, match="on model 'gpt-oss'") as missing:
            catalog.resolve_pair("gpt-oss", name)
        assert missing.value.param == "adapter_id"
    with pytest.raises(NotFound) as missing:
        catalog.resolve_pair("main", "sql@v99")
    assert missing.value.param == "adapter_id"
    with pytest.raises(NotFound) as missing:
        catalog.resolve_pair("sql", "sql")
    assert missing.value.param == "model"
    assert catalog.resolve_pair("main", "sql", Task.CHAT).adapter_name == "sql"
    for base in ("minilm", "embed", "whisper"):  # the task is the fault, whether or not the adapter exists
        with pytest.raises(BadRequest) as wrong:
            catalog.resolve_pair(base, "sql", Task.CHAT)
        assert wrong.value.code == "wrong_task"


def test_short_digests_must_fit_one_version() -> None:
    catalog = Catalog([recipe("m")], [adapter("m", "a", 1, 2, 1)])
    with pytest.raises(NotFound, match="more than one version"):
        catalog.resolve("a@sha256:000000000000")
    target = catalog.resolve(f"a@{digest(1)}")
    assert target.version is not None
    assert target.version.number == 3, "the newest version with this content"


def test_messages_stay_short() -> None:
    many = [adapter("m", f"adapter-{number}") for number in range(5000)]
    catalog = Catalog([recipe("m")], many)
    with pytest.raises(NotFound) as caught:
        catalog.resolve("x" * 100_000)
    assert len(caught.value.message) < 500
    assert "and 4991 more (GET /v1/models lists all)" in caught.value.message
    with pytest.raises(NotFound, match="There are: adapter-77,"):
        catalog.resolve("adaptr-77")


def test_names_in_adapter_calls_never_mean_a_model(catalog: Catalog) -> None:
    assert catalog.adapter("sql").key == AdapterKey("llama", "sql")
    assert catalog.adapter("main:both").key == AdapterKey("llama", "both")
    for name in ("lost", "gone:lost"):
        assert catalog.adapter(name).key == AdapterKey("gone", "lost"), "it can still be viewed and deleted"
    with pytest.raises(BadRequest, match="'llama:both'"):
        catalog.adapter("both")
    for name in ("llama", "chat", "nothing", "llama:nothing"):
        with pytest.raises(NotFound) as caught:
            catalog.adapter(name)
        assert caught.value.code == "adapter_not_found"


def test_notes_list_names_that_are_out_of_use(catalog: Catalog) -> None:
    clashing = [adapter("llama", "gpt-oss", 9), adapter("gpt-oss", "120b", 10), adapter("gone", "lost", 8)]
    later = Catalog(catalog.recipes.values(), clashing, {"chat": "gpt-oss", "old": "gone"})
    assert sorted(later.notes) == [
        "'gpt-oss' means the model of that name, and not adapter 'llama:gpt-oss': rename one of them",
        "'gpt-oss:120b' means the model of that name, and not adapter 'gpt-oss:120b': rename one of them",
        "adapter 'gone:lost' is out of use: there is no recipe for its base",
        "alias 'chat' for 'gpt-oss' is out of use: a recipe has that name",
        "alias 'old' for 'gone' is out of use: there is no recipe for that model",
    ]
    assert later.resolve("gpt-oss").version is None
    assert later.resolve("llama:gpt-oss").adapter_name == "gpt-oss"
    assert later.adapter("gpt-oss:120b").key == AdapterKey("gpt-oss", "120b"), "it can be viewed and deleted"


def test_a_note_says_which_adapters_were_registered_for_another_base() -> None:
    model, one = recipe("llama"), adapter("llama", "sql")
    for base_origin, noted in ((None, 0), (origin(model.source), 0), ("hub acme/other", 1)):
        current = replace(one.current, base_origin=base_origin)
        assert len(Catalog([model], [replace(one, current=current)]).notes) == noted


@pytest.mark.parametrize(
    ("key", "error", "code"),
    [
        (AdapterKey("nothing", "a"), NotFound, "model_not_found"),
        (AdapterKey("minilm", "a"), BadRequest, "adapters_not_supported"),
        (AdapterKey("llama", "../a"), BadRequest, "invalid_value"),
        (AdapterKey("llama", "a\n"), BadRequest, "invalid_value"),
        (AdapterKey("llama", "embed"), Conflict, "name_in_use"),
        (AdapterKey("gpt-oss", "120b"), Conflict, "name_in_use"),
    ],
)
def test_invalid_adapter_names_are_refused(
    catalog: Catalog, key: AdapterKey, error: type[Exception], code: str
) -> None:
    with pytest.raises(error) as caught:
        catalog.check_adapter(key)
    assert "memory.adapters" not in str(caught.value), "only chat models take adapters"
    assert getattr(caught.value, "code", None) == code
    assert catalog.check_adapter(AdapterKey("main", "fine")).id == "llama"


@pytest.mark.parametrize("alias", ["llama", "chat", "sql", "both", "llama:sql", "main:sql"])
def test_used_names_cannot_become_aliases(catalog: Catalog, alias: str) -> None:
    with pytest.raises(Conflict):
        catalog.check_alias(alias, "llama")


def test_free_names_can_become_aliases(catalog: Catalog) -> None:
    assert catalog.check_alias("main", "gpt-oss").id == "gpt-oss", "an alias set at run time may move"
    assert catalog.check_alias("org/name:1", "chat").id == "llama"
    with pytest.raises(BadRequest):
        catalog.check_alias("a b", "llama")
    with pytest.raises(NotFound):
        catalog.check_alias("fine", "sql")


NAMES = st.sampled_from(["a", "b", "c", "a:b", "b:c", "a:b:c"])
BARE = st.sampled_from(["a", "b", "c", "d"])


@given(
    ids=st.sets(NAMES, min_size=1),
    aliases=st.dictionaries(NAMES, NAMES),
    keys=st.sets(st.tuples(NAMES, BARE)),
    requested=st.builds(lambda parts, ref: ":".join(parts) + ref, st.lists(BARE, min_size=1, max_size=4),
                    st.sampled_from(["", "@v1", "@v2"])),
)  # fmt: skip
def test_names_resolve_by_the_rules_in_order(
    ids: set[str], aliases: dict[str, str], keys: set[tuple[str, str]], requested: str
) -> None:
    """Compared with a second implementation of the rules, in sequence and without tables."""
    adapters = [adapter(base, name, place) for place, (base, name) in enumerate(sorted(keys), start=1)]
    catalog = Catalog([recipe(id_) for id_ in sorted(ids)], adapters, aliases)
    assert _outcome(catalog, requested) == _expected(ids, aliases, adapters, requested)


def _outcome(catalog: Catalog, requested: str) -> str:
    try:
        target = catalog.resolve(requested)
    except (NotFound, BadRequest) as refused:
        return type(refused).__name__
    return f"{target.recipe.id} {target.version.digest if target.version else None}"


def _expected(ids: set[str], aliases: dict[str, str], adapters: list[Adapter], requested: str) -> str:
    def model(name: str) -> str | None:
        return name if name in ids else aliases[name] if aliases.get(name) in ids else None

    if (found := model(requested)) is not None:
        return f"{found} None"
    name, _, ref = requested.partition("@")
    if model(name) is not None or ref == "v2":
        bare = [a for a in adapters if a.key.name == name and a.key.base in ids]
        return "BadRequest" if model(name) is None and len(bare) > 1 else "NotFound"
    bare = [a for a in adapters if a.key.name == name and a.key.base in ids]
    if len(bare) > 1:
        return "BadRequest"
    if not bare and ":" in name:
        base, last = name.rsplit(":", 1)
        bare = [a for a in adapters if (a.key.base, a.key.name) == (model(base), last)]
    return f"{bare[0].key.base} {bare[0].current.digest}" if bare else "NotFound"
