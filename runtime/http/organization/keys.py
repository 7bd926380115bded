"""Keys of a project, its service accounts, and admin keys. A key is shown once: in the answer that made it."""

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
from runtime.http.admin.answers import json_answer
from runtime.http.middleware import CurrentGateway
from runtime.http.organization.pages import After, Count, Order, page
from runtime.http.organization.projects import ONE
from runtime.http.sending import Route
from tenants.caller import Scope

if TYPE_CHECKING:
    from tenants.keys.accounts import Account
    from tenants.keys.records import Key
    from tenants.watch import Tables

KEYS, ACCOUNTS = f"{ONE}/api_keys", f"{ONE}/service_accounts"
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


# --- as they are shown ----------------------------------------------------------------------------------------------
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
    """One that is not revoked; of a project, or an admin's. Raises NotFound."""
    now = time.time()
    for key in tables.keys.list_keys(project):
        if key.id == id_ and key.state(now) != "revoked" and (project is not None or Scope.ADMIN in key.scopes):
            return key
    raise NotFound(f"There is no key {quoted(id_)} here.", code="key_not_found", param="api_key_id")


def _revoke(tables: "Tables", id_: str, *, project: str | None = None) -> None:
    """Raises NotFound; Conflict for the last one that may administer."""
    _key(tables, id_, project=project)
    tables.keys.check_admin_remains(lambda key: key.id == id_)
    tables.keys.revoke(id_)


async def list_keys(
    project: str,
    gateway: CurrentGateway,
    after: After = None,
    limit: Count = 20,
    owner_project_access: Annotated[Literal["active", "inactive", "any"], Query()] = "any",
) -> Response:
    """Keys that are not revoked, never what they are."""

    def work(tables: "Tables") -> tuple[list[Mapping[str, Any]], list[str]]:
        accounts = {one.id: one for one in tables.accounts.all(project)}
        keys = tables.keys.list_keys(project)
        gone = [key.id for key in keys if key.revoked is not None or owner_project_access == "inactive"]
        return [_project_key(key, accounts) for key in keys], gone

    keys, gone = await gateway.services.administration.do(work)
    return page(keys, after, limit, gone)


async def show_key(project: str, key: str, gateway: CurrentGateway) -> Response:
    def work(tables: "Tables") -> Mapping[str, Any]:
        accounts = {one.id: one for one in tables.accounts.all(project)}
        return _project_key(_key(tables, key, project=project), accounts)

    return json_answer(await gateway.services.administration.do(work))


async def edit_key(project: str, key: str, body: KeyBody, gateway: CurrentGateway) -> Response:
    """Other scopes, or another time at which it expires."""

    def work(tables: "Tables") -> Mapping[str, Any]:
        _key(tables, key, project=project)
        scopes = None if body.scopes is None else frozenset(body.scopes)
        if scopes is not None and Scope.ADMIN not in scopes:
            tables.keys.check_admin_remains(lambda one: one.id == key)
        changed = tables.keys.edit(key, scopes, body.expires_in_seconds)
        return _project_key(changed, {one.id: one for one in tables.accounts.all(project)})

    if body.name:
        raise BadRequest("A key's name stays as it was made.", param="name")
    return json_answer(await gateway.services.administration.do(work))


async def delete_key(project: str, key: str, gateway: CurrentGateway) -> Response:
    """Revoke it."""
    await gateway.services.administration.do(partial(_revoke, id_=key, project=project))
    return json_answer({"object": _DELETED, "id": key, "deleted": True})


# --- service accounts -----------------------------------------------------------------------------------------------
async def list_accounts(project: str, gateway: CurrentGateway, after: After = None, limit: Count = 20) -> Response:
    found = await gateway.services.administration.do(
        lambda tables: tables.accounts.all(tables.keys.team(project).id, deleted=True)
    )
    return page([_account(one) for one in found], after, limit, [one.id for one in found if one.deleted is not None])


async def create_account(project: str, body: NewAccountBody, gateway: CurrentGateway) -> Response:
    """With a key that may ask models, unless only the account is wanted."""

    def work(tables: "Tables") -> dict[str, Any]:
        account = tables.accounts.create(tables.keys.team(project).id, body.name)
        if body.create_service_account_only:
            return _account(account)
        key_body = KeyBody(name=body.name, expires_in_seconds=body.expires_in_seconds)
        return {**_account(account), "api_key": _new_key(account, key_body, tables)}

    return json_answer(await gateway.services.administration.do(work))


