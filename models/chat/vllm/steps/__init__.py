"""The size of a step of EngineCore: fewer tokens in all (`budget`), or for requests of batches (`batch_share`)."""
