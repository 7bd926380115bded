"""Models added at run time: read a source and propose a recipe for it.

This package has the facts from files of a folder or a hub (`files`), the proposed values and their reasons
(`proposal`), the store of added recipes (`recipe_store`, `shared_recipes` in a fleet), checks of files (`checks`), and
conversions in a separate process (`conversion`). The use cases of a running server are in `runtime.gateway.launch`.
"""
