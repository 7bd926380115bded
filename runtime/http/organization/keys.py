"""Keys of a project, its service accounts, and admin keys. A key is shown only when it is created."""

import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Query
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from registry.base.wording import quoted
from registry.errors import BadRequest, NotFound
from registry.names import DEFAULT_TEAM
from runtime.http.admin.bodies import json_answer
from runtime.http.bodies import WHOLE
from runtime.http.middleware import CurrentGateway
from runtime.http.organization.pages import LIST, OBJECT, After, Count, Order, admin_route, page
from runtime.http.organization.projects import ONE
from tenants.caller import Scope

if TYPE_CHECKING:
    from tenants.keys.accounts import Account
    from tenants.keys.records import Key
    from tenants.watch import Tables

KEYS, ACCOUNTS = f"{ONE}/api_keys", f"{ONE}/service_accounts"
KEY = f"{KEYS}/{{key}}"
ACCOUNT = f"{ACCOUNTS}/{{account}}"
ADMIN_KEYS = "/v1/organization/admin_api_keys"
_DELETED = "organization.project.api_key.deleted"
Seconds = Annotated[
    int | None,
    Field(
        strict=True,
        ge=1,
        le=10**9,
        description="from now until it expires; null: never, of a key that is there as it was",
    ),
    WHOLE,
]


class KeyBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(default="", max_length=128)
    scopes: tuple[Scope, ...] | None = Field(
        default=None, min_length=1, description="of this server; null: infer, of a key that is there as they were"
    )
    expires_in_seconds: Seconds = None


class NewAccountBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1, max_length=128)
    create_service_account_only: bool | None = Field(default=None, strict=True)
    expires_in_seconds: Seconds = None


class AccountBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str | None = Field(default=None, min_length=1, max_length=128)
    role: Literal["member", "owner"] | None = None


class AdminKeyBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=128)
    expires_in_seconds: Seconds = None


# --- answers ----------------------------------------------------------------------------------------------
def _project_key(key: "Key", accounts: "Mapping[str, Account]") -> Mapping[str, Any]:
    owner = accounts.get(key.account or "")
    whose = {
        "id": owner.id if owner else key.id, "name": owner.name if owner else key.name or key.id,
        "role": owner.role if owner else "member", "created_at": int(owner.created if owner else key.created),
    }  # fmt: skip
    return {
        **_common(key), "object": "organization.project.api_key", "owner_project_access": "active",
        "owner": {"type": "service_account", "service_account": whose}, "name": key.name or key.id,
    }  # fmt: skip


def _common(key: "Key") -> Mapping[str, Any]:
    expires = {} if key.expires is None else {"expires_at": int(key.expires)}
    return {"id": key.id, "created_at": int(key.created), "redacted_value": f"rh-{key.id}_…", **expires}


def _made(key: "Key", text: str) -> Mapping[str, Any]:
    expires = {} if key.expires is None else {"expires_at": int(key.expires)}
    return {
        "object": "organization.project.service_account.api_key", "id": key.id, "name": key.name or key.id,
        "created_at": int(key.created), "value": text, **expires,
    }  # fmt: skip


def _account(account: "Account") -> dict[str, Any]:
    return {
        "object": "organization.project.service_account", "id": account.id, "name": account.name,
        "role": account.role, "created_at": int(account.created),
    }  # fmt: skip


def _admin_key(key: "Key") -> Mapping[str, Any]:
    owner = {"type": "service_account", "object": "organization.user", "id": key.id, "name": key.name or key.id,
             "created_at": int(key.created), "role": "owner"}  # fmt: skip
    return {**_common(key), "object": "organization.admin_api_key", "name": key.name or key.id, "owner": owner}


# --- keys of a project ----------------------------------------------------------------------------------------------
def _key(tables: "Tables", id_: str, *, project: str | None = None) -> "Key":
    """Find a project's key or an admin key that is not revoked. Raises NotFound."""
    now = time.time()
    for key in tables.keys.list_keys(project):
        if key.id == id_ and key.state(now) != "revoked" and (project is not None or Scope.ADMIN in key.scopes):
            return key
    raise NotFound(f"There is no key {quoted(id_)} here.", code="key_not_found", param="api_key_id")


