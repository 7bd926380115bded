"""OpenAI's administration API, for `client.admin.organization`. A team is a project.

usage.py      what was used, and what it cost
projects.py   teams and their spend limits
keys.py       their keys, service accounts, admin keys
pages.py      lists, page by page

Users, groups, roles, invites and certificates are not there: who may do what is said by scopes of keys.
"""
