"""Import an engine's libraries before it is known which model comes."""

from collections.abc import Callable


def prewarm(engine: str, hurried: Callable[[], bool] = lambda: False) -> None:
    """Import what `engine` (a recipe's engine name) needs. Blocks for seconds; safe in any thread.

    `hurried`: whether a load waits; it will import beside the start of EngineCore what only comes after that.
    """
    match engine:
        case "vllm":
            from models.chat.vllm import prewarm as chat

            chat.prewarm()
            if not hurried():
                chat.prewarm_server()
        case "sentence-transformers":
            from models.text import loading as embed_load
            from models.text import rerank  # noqa: F401  (their own modules, too)
            from models.text.cpu import library as cpu_library

            embed_load.import_library()
            if embed_load.is_cpu_build():
                cpu_library.load()
        case "faster-whisper":
            from models.speech import engine as transcribe

            transcribe.import_library()
