"""Routers: one name for many models, with a reason for each choice.

    features (of the request) + router + facts (about the targets) ── decide, pure ──> Decision

decision.py   features of a request, facts about targets, and the decision with its reasons
decide.py     the stages of a decision, in order
replicas.py   which replica of a model gets a request, on one server or several
routers/      a router as files, ready to decide; reports about it
intents/      text classifiers: features, training, calibration, reports
providers/    models on external servers

Contains no HTTP, clock or server state: `runtime` receives the requests and sends them on.
"""
