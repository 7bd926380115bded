"""Teams, their keys, limits, usage and costs in the OpenAPI document."""

from collections.abc import Iterable

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from runtime.http.admin.usage import FeedbackBody
from runtime.http.openapi_parts import (
    ANY_OBJECT,
    BOOLEAN,
    COUNT,
    MANAGEMENT,
    STRING,
    Json,
    Operation,
    answer,
    array,
    json_body,
    nullable,
    record,
    structs,
)
from runtime.http.organization import keys, projects, spending
from runtime.http.organization.used import NOTHING
from tenants.ledger.view import UsageReportView

_TAG = "Organization"
_ERRORS = (*MANAGEMENT, 409, 503)
_BODIES: tuple[type[BaseModel], ...] = (
    FeedbackBody, projects.ProjectBody, keys.KeyBody, keys.NewAccountBody, keys.AccountBody, keys.AdminKeyBody,
    spending.RateBody, spending.SpendBody, spending.AlertBody,
)  # fmt: skip

SCHEMAS: dict[str, Json] = {
    **structs(UsageReportView),
    **models_json_schema([(body, "validation") for body in _BODIES], ref_template="#/components/schemas/{model}")[1][
        "$defs"
    ],
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


def _page(id_: str, path: str, summary: str) -> tuple[tuple[str, str], Operation]:
    return ("get", path), Operation(id_, _TAG, summary, answer("UsagePage"), errors=(*MANAGEMENT, 503))


def _plain() -> Iterable[tuple[tuple[str, str], Operation]]:
    """What is as OpenAI has it: its SDK's types say it."""
    one, account = projects.ONE, keys.ACCOUNT
    made = (
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
    for method, path, id_, summary, body in made:
        found = answer("OrganizationList" if id_.startswith("list") else "OrganizationObject")
        yield (
            (method, path),
            Operation(id_, _TAG, summary, found, body=json_body(body) if body else {}, errors=_ERRORS),
        )


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("get", "/v1/usage"): Operation(
        "getUsage", _TAG, "What teams used", {**answer("UsageReport"), "text/csv": STRING}, errors=(*MANAGEMENT, 503)
    ),
    ("get", "/v1/usage/daily"): Operation(
        "getUsageOfDay", _TAG, "A team's day",
        {**answer("OrganizationObject"), "text/csv": STRING, "text/html": STRING}, errors=(*MANAGEMENT, 503),
    ),
    ("get", "/v1/usage/comparison"): Operation(
        "compareUsage", _TAG, "The same at providers' prices", answer("OrganizationObject"), errors=(*MANAGEMENT, 503)
    ),
    ("post", "/v1/feedback"): Operation(
        "sendFeedback", _TAG, "Say whether an answer was of use", answer("OrganizationObject"),
        body=json_body("FeedbackBody"), errors=_ERRORS,
    ),
    **dict(
        _page(f"get{name}Usage", f"/v1/organization/usage/{kind}", f"What teams used of {what}, as OpenAI tells it")
        for kind, name, what in (
            ("completions", "Completions", "chat and text"), ("embeddings", "Embeddings", "embeddings"),
            ("audio_transcriptions", "Transcriptions", "speech"),
            *((kind, kind.title().replace("_", ""), f"{kind.replace('_', ' ')}: nothing") for kind in NOTHING),
        )
    ),
    **dict((_page("getCosts", "/v1/organization/costs", "What teams are charged, as OpenAI tells it"),)),
    **dict(_plain()),
}  # fmt: skip