async def show_account(project: str, account: str, gateway: CurrentGateway) -> Response:
    return json_answer(
        _account(await gateway.services.administration.do(lambda tables: tables.accounts.find(project, account)))
    )


async def edit_account(project: str, account: str, body: AccountBody, gateway: CurrentGateway) -> Response:
    changed = await gateway.services.administration.do(
        lambda tables: tables.accounts.edit(project, account, body.name, body.role)
    )
    return json_answer(_account(changed))


async def delete_account(project: str, account: str, gateway: CurrentGateway) -> Response:
    """And revoke its keys."""

    def work(tables: "Tables") -> None:
        tables.keys.check_admin_remains(lambda key: (key.team, key.account) == (project, account))
        tables.accounts.delete(project, account)

    await gateway.services.administration.do(work)
    return json_answer({"object": "organization.project.service_account.deleted", "id": account, "deleted": True})


async def create_key(project: str, account: str, body: KeyBody, gateway: CurrentGateway) -> Response:
    found = await gateway.services.administration.do(
        lambda tables: _new_key(tables.accounts.find(project, account), body, tables)
    )
    return json_answer(found)


def _new_key(account: "Account", body: KeyBody, tables: "Tables") -> Mapping[str, Any]:
    from tenants.keys.records import KeyRequest

    scopes = frozenset(body.scopes or (Scope.INFER,))
    name, seconds = body.name or account.name, body.expires_in_seconds
    return _made(*tables.keys.create(KeyRequest(account.team, name, scopes, seconds=seconds, account=account.id)))


# --- admin keys -----------------------------------------------------------------------------------------------------
async def list_admin_keys(
    gateway: CurrentGateway, after: After = None, limit: Count = 20, order: Order = "asc"
) -> Response:
    """Keys with the scope `admin`."""
    keys = await gateway.services.administration.do(lambda tables: tables.keys.list_keys())
    found = [_admin_key(key) for key in (keys if order == "asc" else keys[::-1])]
    gone = [key.id for key in keys if Scope.ADMIN not in key.scopes or key.revoked is not None]
    return page(found, after, limit, gone)


async def create_admin_key(body: AdminKeyBody, gateway: CurrentGateway) -> Response:
    """A key of the team `default` with the scope `admin`, and no other one."""

    def work(tables: "Tables") -> Mapping[str, Any]:
        from tenants.keys.records import KeyRequest

        scopes = frozenset((Scope.ADMIN,))
        key, text = tables.keys.create(KeyRequest(DEFAULT_TEAM, body.name, scopes, seconds=body.expires_in_seconds))
        return {**_admin_key(key), "value": text}

    return json_answer(await gateway.services.administration.do(work))


async def show_admin_key(key: str, gateway: CurrentGateway) -> Response:
    return json_answer(_admin_key(await gateway.services.administration.do(partial(_key, id_=key))))


async def delete_admin_key(key: str, gateway: CurrentGateway) -> Response:
    """Revoke it."""
    await gateway.services.administration.do(partial(_revoke, id_=key))
    return json_answer({"object": "organization.admin_api_key.deleted", "id": key, "deleted": True})


ROUTES: list[Route] = [
    (KEYS, list_keys, ["GET"]),
    (f"{KEYS}/{{key}}", show_key, ["GET"]),
    (f"{KEYS}/{{key}}", edit_key, ["POST"]),
    (f"{KEYS}/{{key}}", delete_key, ["DELETE"]),
    (ACCOUNTS, list_accounts, ["GET"]),
    (ACCOUNTS, create_account, ["POST"]),
    (ACCOUNT, show_account, ["GET"]),
    (ACCOUNT, edit_account, ["POST"]),
    (ACCOUNT, delete_account, ["DELETE"]),
    (f"{ACCOUNT}/api_keys", create_key, ["POST"]),
    (ADMIN_KEYS, list_admin_keys, ["GET"]),
    (ADMIN_KEYS, create_admin_key, ["POST"]),
    (f"{ADMIN_KEYS}/{{key}}", show_admin_key, ["GET"]),
    (f"{ADMIN_KEYS}/{{key}}", delete_admin_key, ["DELETE"]),
]
