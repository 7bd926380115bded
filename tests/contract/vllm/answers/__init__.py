"""The model's text in answers: calls, reasoning, messages, logprobs."""
