"""API keys: their text, the stored form, and the callers they identify.

    make ──> active ──(expires)──> expired
               │  └─(rotate)─────> active until the grace period ends, alongside its successor; then expired
               └──(revoke)───────> revoked

A revoked or expired key never becomes active again, and no key is ever deleted. Archiving a team disables its keys;
restoring it makes the active ones usable again.
"""
