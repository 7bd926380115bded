"""The quality of a router fitted on 150 intents and out-of-scope sentences, by letters and the packaged MiniLM's
vectors.

The router is fitted on `train` as `roundhouse routers fit` does; the threshold and all figures here are from `val`.
"""

import numpy as np

from benchmarks.harness import Bench
from benchmarks.routing.data import Intents
from routing.intents.measures import threshold_for
from routing.intents.model import OUT
from routing.intents.training import TrainingResult, train

PRECISION = 0.99


def measure(bench: Bench, data: Intents) -> TrainingResult:
    vectors = data.fit_vectors, data.held_vectors
    fitted = train(data.fit, data.held, vectors, "starter-embed", spelling=data.spelling)
    model = fitted.model
    predictions = [model.predict(e.text, v) for e, v in zip(data.held, data.held_vectors, strict=True)]
    inside = np.array([e.label != OUT for e in data.held])
    confidence = np.array([prediction.confidence for prediction in predictions], np.float32)[inside]
    right = np.array([p.label == e.label for p, e in zip(predictions, data.held, strict=True)])[inside]
    both = fitted.measured[-1]
    bench.figure("intents.accuracy", [both.accuracy], "share")
    bench.figure("intents.auroc", [both.auroc or 0.0], "share")
    bench.figure(
        "intents.answered", [float((confidence >= threshold_for(confidence, right, PRECISION)).mean())], "share"
    )
    bench.figure("intents.calibration_error", [both.calibration_error], "share")
    bench.figure("intents.letters_alone.accuracy", [fitted.measured[0].accuracy], "share")
    typed = [model.predict(e.text, v) for e, v in zip(data.typed, data.typed_vectors, strict=True)]
    routes = [p.label if p.confidence >= p.threshold else None for p in predictions]
    typed_routes = [p.label if p.confidence >= p.threshold else None for p in typed]
    same = [a == b for a, b in zip(routes, typed_routes, strict=True)]
    bench.figure("intents.same_route", [float(np.mean(same))], "share")
    bench.bar("150 intents: right", "intents.accuracy", ">=", 0.97)
    bench.bar("150 intents: AUROC of out of scope", "intents.auroc", ">=", 0.975)
    bench.bar("150 intents: answered at a precision of 99 %", "intents.answered", ">=", 0.92)
    bench.bar("150 intents: same route under typing errors and capitals", "intents.same_route", ">=", 0.92)
    return fitted
