// Registers a dropped file at once. A refusal lists every fault.
import { api, ask, attempt, changed, make, say, withDisabled } from "../act.js";

const form = document.getElementById("register");
const drop = document.getElementById("drop");
const where = document.getElementById("checked");

async function register(file) {
  const name = form.elements.name.value.trim() || file.name.replace(/\.(tar\.gz|tgz|tar|zip)$/i, "").replace(/[^A-Za-z0-9._-]/g, "-");
  const body = new FormData();
  body.append("name", name);
  body.append("base", form.elements.base.value);
  for (const field of ["probe_prompt", "probe_expected"]) {
    if (form.elements[field].value) body.append(field, form.elements[field].value);
  }
  body.append("file", file, file.name);
  where.replaceChildren(make("p", { class: "dim" }, `${file.name}: uploading and checking…`), make("progress", { "aria-label": "checking" }));
  try {
    const answer = await (await ask("POST", api("v1/adapters"), body)).json();
    const words = answer.new ? `${answer.name} ${answer.registered} is registered for ${answer.base}.` : `${answer.name} had this content already, as ${answer.registered}.`;
    say(where, words, "good").append(make("p", { class: "small mono" }, answer.digest));
    form.elements.name.value = "";
    changed();
  } catch (error) {
    say(where, `${file.name} is refused: ${error.message}`, "bad", error.faults);
  }
}

for (const kind of ["dragenter", "dragover"]) {
  drop.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
}
drop.addEventListener("dragleave", () => drop.classList.remove("over"));
drop.addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("over");
  if (event.dataTransfer.files[0]) register(event.dataTransfer.files[0]);
});
document.getElementById("file").addEventListener("change", (event) => {
  if (event.target.files[0]) register(event.target.files[0]).then(() => { event.target.value = ""; });
});
form.addEventListener("submit", (event) => event.preventDefault());

// The server runs the probe as soon as the adapter is in a place, so requesting one token triggers it.
async function probe(button) {
  const { probe: path, model } = button.dataset;
  say(where, `${model}: placing it and running its probe…`);
  let refused = "";
  try {
    await ask("POST", api("v1/chat/completions"), { model, max_tokens: 1, messages: [{ role: "user", content: "hello" }] });
  } catch (error) { refused = error.message; }
  const { probe: result } = await (await ask("GET", api(path))).json();
  const words = { passed: "passed its probe", failed: "failed its probe", unchecked: "was not probed" }[result.state];
  say(where, `${model} ${words}. Expected “${result.expected}”, answered “${result.answered ?? "nothing"}”. ${refused}`, result.state === "passed" ? "good" : "bad");
  changed();
}

// Merge base and adapter into a separate model, which can be added right away.
async function merge(button) {
  if (!confirm(`Write ${button.dataset.name} and its base as one model? It needs as much memory and disk as the base.`)) return;
  where.replaceChildren(make("p", { class: "dim" }, `${button.dataset.name}: merging into its base…`), make("progress", { "aria-label": "merging" }));
  const merged = await (await ask("POST", api(`${button.dataset.merge}/merge`), {})).json();
  const box = say(where, `${merged.name}@${merged.version} and ${merged.base} are now one model, in ${merged.output}.`, "good");
  const add = make("button", { type: "button", class: "small" }, "Serve it");
  add.addEventListener("click", () => attempt(where, async () => {
    const { id } = await (await ask("POST", api("v1/models"), { source: merged.output })).json();
    say(where, `${id} was added. It loads when a request needs it.`, "good");
  }));
  box.append(make("p", {}, add));
}

document.getElementById("rows").addEventListener("click", (event) => {
  for (const [name, does] of Object.entries({ probe, merge })) {
    const button = event.target.closest(`[data-${name}]`);
    if (button) withDisabled(button, where, () => does(button));
  }
});

document.getElementById("combine")?.addEventListener("submit", (event) => {
  event.preventDefault();
  const output = document.getElementById("combined");
  const { name, method, density, part, weight } = event.target.elements;
  const adapters = [...part].map((one, i) => ({ name: one.value, weight: Number(weight[i].value) })).filter((one) => one.name);
  output.replaceChildren(make("p", { class: "dim" }, "combining…"), make("progress", { "aria-label": "combining" }));
  attempt(output, async () => {
    const body = { name: name.value.trim(), adapters, method: method.value, density: Number(density.value) };
    const made = await (await ask("POST", api("v1/adapters/combine"), body)).json();
    say(output, `${made.name} ${made.registered} is registered for ${made.base}.`, "good");
    changed();
  });
});
