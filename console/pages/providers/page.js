// Adding a provider, and asking one whether it answers.
import { api, ask, held, say, sender } from "../act.js";

const said = document.getElementById("said");
const path = (id) => api(`v1/providers/${encodeURIComponent(id)}`);

document.getElementById("provider")?.addEventListener("submit", (event) => {
  event.preventDefault();
  const { id, protocol, base_url: address, key_env: key, models } = event.target.elements;
  const names = models.value.split(",").map((name) => name.trim()).filter(Boolean);
  const document_ = {
    protocol: protocol.value, base_url: address.value.trim(), models: names.map((name) => ({ name })),
    ...(key.value.trim() ? { key_env: key.value.trim() } : {}),
  };
  const where = document.getElementById("added");
  held(sender(event), async () => {
    try {
      await ask("PUT", path(id.value.trim()), document_);
      say(where, `${id.value.trim()} is there: use ${id.value.trim()}/${names[0]} as a model.`, "good");
      document.dispatchEvent(new Event("changed"));
    } catch (error) {
      say(where, error.message, "bad", error.faults);
    }
  });
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-test]");
  if (!button) return;
  const { test: id } = button.dataset;
  held(button, async () => {
    say(said, `asking ${id} …`);
    try {
      const found = await (await ask("POST", `${path(id)}/test`)).json();
      const missing = found.missing.length ? ` It does not list ${found.missing.join(", ")}.` : "";
      say(said, `${id}: ${found.message}${missing}`, found.ok ? "good" : "bad");
    } catch (error) {
      say(said, error.message, "bad", error.faults);
    }
  });
});
