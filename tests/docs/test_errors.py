"""docs/reference/errors.md has what HTTP answers: each code is provoked here, or in the test named beside it."""

import ast
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from docs.tables.errors import CLASSES, codes, raised
from tests.docs.blocks import DOCS, pages
from tests.system.serving import PACK, ROOT, Server

CHAT = "/v1/chat/completions"
ADAPTERS = "/v1/adapters"
MESSAGES = [{"role": "user", "content": "hello"}]


@dataclass(frozen=True)
class FaultyRequest:
    path: str
    json: Any = None
    method: str = "POST"
    more: dict[str, Any] = field(default_factory=dict)
    """More arguments of httpx's request."""


def registered(name: str, base: str, path: Path = PACK) -> FaultyRequest:
    return FaultyRequest(ADAPTERS, {"name": name, "base": base, "source": {"path": str(path)}})


HERE: dict[tuple[int, str], FaultyRequest] = {
    (400, "adapters_not_supported"): registered("x", "starter-embed"),
    (400, "invalid_audio"): FaultyRequest(
        "/v1/audio/transcriptions", more={"data": {"model": "starter-speech"}, "files": {"file": ("a.wav", b"RIFF")}}
    ),
    (400, "invalid_body"): FaultyRequest(
        CHAT, more={"content": b"{}", "headers": {"Content-Type": "application/json", "Content-Encoding": "gzip"}}
    ),
    (400, "invalid_form"): FaultyRequest(
        "/v1/audio/transcriptions", more={"content": b"x", "headers": {"Content-Type": "multipart/form-data"}}
    ),
    (400, "invalid_json"): FaultyRequest(CHAT, more={"content": b"{", "headers": {"Content-Type": "application/json"}}),
    (400, "json_too_deep"): FaultyRequest(
        CHAT, more={"content": b"[" * 50_000, "headers": {"Content-Type": "application/json"}}
    ),
    (400, "too_many_documents"): FaultyRequest(
        "/v1/rerank", {"model": "starter-rerank", "query": "q", "documents": ["d"] * 2049}
    ),
    (400, "too_many_inputs"): FaultyRequest("/v1/embeddings", {"model": "starter-embed", "input": ["x"] * 2049}),
    (400, "unknown_parameter"): FaultyRequest(CHAT, {"model": "starter-chat", "messages": MESSAGES, "best_of": 2}),
    (400, "unsupported_value"): FaultyRequest(
        "/v1/embeddings", {"model": "starter-embed", "input": "x", "truncate_prompt_tokens": 5}
    ),
    (400, "wrong_task"): FaultyRequest(CHAT, {"model": "starter-embed", "messages": MESSAGES}),
    (403, "host_not_allowed"): FaultyRequest("/v1/models", method="GET", more={"headers": {"Host": "other.example"}}),
    (403, "origin_not_allowed"): FaultyRequest(CHAT, {}, more={"headers": {"Origin": "https://elsewhere.example"}}),
    (404, "adapter_not_found"): FaultyRequest(f"{ADAPTERS}/nobody", method="GET"),
    (404, "adapter_version_not_found"): FaultyRequest(CHAT, {"model": "uppercase@v99", "messages": MESSAGES}),
    (404, "router_version_not_found"): FaultyRequest(CHAT, {"model": "auto@v99", "messages": MESSAGES}),
    (404, "alias_not_found"): FaultyRequest("/v1/models/starter-chat/aliases/nothing", method="DELETE"),
    (404, "router_not_found"): FaultyRequest("/v1/routers/nobody", method="GET"),
    (404, "source_not_found"): registered("x", "starter-chat", Path("/nowhere")),
    (404, "unknown_path"): FaultyRequest("/nowhere", method="GET"),
    (409, "name_in_use"): registered("starter-rerank", "starter-chat"),
    (409, "recipe_given"): FaultyRequest("/v1/models/starter-embed", method="DELETE"),
    (409, "nothing_to_roll_back"): FaultyRequest(f"{ADAPTERS}/uppercase/rollback"),
    (422, "bad_router"): FaultyRequest("/v1/routers", {"id": "x", "targets": []}),
    (422, "bad_router_model"): FaultyRequest("/v1/routers/auto/fitted/intents", {"safetensors": "AAAA"}, "PUT"),
    (422, "unfit_adapter"): registered("x", "starter-chat", PACK / "starter-chat"),
}
OTHER_PLACE: dict[tuple[int, str], str] = {
    (415, "unsupported_coding"): "unit/guard/test_codings.py",
    (400, "ambiguous_model"): "unit/registry/test_catalog.py",
    (409, "too_many_aliases"): "unit/registry/state/test_adapters.py",
    (404, "merged_not_found"): "unit/http/admin/test_combine.py",
    (409, "merged_in_use"): "unit/http/admin/test_combine.py",
    (400, "source_not_supported"): "unit/adapters/remote/test_remote.py",
    (400, "grammar_too_large"): "contract/chat_engine/test_grammars.py",
    (400, "grammar_too_slow"): "contract/chat_engine/test_grammars.py",
    (400, "invalid_grammar"): "system/surfaces/test_chat.py",
    (400, "invalid_http"): "unit/guard/test_connections.py",
    (400, "media_too_large"): "unit/models/chat/requests/test_media.py",
    (400, "template_too_slow"): "unit/models/chat/requests/test_rendering.py",
    (400, "too_many_entries"): "contract/chat_engine/test_grammars.py",
    (400, "unsupported_endpoint"): "unit/providers/test_responses.py",
    (500, "device_lost"): "unit/residency/devices/test_devices.py",
    (409, "last_admin_key"): "unit/http/tenants/test_administration.py",
    (404, "provider_not_found"): "unit/providers/test_views.py",
    (502, "provider_address"): "unit/providers/test_faults.py",
    (502, "provider_answer"): "unit/providers/test_faults.py",
    (502, "provider_key"): "unit/providers/test_faults.py",
    (502, "provider_model"): "unit/providers/test_retry.py",
    (502, "provider_no_credit"): "unit/providers/test_retry.py",
    (502, "provider_unreachable"): "unit/providers/test_faults.py",
    (503, "provider_open"): "unit/providers/test_retry.py",
    (400, "unsatisfiable_constraint"): "contract/chat_engine/test_grammars.py",
    (401, "api_key_expired"): "unit/tenants/test_keyring.py",
    (401, "api_key_revoked"): "unit/tenants/test_keyring.py",
    (401, "missing_api_key"): "unit/tenants/test_keyring.py",
    (401, "team_missing"): "unit/tenants/test_keyring.py",
    (401, "sign_in_failed"): "unit/tenants/sign_in/test_flow.py",
    (401, "access_tokens_off"): "unit/tenants/sign_in/test_tokens.py",
    (401, "access_token_expired"): "unit/tenants/sign_in/test_tokens.py",
    (401, "invalid_access_token"): "unit/tenants/sign_in/test_tokens.py",
    (403, "no_group"): "unit/tenants/sign_in/test_mapping.py",
    (422, "bad_oidc_file"): "unit/tenants/sign_in/test_mapping.py",
    (503, "sign_in_unavailable"): "unit/tenants/sign_in/test_flow.py",
    (401, "team_archived"): "unit/tenants/test_keyring.py",
    (409, "team_archived"): "unit/http/tenants/test_administration.py",
    (403, "insufficient_scope"): "unit/http/tenants/test_usage.py",
    (403, "upload_needed"): "unit/http/admin/test_adapter_folders.py",
    (403, "model_not_allowed"): "unit/guard/test_keys.py",
    (403, "not_your_adapter"): "system/tenants/test_isolation.py",
    (400, "invalid_context"): "unit/http/hops/test_port.py",
    (404, "no_fleet"): "unit/http/hops/test_port.py",
    (404, "server_not_found"): "faults/fleet/test_nodes.py",
    (404, "not_placed"): "faults/fleet/test_nodes.py",
    (409, "is_front"): "system/fleet/test_clients.py",
    (409, "last_node"): "faults/fleet/test_nodes.py",
    (409, "not_a_node"): "unit/fleet/test_staying.py",
    (409, "older_state"): "unit/registry/shared/test_names.py",
    (409, "names_differ"): "unit/registry/shared/test_importing.py",
    (409, "unfit_database"): "unit/registry/state/test_unfit_databases.py",
    (409, "keys_lost"): "unit/cli/local/test_serve.py",
    (422, "wrong_copy"): "unit/adapters/content/test_copies.py",
    (503, "no_node"): "unit/http/hops/test_front.py",
    (404, "no_ledger"): "unit/http/tenants/test_usage.py",
    (404, "no_prices"): "unit/http/tenants/test_usage.py",
    (404, "account_not_found"): "unit/http/tenants/test_administration.py",
    (404, "key_not_found"): "unit/http/tenants/test_administration.py",
    (404, "limit_not_found"): "unit/http/tenants/test_administration.py",
    (404, "team_not_found"): "unit/http/tenants/test_administration.py",
    (404, "request_not_found"): "unit/http/tenants/test_usage.py",
    (409, "request_running"): "unit/tenants/costs/test_costs.py",
    (503, "no_route"): "unit/routing/test_decide.py",
    (503, "database_damaged"): "unit/registry/state/test_durable.py",
    (503, "database_unavailable"): "unit/tenants/test_key_table.py",
    (503, "keys_unreadable"): "unit/tenants/test_watch.py",
    (503, "ledger_unavailable"): "unit/tenants/test_ledger_writer.py",
    (503, "limits_unavailable"): "unit/fleet/test_shared_limits.py",
    (403, "flag_not_allowed"): "unit/launch/test_additions.py",
    (404, "hub_not_found"): "system/added/test_hub.py",
    (409, "adapter_in_use"): "system/test_adapters.py",
    (409, "unfit_adapter"): "unit/scheduling/test_early_calls.py",
    (409, "router_in_use"): "unit/registry/state/test_routers.py",
    (409, "model_pinned"): "system/surfaces/test_models.py",
    (400, "previous_response_not_found"): "unit/http/tenants/test_stored_responses.py",
    (400, "ambiguous_item"): "unit/http/tenants/test_item_references.py",
    (400, "duplicate_item"): "unit/http/tenants/test_item_references.py",
    (404, "item_not_found"): "unit/http/tenants/test_item_references.py",
    (400, "wrong_purpose"): "unit/http/batches/test_endpoints.py",
    (400, "callback_refused"): "unit/batches/callbacks/test_addresses.py",
    (400, "webhook_unreachable"): "unit/http/batches/test_webhooks.py",
    (404, "no_callback_secret"): "unit/http/batches/test_webhooks.py",
    (404, "webhook_not_found"): "unit/http/batches/test_webhooks.py",
    (409, "no_deliveries"): "unit/http/batches/test_webhooks.py",
    (409, "too_many_webhooks"): "unit/http/batches/test_webhooks.py",
    (404, "batch_not_found"): "unit/http/batches/test_endpoints.py",
    (404, "file_not_found"): "unit/http/batches/test_files.py",
    (507, "storage_full"): "unit/http/batches/test_files.py",
    (409, "batch_running"): "unit/http/batches/test_endpoints.py",
    (409, "batch_ended"): "unit/http/batches/test_endpoints.py",
    (409, "idempotency_conflict"): "unit/http/batches/test_endpoints.py",
    (429, "too_many_batches"): "unit/http/batches/test_endpoints.py",
    (404, "response_not_found"): "unit/http/tenants/test_stored_responses.py",
    (413, "response_too_large"): "unit/http/tenants/test_stored_responses.py",
    (429, "responses_full"): "unit/http/tenants/test_stored_responses.py",
    (413, "audio_too_long"): "contract/speech/test_audio.py",
    (422, "bad_recipe"): "unit/launch/test_proposal.py",
    (422, "bad_weights"): "unit/launch/test_detect.py",
    (422, "engine_version"): "unit/http/admin/test_estimate.py",
    (429, "bodies_full"): "unit/http/hostile/test_bodies.py",
    (429, "uploads_full"): "unit/http/audio/test_upload.py",
    (500, "adapter_damaged"): "unit/adapters/test_store.py",
    (500, "adapter_failed"): "faults/test_adapter_faults.py",
    (500, "check_failed"): "faults/test_adapter_faults.py",
    (409, "adapter_deleted"): "unit/http/admin/test_combine.py",
    (500, "compose_failed"): "contract/test_compose.py",
    (500, "engine_hung"): "faults/test_hang.py",
    (500, "killed"): "faults/test_out_of_memory.py",
    (500, "memory_overdrawn"): "unit/residency/test_faults.py",
    (500, "out_of_memory"): "faults/test_out_of_memory.py",
    (503, "adapter_probe_failed"): "faults/test_adapter_faults.py",
    (503, "combine_busy"): "unit/http/admin/test_combine.py",
    (503, "compose_timeout"): "contract/test_compose.py",
    (503, "storage_full"): "unit/registry/test_reserve.py",
    (503, "disk_full"): "unit/models/test_fetching.py",
    (503, "engine_died"): "unit/slots/test_server.py",
    (503, "drained"): "unit/residency/test_manager.py",
    (503, "hub_unavailable"): "faults/test_adapter_faults.py",
    (503, "model_failed"): "unit/residency/test_faults.py",
    (503, "no_space"): "unit/http/audio/test_upload.py",
    (503, "out_of_memory"): "contract/speech/test_audio.py",
    (503, "queue_timeout"): "system/surfaces/test_models.py",
    (404, "model_version_not_found"): "system/added/test_sources.py",
    (409, "model_in_use"): "system/added/test_recipes.py",
    (422, "context_too_long"): "unit/launch/test_proposal.py",
    (422, "gguf_not_served"): "unit/launch/test_detect.py",
    (422, "bad_files"): "unit/launch/test_additions.py",
    (422, "is_adapter"): "unit/launch/test_detect.py",
    (422, "is_classifier"): "unit/launch/test_detect.py",
    (422, "is_masked_lm"): "unit/launch/test_detect.py",
    (422, "is_trainer_output"): "unit/launch/test_detect.py",
    (422, "needs_code"): "unit/launch/test_proposal.py",
    (422, "not_a_model"): "unit/launch/test_detect.py",
    (422, "not_on_cpu"): "unit/launch/public/test_known_models.py",
    (422, "not_whisper"): "unit/launch/test_detect.py",
    (422, "quantization_not_here"): "unit/launch/test_proposal.py",
    (422, "quantized"): "unit/launch/test_detect.py",
    (422, "sparse_encoder"): "unit/launch/test_detect.py",
    (422, "unknown_architecture"): "unit/launch/test_detect.py",
    (422, "unknown_quantization"): "unit/launch/test_proposal.py",
    (500, "conversion_failed"): "unit/launch/test_conversion.py",
    (503, "bad_download"): "unit/models/test_fetching.py",
    (503, "download_cancelled"): "system/added/test_hub.py",
    (503, "download_ended"): "unit/models/test_fetching.py",
}
"""The file of `tests` in which a test expects the code, see `expects`."""
STATUS = re.compile(r"\b[45]\d\d\b")
NAMED = re.compile(r"\b([45]\d\d)s?\s+\(?`([a-z_]+)`")
"""A status with a code behind it, as pages write it: 503 `engine_died`."""
NOT_PROVOKED: dict[tuple[int, str], str] = {
    (400, "unprocessable_request"): "what vLLM fails on without saying why; each such body that is known is refused",
    (408, "client_too_slow"): "for the log and metrics: who has stopped reading does not read it",
    (409, "other_pepper"): "the start's and the command line's",
    (409, "team_exists"): "the command line's own",
    (503, "line_revoked"): "between queue and batches: the line runs again",
    (503, "no_pepper"): "the start's and the command line's",
    (404, "no_state"): "the command line's own, when no server has run",
    (404, "not_found"): "between gateway and engine: a path that the gateway does not have",
    (409, "adapters_full"): "between gateway and engine: the queue never asks for a place that is not there",
    (409, "no_place_to_pin"): "needs as many pins as the starter's recipe has places",
    (409, "places_full"): "between gateway and engine, as adapters_full",
    (409, "state_version"): "the start's, on files that another version wrote",
    (409, "no_schema"): "the start's, where PostgreSQL lets it make none",
    (422, "bad_config"): "the load's, of a config.json that lacks a size",
    (422, "source_not_found"): "the start's, of a recipe whose package has no such folder",
    (429, "grammar_queue_full"): "needs more grammars at once than a test has time for",
    (500, "ended"): "a kernel that does not tell any more how a process ended",
    (500, "exited"): "an engine's process ends by itself only for a fault that nobody knows",
    (500, "probe_broken"): "between queue and engine: told as adapter_probe_failed",
    (500, "probe_timeout"): "between queue and engine: told as adapter_probe_failed",
    (503, "grammar_check_busy"): "needs a machine that has no time for half a minute",
    (503, "model_broken"): "its message is that of the fault in the files",
    (503, "shutting_down"): "only while a server stops",
    (503, "source_not_downloaded"): "the start's: told when the files are fetched",
    (503, "source_not_stored"): "a disk that is full while a hub's files come",
}


