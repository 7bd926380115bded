"""Signing in at a company's OpenID Connect provider, and using its access tokens instead of keys.

settings.py    the file of `--oidc`: the provider, the teams and scopes of its groups, and the claims that name people
provider.py    all I/O: discovery, keys, codes and tokens
flow.py        one sign-in, from the button to the person
tokens.py      access tokens, which programs send instead of a key

| step                                      | what is checked                                                         |
|-------------------------------------------|-------------------------------------------------------------------------|
| the browser starts a sign-in              | nothing; it gets a cookie for 10 minutes and is sent to the provider    |
| it returns with a code                    | the cookie's age; `state` matches it; `iss`, if present, is the issuer  |
| the code is exchanged for an ID token     | PKCE and the client's secret, by the provider                           |
| the ID token                              | signature, issuer, audience, expiry, `nonce`                            |
| its groups                                | at least one is in the file                                             |
| each request of the session               | the team exists and is not archived                                     |

Nothing is stored: the data of a sign-in is derived from its cookie and a secret of this process. A restart ends
unfinished sign-ins, and sessions, too. Keys are not affected.
"""
