"""Engines by name, each imported only when it is asked for."""

from models.protocol import Engine


def create(engine: str, task: str) -> Engine:
    """A new, empty engine for a recipe's engine name and task. Raises ValueError for a pair that does not exist."""
    match engine, task:
        case "vllm", "chat":
            from models.chat.engine import VllmEngine

            return VllmEngine()
        case "sentence-transformers", "embed":
            from models.text.embeddings import EmbeddingEngine

            return EmbeddingEngine()
        case "sentence-transformers", "rerank":
            from models.text.rerank import RerankingEngine

            return RerankingEngine()
        case "faster-whisper", "transcribe":
            from models.speech.engine import WhisperEngine

            return WhisperEngine()
    raise ValueError(f"no engine {engine} for task {task}")