def _revoke(tables: "Tables", id_: str, *, project: str | None = None) -> None:
    """Revoke a key. Raises NotFound, and Conflict for the last key with the scope `admin`."""
    _key(tables, id_, project=project)
    tables.keys.check_admin_remains(lambda key: key.id == id_)
    tables.keys.revoke(id_)


@admin_route("GET", KEYS, answer=LIST)
async def list_project_keys(
    project: str,
    gateway: CurrentGateway,
    after: After = None,
    limit: Count = 20,
    owner_project_access: Annotated[Literal["active", "inactive", "any"], Query()] = "any",
) -> Response:
    """List a team's keys, except revoked ones, without their secrets."""

    def work(tables: "Tables") -> Response:
        accounts = {account.id: account for account in tables.accounts.all(project)}
        keys = tables.keys.list_keys(project)
        gone = {key.id for key in keys if key.revoked is not None or owner_project_access == "inactive"}
        return page([_project_key(key, accounts) for key in keys], after, limit, gone)

    return await gateway.services.administration.do(work)


@admin_route("GET", KEY, answer=OBJECT)
async def get_project_key(project: str, key: str, gateway: CurrentGateway) -> Response:
    """Show a key, without its secret."""

    def work(tables: "Tables") -> Mapping[str, Any]:
        accounts = {account.id: account for account in tables.accounts.all(project)}
        return _project_key(_key(tables, key, project=project), accounts)

    return json_answer(await gateway.services.administration.do(work))


@admin_route("POST", KEY, answer=OBJECT, body=KeyBody)
async def edit_project_key(project: str, key: str, body: KeyBody, gateway: CurrentGateway) -> Response:
    """Change a key's scopes or expiry."""

    def work(tables: "Tables") -> Mapping[str, Any]:
        _key(tables, key, project=project)
        scopes = None if body.scopes is None else frozenset(body.scopes)
        if scopes is not None and Scope.ADMIN not in scopes:
            tables.keys.check_admin_remains(lambda one: one.id == key)
        changed = tables.keys.edit(key, scopes, body.expires_in_seconds)
        return _project_key(changed, {account.id: account for account in tables.accounts.all(project)})

    if body.name:
        raise BadRequest("A key's name stays as it was made.", param="name")
    return json_answer(await gateway.services.administration.do(work))


@admin_route("DELETE", KEY, answer=OBJECT)
async def delete_project_key(project: str, key: str, gateway: CurrentGateway) -> Response:
    """Revoke a key."""
    await gateway.services.administration.do(partial(_revoke, id_=key, project=project))
    return json_answer({"object": _DELETED, "id": key, "deleted": True})


# --- service accounts -----------------------------------------------------------------------------------------------
@admin_route("GET", ACCOUNTS, answer=LIST)
async def list_service_accounts(
    project: str, gateway: CurrentGateway, after: After = None, limit: Count = 20
) -> Response:
    """List service accounts."""

    def work(tables: "Tables") -> Response:
        accounts = tables.accounts.all(tables.keys.team(project).id, deleted=True)
        gone = {one.id for one in accounts if one.deleted is not None}
        return page([_account(one) for one in accounts], after, limit, gone)

    return await gateway.services.administration.do(work)


@admin_route("POST", ACCOUNTS, answer=OBJECT, body=NewAccountBody)
async def create_service_account(project: str, body: NewAccountBody, gateway: CurrentGateway) -> Response:
    """Create a service account, with a key.

    The key may call models. With `create_service_account_only` there is none.
    """
    if body.create_service_account_only and body.expires_in_seconds is not None:
        raise BadRequest(
            "With 'create_service_account_only' there is no key that could expire. Leave 'expires_in_seconds' out, and "
            "send it where you create a key.",
            param="expires_in_seconds",
        )

    def work(tables: "Tables") -> dict[str, Any]:
        account = tables.accounts.create(tables.keys.team(project).id, body.name)
        if body.create_service_account_only:
            return _account(account)
        key_body = KeyBody(name=body.name, expires_in_seconds=body.expires_in_seconds)
        return {**_account(account), "api_key": _new_key(account, key_body, tables)}

    return json_answer(await gateway.services.administration.do(work))


