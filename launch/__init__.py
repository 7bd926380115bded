"""Models added at run time: reading a source and proposing a recipe for it.

Here: facts from files of a folder or a hub (`files`), what is proposed and why (`proposal`), the store of added recipes
(`recipe_store`, `shared_recipes` in a fleet), and the conversion of Whisper checkpoints in a process of its own
(`conversion`). Not here: the running server, which has its use cases in `runtime.gateway.launch`.
"""
