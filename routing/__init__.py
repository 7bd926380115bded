"""Routers: one name in front of many models, with the reason for each choice.

    features (of the request) + router + facts (of the targets) ── decide, pure ──> Decision

decision.py   features of a request, facts about targets, and the decision with its reasons
decide.py     its stages, in their written order
replicas.py   which copy of a model gets a request, of one server or of several
routers/      a router as files, ready to decide, and reports on it
intents/      classifiers of a text: features, training, calibration, reports
providers/    models on other servers

There is no HTTP, clock or server state here: `runtime` has the requests and sends them on.
"""
