"""The table of docs/reference/adapter-forms.md: file formats of adapters."""

from adapters.content.config import REFUSED
from adapters.content.forms import FOREIGN, INITS, KINDS, TAKEN
from registry.files import git_lfs


def forms() -> str:
    """Return the accepted forms, and the refused ones with their remedies."""
    rows = ["| form | taken |", "|---|---|"]
    rows += [f"| {form} | {what} |" for form, what in TAKEN.items()]
    rows += ["", "| form | refused; what to do |", "|---|---|"]
    rows += [f"| of {maker} | {remedy} |" for maker, (_, remedy) in FOREIGN.items()]
    by_remedy: dict[str, list[str]] = {}
    for kind, remedy in KINDS.items():
        by_remedy.setdefault(remedy, []).append(f"`{kind}`")
    rows += [f"| `peft_type` {', '.join(kinds)} | {remedy} |" for remedy, kinds in by_remedy.items()]
    by_init: dict[str, list[str]] = {}
    for init, remedy in INITS.items():
        by_init.setdefault(remedy, []).append(f"`{init}`")
    for remedy, inits in by_init.items():
        why = f"It changes the base weights, and the adapter fits only those. {remedy}"
        rows.append(f"| `init_lora_weights` {', '.join(inits)} | {why} |")
    rows += [f"| `{setting}` set | {why[0].upper()}{why[1:]} |" for setting, why in REFUSED.items()]
    return "\n".join([*rows, f"| git-lfs | A file that {git_lfs.FAULT} |"])
