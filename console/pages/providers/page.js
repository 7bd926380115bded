// Adds, edits and tests providers.
import { api, ask, attempt, changed, say, sender, withDisabled } from "../act.js";

const said = document.getElementById("said");
const form = document.getElementById("provider");
let edited = null; // the definition in the form; fields that the form lacks are kept
const path = (id) => api(`v1/providers/${encodeURIComponent(id)}`);

function show(id, definition) {
  edited = definition;
  const { id: name, protocol, base_url: address, key_env: key, models } = form.elements;
  name.readOnly = definition !== null;
  form.querySelector("[type=reset]").hidden = definition === null;
  form.querySelector("[type=submit]").textContent = definition === null ? "Add it" : "Save";
  document.getElementById("form-title").textContent = definition === null ? "Add a provider" : `Edit ${id}`;
  if (definition === null) return;
  name.value = id;
  protocol.value = definition.protocol;
  address.value = definition.base_url;
  key.value = definition.key_env ?? "";
  models.value = definition.models.map((model) => model.name).join(", ");
  address.focus();
}

form?.addEventListener("reset", () => show("", null));
form?.addEventListener("submit", (event) => {
  event.preventDefault();
  const { id, protocol, base_url: address, key_env: key, models } = event.target.elements;
  const names = models.value.split(",").map((name) => name.trim()).filter(Boolean);
  const { key_env: _, ...others } = edited ?? {};
  const known = new Map((edited?.models ?? []).map((model) => [model.name, model]));
  const document_ = {
    ...others, protocol: protocol.value, base_url: address.value.trim(), models: names.map((name) => known.get(name) ?? { name }),
    ...(key.value.trim() ? { key_env: key.value.trim() } : {}),
  };
  const where = document.getElementById("added");
  withDisabled(sender(event), where, async () => {
    await ask("PUT", path(id.value.trim()), document_);
    say(where, edited ? `${id.value.trim()} was changed.` : `${id.value.trim()} was added. Use ${id.value.trim()}/${names[0]} as a model.`, "good");
    if (edited) form.reset();
    changed();
  });
});

document.addEventListener("click", (event) => {
  const pencil = event.target.closest("[data-edit]");
  if (pencil) {
    const { edit: id } = pencil.dataset;
    attempt(said, async () => show(id, (await (await ask("GET", path(id))).json()).definition));
    return;
  }
  const button = event.target.closest("[data-test]");
  if (!button) return;
  const { test: id } = button.dataset;
  withDisabled(button, said, async () => {
    say(said, `testing ${id} …`);
    const found = await (await ask("POST", `${path(id)}/test`)).json();
    const missing = found.missing.length ? ` It does not list ${found.missing.join(", ")}.` : "";
    say(said, `${id}: ${found.message}${missing}`, found.ok ? "good" : "bad");
  });
});
