"""OpenAI's administration API, for `client.admin.organization`. A team is a project.

used.py       what was used, and what it cost
projects.py   teams
keys.py       their keys, service accounts, admin keys
spending.py   rate limits, spend limits and alerts
pages.py      lists, page by page
openapi.py    all of them in the OpenAPI document

Users, groups, roles, invites and certificates are not there: who may do what is said by scopes of keys.
"""
