"""Speech from text: a binding to espeak-ng, and the utterances made with it."""
