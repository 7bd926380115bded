"""The size of a step of EngineCore: fewer tokens in all (`budget`), or of prompts of batches (`batch_prompts`)."""
