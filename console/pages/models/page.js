// Adding a model: shows the proposed recipe with reasons, or the steps of the addition. Changing a recipe.
import { api, ask, attempt, changed, events, make, say, sender, withDisabled } from "../act.js";

const form = document.getElementById("add");
const where = document.getElementById("added");

async function steps(response, bar, words) {
  for await (const step of events(response)) {
    words.textContent = `${step.phase} ${step.detail ?? ""}`;
    if (step.total) { bar.max = step.total; bar.value = step.completed ?? 0; }
  }
}

form?.addEventListener("submit", (event) => {
  event.preventDefault();
  const isDry = event.submitter?.value === "1";
  const body = { source: form.elements.model.value.trim(), ...(form.elements.id.value.trim() ? { id: form.elements.id.value.trim() } : {}) };
  const bar = make("progress", { "aria-label": "adding" });
  const words = make("p", { class: "small dim" }, isDry ? "inspecting its files" : "adding");
  where.replaceChildren(make("div", {}, words, bar));
  attempt(where, async () => {
    const response = await ask("POST", api("v1/models"), isDry ? { ...body, dry_run: true } : { ...body, stream: true });
    if (!isDry) {
      await steps(response, bar, words);
      say(where, `${body.source} was added. It loads when a request needs it.`, "good");
      changed();
      return;
    }
    const proposal = await response.json();
    const box = say(where, proposal.advice, proposal.fit === "does_not_fit" ? "bad" : "good", proposal.notes);
    box.append(make("pre", { tabindex: 0 }, proposal.recipe));
  });
});

// Parse a value as JSON, such as a number or a list. Anything else is a string.
function valueOf(text) {
  if (!text) return null;
  try { return JSON.parse(text); } catch { return text; }
}

document.getElementById("edit")?.addEventListener("submit", (event) => {
  event.preventDefault();
  const { elements, dataset } = event.target;
  const result = document.getElementById("edited");
  const changes = { [elements.key.value.trim()]: valueOf(elements.value.value.trim()) };
  withDisabled(sender(event), result, async () => {
    const response = await ask("PATCH", api(`v1/models/${encodeURIComponent(dataset.model)}`), { changes });
    const { version, waits } = await response.json();
    say(result, `${dataset.model} has version ${version} of its recipe${waits ? ": it takes effect when no request uses the model" : ""}.`, "good");
    const text = await ask("GET", api(`v1/models/${encodeURIComponent(dataset.model)}/recipe`));
    event.target.previousElementSibling.textContent = await text.text();
  });
});
