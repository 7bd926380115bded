"""Teams, their keys, limits, usage and costs in the OpenAPI document."""

from runtime.http.admin.usage import FeedbackBody
from runtime.http.openapi_parts import (
    ANY_OBJECT,
    BOOLEAN,
    COUNT,
    MANAGEMENT,
    STRING,
    Json,
    Operation,
    Operations,
    Row,
    array,
    json_of,
    models,
    nullable,
    record,
    structs,
    table,
)
from runtime.http.organization import keys, projects, spending
from runtime.http.organization.used import NOTHING
from tenants.ledger.view import UsageReportView

_TAG = "Organization"
_ERRORS = (*MANAGEMENT, 409, 503)

SCHEMAS: dict[str, Json] = {
    **structs(UsageReportView),
    **models(
        FeedbackBody, projects.ProjectBody, keys.KeyBody, keys.NewAccountBody, keys.AccountBody, keys.AdminKeyBody,
        spending.RateBody, spending.SpendBody, spending.AlertBody,
    ),
    "OrganizationList": record(
        {
            "object": {"const": "list"}, "data": array(ANY_OBJECT), "first_id": nullable(STRING),
            "last_id": nullable(STRING), "has_more": BOOLEAN,
        }
    ),
    "OrganizationObject": record({"object": STRING}),
    "UsagePage": record(
        {
            "object": {"const": "page"},
            "data": array(
                record(
                    {
                        "object": {"const": "bucket"},
                        "start_time": COUNT,
                        "end_time": COUNT,
                        "results": array(ANY_OBJECT),
                    }
                )
            ),
            "has_more": BOOLEAN,
            "next_page": nullable(STRING),
        }
    ),
}  # fmt: skip


def _page(path: str, id_: str, what: str) -> Row:
    where, summary = f"/v1/organization/{path}", f"What teams {what}, as OpenAI tells it"
    return "get", where, id_, summary, "UsagePage", (*MANAGEMENT, 503)


def _as_openai() -> Operations:
    """What is as OpenAI has it: its SDK's types say it."""
    one, account = projects.ONE, keys.ACCOUNT
    rows = (
        ("get", projects.PROJECTS, "listProjects", "List teams", None),
        ("post", projects.PROJECTS, "createProject", "Make a team", "ProjectBody"),
        ("get", one, "getProject", "Show a team", None),
        ("post", one, "editProject", "Rename a team", "ProjectBody"),
        ("post", f"{one}/archive", "archiveProject", "Refuse all keys of a team", None),
        ("get", keys.KEYS, "listProjectKeys", "List keys of a team", None),
        ("get", f"{keys.KEYS}/{{key}}", "getProjectKey", "Show a key, not what it is", None),
        ("post", f"{keys.KEYS}/{{key}}", "editProjectKey", "Change a key's scopes or end", "KeyBody"),
        ("delete", f"{keys.KEYS}/{{key}}", "deleteProjectKey", "Revoke a key", None),
        ("get", keys.ACCOUNTS, "listServiceAccounts", "List service accounts", None),
        ("post", keys.ACCOUNTS, "createServiceAccount", "Make a service account, with a key", "NewAccountBody"),
        ("get", account, "getServiceAccount", "Show a service account", None),
        ("post", account, "editServiceAccount", "Change a service account", "AccountBody"),
        ("delete", account, "deleteServiceAccount", "Delete a service account and revoke its keys", None),
        ("post", f"{account}/api_keys", "createServiceAccountKey", "Make a key", "KeyBody"),
        ("get", keys.ADMIN_KEYS, "listAdminKeys", "List keys with the scope admin", None),
        ("post", keys.ADMIN_KEYS, "createAdminKey", "Make a key with the scope admin", "AdminKeyBody"),
        ("get", f"{keys.ADMIN_KEYS}/{{key}}", "getAdminKey", "Show an admin key, not what it is", None),
        ("delete", f"{keys.ADMIN_KEYS}/{{key}}", "deleteAdminKey", "Revoke an admin key", None),
        ("get", spending.RATES, "listRateLimits", "Requests and tokens a minute, by model", None),
        ("post", f"{spending.RATES}/{{rate_limit}}", "setRateLimit", "Set them", "RateBody"),
        ("get", spending.SPEND, "getSpendLimit", "The limit of a month's costs", None),
        ("post", spending.SPEND, "setSpendLimit", "Set it", "SpendBody"),
        ("delete", spending.SPEND, "deleteSpendLimit", "Remove it", None),
        ("get", spending.ALERTS, "listSpendAlerts", "Amounts above which answers warn", None),
        ("post", spending.ALERTS, "createSpendAlert", "Make one", "AlertBody"),
        ("get", f"{spending.ALERTS}/{{alert}}", "getSpendAlert", "Show one", None),
        ("post", f"{spending.ALERTS}/{{alert}}", "editSpendAlert", "Change one", "AlertBody"),
        ("delete", f"{spending.ALERTS}/{{alert}}", "deleteSpendAlert", "Remove one", None),
    )
    return {
        (method, path): Operation(
            id_, _TAG, summary, json_of("OrganizationList" if id_.startswith("list") else "OrganizationObject"),
            body=json_of(body) if body else {}, errors=_ERRORS,
        )
        for method, path, id_, summary, body in rows
    }  # fmt: skip


OPERATIONS: Operations = {
    ("get", "/v1/usage"): Operation(
        "getUsage", _TAG, "What teams used", {**json_of("UsageReport"), "text/csv": STRING}, errors=(*MANAGEMENT, 503)
    ),
    ("get", "/v1/usage/daily"): Operation(
        "getUsageOfDay", _TAG, "A team's day",
        {**json_of("OrganizationObject"), "text/csv": STRING, "text/html": STRING}, errors=(*MANAGEMENT, 503),
    ),
    ("get", "/v1/usage/comparison"): Operation(
        "compareUsage", _TAG, "The same at providers' prices", json_of("OrganizationObject"), errors=(*MANAGEMENT, 503)
    ),
    ("post", "/v1/feedback"): Operation(
        "sendFeedback", _TAG, "Say whether an answer was of use", json_of("OrganizationObject"),
        body=json_of("FeedbackBody"), errors=_ERRORS,
    ),
    **table(
        _TAG,
        _page("costs", "getCosts", "are charged"),
        _page("usage/completions", "getCompletionsUsage", "used of chat and text"),
        _page("usage/embeddings", "getEmbeddingsUsage", "used of embeddings"),
        _page("usage/audio_transcriptions", "getTranscriptionsUsage", "used of speech"),
        *(
            _page(f"usage/{kind}", f"get{words.title().replace(' ', '')}Usage", f"used of {words}: nothing")
            for kind in NOTHING
            for words in (kind.replace("_", " "),)
        ),
    ),
    **_as_openai(),
}  # fmt: skip