@cache
def documented() -> set[tuple[int, str]]:
    rows = [line.split("|") for line in codes().splitlines()[2:]]
    return {(int(row[1]), row[2].strip(" `")) for row in rows}


def expects(tree: ast.Module, code: str) -> bool:
    """Whether a test holds a code against this one: in the assertion, in what the test is run with, or in a constant of
    theirs. A file that makes errors with this code itself shows nothing."""
    constants = {
        ast.unparse(target): node.value for node in tree.body if isinstance(node, ast.Assign) for target in node.targets
    }

    def holds(node: ast.AST) -> bool:
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and part.value == code:
                return True
            if isinstance(part, ast.Name) and part.id in constants and holds(constants[part.id]):
                return True
        return False

    made = [k for k in ast.walk(tree) if isinstance(k, ast.keyword) and k.arg == "code" and holds(k.value)]
    for test in ast.walk(tree):
        if not isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) or not test.name.startswith("test_"):
            continue
        asserted = [a for a in ast.walk(test) if isinstance(a, ast.Assert) and "code" in ast.unparse(a.test)]
        if asserted and not made and any(map(holds, (*asserted, *test.decorator_list))):
            return True
    return False


def test_a_code_that_a_page_names_is_in_the_table() -> None:
    known = documented() | {(kind.status, kind.code) for kind in CLASSES.values()}
    named = [
        (page.name, int(status), code)
        for page in pages()
        for status, code in NAMED.findall(page.read_text(encoding="utf-8"))
    ]
    assert ("residency.md", 503, "engine_died") in named
    assert [one for one in named if one[1:] not in known] == []


