"""OpenAI's administration API, for `client.admin.organization`. A team is a project.

usage.py      usage and costs
projects.py   teams and their spend limits
keys.py       their keys, service accounts, admin keys
pages.py      paged lists

There are no users, groups, roles, invites and certificates: permissions are the scopes of keys.
"""
