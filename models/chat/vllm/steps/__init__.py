"""What a step of EngineCore takes: fewer tokens in all (`budget`), or of prompts of batches (`batch_prompts`)."""
