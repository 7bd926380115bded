"""Limit EngineCore's steps: fewer tokens in total (`budget`), or for requests of class batch (`batch_share`)."""
