"""Keys: the text that a client sends, and the parts that are stored.

    make ──> active ──(expires)──> expired
               │  └─(rotate)─────> active until the grace period ends, beside its successor; then expired
               └──(revoke)───────> revoked

A revoked or expired key never comes back, and none is ever deleted. A team that is archived takes its keys with it;
one that is restored gives back those that are active.
"""