def test_whether_to_retry_is_stated_once_of_each_status() -> None:
    _, _, table = (DOCS / "errors.md").read_text(encoding="utf-8").partition("## What to retry")
    reported = [
        status for row in table.splitlines() if row.startswith("| ") for status in STATUS.findall(row.split("|")[1])
    ]
    assert sorted(reported) == sorted({str(kind.status) for kind in CLASSES.values()})


def test_a_code_that_cannot_be_read_from_the_source_is_noticed() -> None:
    """One that another error had is told where that one was made."""
    source = """
def found(code): raise NotFound(f"No {name}.", code=code)
found(code="gone")
raise Unavailable("Late.", code="late" if slow else other.code)
frames.CallFailed(uid, 503, "died", "It died.")
"""
    assert dict(raised(ast.parse(source), "registry.errors")) == {
        (404, "gone"): "No ….", (503, "late"): "Late.", (503, "died"): "It died."
    }  # fmt: skip
    for given in ("word + 's'", "unknown", "{1: 'a'}[key]"):
        with pytest.raises(ValueError, match=r"registry\.errors:1: write the code"):
            list(raised(ast.parse(f"Unfit('x', code={given})"), "registry.errors"))


def test_a_test_that_only_has_the_word_expects_nothing() -> None:
    true = """
CODES = ["gone"]
@pytest.mark.parametrize("word", CODES)
def test_it(word): assert answer.code == word
"""
    word = "def test_it(): assert 'gone' in words"
    own = "def test_it(): serve(NotFound('x', code='gone')); assert answer.code == 'gone'"
    assert [expects(ast.parse(text), "gone") for text in (true, word, own)] == [True, False, False]


def test_each_documented_code_is_expected_somewhere() -> None:
    tables = [*HERE, *OTHER_PLACE, *NOT_PROVOKED]
    assert len(tables) == len(set(tables))
    assert set(tables) == documented()
    for (_, code), file in OTHER_PLACE.items():
        assert expects(ast.parse((ROOT / "tests" / file).read_text()), code), f"{file} does not expect {code}"


@pytest.mark.real
@pytest.mark.parametrize("key", HERE, ids=lambda key: f"{key[0]} {key[1]}")
def test_http_answers_as_the_page_says(server: Server, key: tuple[int, str]) -> None:
    requested = HERE[key]
    body = {} if requested.json is None else {"json": requested.json}
    answer = server.http.request(requested.method, requested.path, **body, **requested.more)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == key, answer.text
    assert len(error["message"]) > 15
