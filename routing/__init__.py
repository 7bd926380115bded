"""One name in front of many models: which target answers a request, and why.

    features (of the request) + router + facts (of the targets) ── decide, pure ──> Decision

decision.py   what was decided, and what was seen
features.py   what a request tells; facts.py what is known of targets now
deciding/     the stages of `decide`, in their written order
routers/      what a router is: its YAML, its versions, its store
intents/      heads that tell what a text wants: features, training, calibration, reports
providers/    what answers elsewhere

Here is no HTTP, no clock and no state of a server. Which requests come and where they are sent then is `runtime`'s.
"""
