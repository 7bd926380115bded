"""People who sign in at their company's OpenID Connect provider, and its access tokens, instead of keys.

settings.py    the file of `--oidc`: the provider, which groups open which team and scopes, and whom claims name; pure
provider.py    the one place with I/O: discovery, keys, codes and tokens
flow.py        one sign-in, from the button to the person
tokens.py      access tokens, which programs send in place of a key

| step                                      | what is checked                                                        |
|-------------------------------------------|------------------------------------------------------------------------|
| the browser asks for a sign-in            | nothing; it gets a cookie for 10 minutes and goes to the provider       |
| it comes back with a code                 | the cookie's age; `state` belongs to it; `iss`, if there, is the issuer |
| the code becomes an ID token              | PKCE and the client's secret, by the provider                           |
| the token                                 | signature, issuer, audience, expiry, `nonce`                            |
| its groups                                | one of them is in the file                                              |
| each request of the session that follows  | the team exists and is not archived                                     |

Nothing is stored: what belongs to a sign-in is derived from its cookie and a secret of this process. A restart ends
those under way, as it ends sessions. Keys stay as they are.
"""
