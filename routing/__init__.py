"""One name in front of many models: which target answers a request, and why.

    features (of the request) + router + facts (of the targets) ── decide, pure ──> Decision

decision.py   a decision and the reasons for it
features.py   features of a request; facts.py facts about targets
deciding/     the stages of `decide`, in their written order
routers/      what a router is: its YAML, its versions, its store
intents/      classifiers of a text: features, training, calibration, reports
providers/    models on other servers

Here is no HTTP, no clock and no state of a server. Which requests come and where they are sent then is `runtime`'s.
"""
