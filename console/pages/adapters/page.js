// A dropped file is registered at once; what is refused is told with every fault that was found.
import { api, ask, make, say } from "../act.js";

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
    document.dispatchEvent(new Event("changed"));
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

// The server asks the probe by itself as soon as the adapter comes into a place: so it is asked for one token.
async function probe(button) {
  const { probe: path, model } = button.dataset;
  say(where, `${model}: placing it and running its probe…`);
  let refused = "";
  try {
    await ask("POST", api("v1/chat/completions"), { model, max_tokens: 1, messages: [{ role: "user", content: "hello" }] });
  } catch (error) { refused = error.message; }
  const { probe: told } = await (await ask("GET", api(path))).json();
  const words = { passed: "passed its probe", failed: "failed its probe", unchecked: "was not probed" }[told.state];
  say(where, `${model} ${words}. Expected “${told.expected}”, answered “${told.answered ?? "nothing"}”. ${refused}`, told.state === "passed" ? "good" : "bad");
  document.dispatchEvent(new Event("changed"));
}

// Base and adapter as one model of its own, which can be added right away.
async function merge(button) {
  if (!confirm(`Write ${button.dataset.name} and its base as one model? It takes the base's memory and disk once more.`)) return;
  where.replaceChildren(make("p", { class: "dim" }, `${button.dataset.name}: merging into its base…`), make("progress", { "aria-label": "merging" }));
  const merged = await (await ask("POST", api(`${button.dataset.merge}/merge`), {})).json();
  const box = say(where, `${merged.name}@${merged.version} and ${merged.base} are one model now, in ${merged.output}.`, "good");
  const add = make("button", { type: "button", class: "small" }, "Serve it");
  add.addEventListener("click", () => ask("POST", api("v1/models"), { source: merged.output }).then(
    async (answer) => say(where, `${(await answer.json()).id} is there. It loads when a request asks for it.`, "good"),
    (error) => say(where, error.message, "bad", error.faults)));
  box.append(make("p", {}, add));
}

document.getElementById("rows").addEventListener("click", async (event) => {
  for (const [name, does] of Object.entries({ probe, merge })) {
    const button = event.target.closest(`[data-${name}]`);
    if (!button) continue;
    button.disabled = true;
    try { await does(button); } catch (error) { say(where, error.message, "bad", error.faults); } finally { button.disabled = false; }
  }
});

document.getElementById("combine")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const told = document.getElementById("combined");
  const { name, method, density, part, weight } = event.target.elements;
  const adapters = [...part].map((one, i) => ({ name: one.value, weight: Number(weight[i].value) })).filter((one) => one.name);
  told.replaceChildren(make("p", { class: "dim" }, "combining…"), make("progress", { "aria-label": "combining" }));
  try {
    const body = { name: name.value.trim(), adapters, method: method.value, density: Number(density.value) };
    const made = await (await ask("POST", api("v1/adapters/combine"), body)).json();
    say(told, `${made.name} ${made.registered} is registered for ${made.base}.`, "good");
    document.dispatchEvent(new Event("changed"));
  } catch (error) {
    say(told, error.message, "bad", error.faults);
  }
});