@admin_route("GET", ACCOUNT, answer=OBJECT)
async def get_service_account(project: str, account: str, gateway: CurrentGateway) -> Response:
    """Show a service account."""
    return json_answer(
        _account(await gateway.services.administration.do(lambda tables: tables.accounts.find(project, account)))
    )


@admin_route("POST", ACCOUNT, answer=OBJECT, body=AccountBody)
async def edit_service_account(project: str, account: str, body: AccountBody, gateway: CurrentGateway) -> Response:
    """Change a service account."""
    changed = await gateway.services.administration.do(
        lambda tables: tables.accounts.edit(project, account, body.name, body.role)
    )
    return json_answer(_account(changed))


@admin_route("DELETE", ACCOUNT, answer=OBJECT)
async def delete_service_account(project: str, account: str, gateway: CurrentGateway) -> Response:
    """Delete a service account and revoke its keys."""

    def work(tables: "Tables") -> None:
        tables.keys.check_admin_remains(lambda key: (key.team, key.account) == (project, account))
        tables.accounts.delete(project, account)

    await gateway.services.administration.do(work)
    return json_answer({"object": "organization.project.service_account.deleted", "id": account, "deleted": True})


@admin_route("POST", f"{ACCOUNT}/api_keys", answer=OBJECT, body=KeyBody)
async def create_service_account_key(project: str, account: str, body: KeyBody, gateway: CurrentGateway) -> Response:
    """Create a key."""
    key = await gateway.services.administration.do(
        lambda tables: _new_key(tables.accounts.find(project, account), body, tables)
    )
    return json_answer(key)


def _new_key(account: "Account", body: KeyBody, tables: "Tables") -> Mapping[str, Any]:
    from tenants.keys.records import KeyRequest

    scopes = frozenset(body.scopes or (Scope.INFER,))
    name, seconds = body.name or account.name, body.expires_in_seconds
    return _made(*tables.keys.create(KeyRequest(account.team, name, scopes, seconds=seconds, account=account.id)))


# --- admin keys -----------------------------------------------------------------------------------------------------
@admin_route("GET", ADMIN_KEYS, answer=LIST)
async def list_admin_keys(
    gateway: CurrentGateway, after: After = None, limit: Count = 20, order: Order = "asc"
) -> Response:
    """List keys with the scope `admin`."""

    def work(tables: "Tables") -> Response:
        keys = tables.keys.list_keys()
        items = [_admin_key(key) for key in (keys if order == "asc" else keys[::-1])]
        gone = {key.id for key in keys if Scope.ADMIN not in key.scopes or key.revoked is not None}
        return page(items, after, limit, gone)

    return await gateway.services.administration.do(work)


@admin_route("POST", ADMIN_KEYS, answer=OBJECT, body=AdminKeyBody)
async def create_admin_key(body: AdminKeyBody, gateway: CurrentGateway) -> Response:
    """Create a key with the scope `admin`.

    It belongs to the team `default` and has no other scope.
    """

    def work(tables: "Tables") -> Mapping[str, Any]:
        from tenants.keys.records import KeyRequest

        scopes = frozenset((Scope.ADMIN,))
        key, text = tables.keys.create(KeyRequest(DEFAULT_TEAM, body.name, scopes, seconds=body.expires_in_seconds))
        return {**_admin_key(key), "value": text}

    return json_answer(await gateway.services.administration.do(work))


@admin_route("GET", f"{ADMIN_KEYS}/{{key}}", answer=OBJECT)
async def get_admin_key(key: str, gateway: CurrentGateway) -> Response:
    """Show an admin key, without its secret."""
    return json_answer(_admin_key(await gateway.services.administration.do(partial(_key, id_=key))))


@admin_route("DELETE", f"{ADMIN_KEYS}/{{key}}", answer=OBJECT)
async def delete_admin_key(key: str, gateway: CurrentGateway) -> Response:
    """Revoke an admin key."""
    await gateway.services.administration.do(partial(_revoke, id_=key))
    return json_answer({"object": "organization.admin_api_key.deleted", "id": key, "deleted": True})
