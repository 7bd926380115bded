"""Models added at run time: what a source is, and the recipe proposed for it.

Here: facts from files (`detect`), what is proposed and why (`propose`), what the installed vLLM can serve
(`supported`), the store of added recipes (`recipe_store`), queries to a hub before a download (`hub`), and the
conversion of Whisper checkpoints in a process of its own (`convert`). Not here: the running server, which has its use
cases in `runtime.gateway.launch`.
"""
