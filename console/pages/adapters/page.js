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

document.getElementById("rows").addEventListener("click", async (event) => {
  const button = event.target.closest("[data-alias]");
  if (!button) return;
  const alias = prompt(`An alias for ${button.dataset.version}, such as prod`)?.trim();
  if (!alias) return;
  try {
    await ask("PUT", api(`${button.dataset.alias}/aliases/${encodeURIComponent(alias)}`), { version: button.dataset.version });
    say(where, `${alias} points at ${button.dataset.version}.`, "good");
    document.dispatchEvent(new Event("changed"));
  } catch (error) {
    say(where, error.message, "bad", error.faults);
  }
});
