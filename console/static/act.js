// What every page does: calls of the API, what they answered in words, signing in and out.
// Text from the server and from models is only ever set as text, never as markup.

export const api = (path) => new URL(`../${path}`, new URL(".", location.href)).href;

export function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Only what differs is put in its place: who is at a link there, marks its words or has them read out is left alone.
// What has the same `data-key` stays, with what is in it put in the same way.
export function put(where, ...children) {
  const gone = [...where.childNodes];
  const next = [...make("div", {}, ...children).childNodes].map((child) => {
    const at = gone.findIndex((one) => one.isEqualNode(child) || (child.dataset?.key && one.dataset?.key === child.dataset.key));
    if (at < 0) return child;
    const [kept] = gone.splice(at, 1);
    if (kept.isEqualNode(child)) return kept;
    for (const { name, value } of child.attributes) kept.setAttribute(name, value);
    put(kept, ...child.childNodes);
    return kept;
  });
  for (const child of gone) child.remove();
  next.forEach((child, i) => { if (where.childNodes[i] !== child) where.insertBefore(child, where.childNodes[i] ?? null); });
}

export const ms = (seconds) =>
  seconds < 0.1 ? `${(seconds * 1e3).toFixed(1)} ms` : seconds < 1 ? `${Math.round(seconds * 1e3)} ms` : `${seconds.toFixed(1)} s`;

export function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < 4) { bytes /= 1024; unit += 1; }
  return `${bytes.toFixed(unit ? 1 : 0)} ${units[unit]}`;
}

// Small sums are told to the millionth, as they are kept.
export const money = (value) => (value >= 10 || value === 0 ? value.toFixed(2) : value.toFixed(6).replace(/0+$/, ""));

const NS = "http://www.w3.org/2000/svg";

export function draw(where, name, attributes, words) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (words !== undefined) made.textContent = words;
  where?.append(made);
  return made;
}

// A request's time by cause, as `fall` of shell.html draws it.
export function fall(causes, most) {
  const spent = Object.entries(causes).filter(([, value]) => value > 0.00005);
  const image = draw(null, "svg", { class: "fall", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": spent.map(([name, value]) => `${name} ${ms(value)}`).join(", ") || "no time in an engine" });
  let x = 0;
  for (const [name, value] of spent) {
    const width = (100 * value) / most;
    draw(draw(image, "rect", { class: name, x: x.toFixed(2), width: width.toFixed(2), height: 10 }), "title", {}, `${name} ${ms(value)}`);
    x += width;
  }
  return image;
}

export function say(where, words, kind = "", faults = []) {
  const box = make("div", { class: `said ${kind}` }, words);
  if (faults.length) box.append(make("ul", {}, ...faults.map((fault) => make("li", {}, String(fault)))));
  where.replaceChildren(box);
  return box;
}

// Raises an Error whose message says what to do, with `faults` where there are several.
export async function ask(method, path, body, options = {}) {
  const isForm = body instanceof FormData;
  const headers = body === undefined || isForm ? {} : { "Content-Type": "application/json" };
  const response = await fetch(path, {
    method, headers: { ...headers, ...options.headers }, signal: options.signal,
    body: body === undefined ? undefined : isForm ? body : JSON.stringify(body),
  });
  if (!response.ok) throw await failure(response);
  return response;
}

export async function failure(response) {
  let told = {};
  try { told = (await response.json()).error ?? {}; } catch { /* no JSON */ }
  const error = new Error(told.message ?? `The server answered ${response.status}.`);
  error.faults = told.faults ?? told.details ?? [];
  error.status = response.status;
  return error;
}

// While a call runs its button cannot be pressed again; who pressed it with a key finds it where it was.
export async function held(button, does) {
  const isFocused = document.activeElement === button;
  button.disabled = true;
  try { return await does(); } finally {
    button.disabled = false;
    if (isFocused && document.activeElement === document.body) button.focus();
  }
}

// The button of a form that is sent, however it was.
export const sender = (event) => event.submitter ?? event.target.querySelector("button[type=submit]");

const said = () => document.getElementById("said");

// <button data-call="PUT v1/models/x/pin" data-body='{}' data-ask="Sure?" data-done="It is pinned.">
async function press(button) {
  if (button.dataset.ask && !confirm(button.dataset.ask)) return;
  const [method, path] = button.dataset.call.split(" ");
  try {
    const where = button.dataset.here === undefined ? api(path) : path;
    await ask(method, where, button.dataset.body ? JSON.parse(button.dataset.body) : undefined);
    say(said(), button.dataset.done ?? "Done.", "good");
    document.dispatchEvent(new Event("changed"));
  } catch (error) {
    say(said(), error.message, "bad", error.faults ?? []);
  }
}

// <button data-alias="v1/adapters/x" data-version="v2">
async function name(button) {
  const { alias: path, version } = button.dataset;
  const alias = prompt(`An alias for ${version}, such as prod`)?.trim();
  if (!alias) return;
  try {
    await ask("PUT", api(`${path}/aliases/${encodeURIComponent(alias)}`), { version });
    say(said(), `${alias} points at ${version}.`, "good");
    document.dispatchEvent(new Event("changed"));
  } catch (error) {
    say(said(), error.message, "bad", error.faults);
  }
}

// <input data-filter="ID">: only rows or choices of that element that hold all of its words stay visible. Of choices the
// first visible one is chosen where the chosen one is hidden.
function filter(field) {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const one of document.getElementById(field.dataset.filter).querySelectorAll(":scope > tr, option")) {
    const text = one.textContent.toLowerCase();
    one.hidden = !words.every((word) => text.includes(word));
  }
  const list = document.getElementById(field.dataset.filter);
  if (list.selectedOptions?.[0]?.hidden) list.value = [...list.options].find((one) => !one.hidden)?.value ?? list.value;
}
for (const field of document.querySelectorAll("[data-filter]")) {
  field.addEventListener("input", () => filter(field));
  new MutationObserver(() => filter(field)).observe(document.getElementById(field.dataset.filter), { childList: true });
}

const labels = new WeakMap(); // of buttons that tell for a moment that they have copied

async function copy(button) {
  if (!labels.has(button)) labels.set(button, button.textContent);
  try {
    await (navigator.clipboard ? navigator.clipboard.writeText(button.dataset.copy) : marked(button));
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not copied";
  }
  setTimeout(() => { button.textContent = labels.get(button); }, 1200);
}

// Over plain HTTP browsers give scripts no clipboard, but copy what is marked.
function marked(button) {
  const field = make("textarea", { class: "sr" }, button.dataset.copy);
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  button.focus();
  if (!isCopied) throw new Error("refused");
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-call]");
  if (button) held(button, () => press(button));
  const named = event.target.closest("[data-alias]");
  if (named) name(named);
  if (event.target.closest("[data-sign-out]")) {
    ask("POST", "sign-out", {}).then((answer) => answer.json()).then(({ next }) => location.assign(next), (error) => say(said(), error.message, "bad"));
  }
  const copied = event.target.closest("[data-copy]");
  if (copied) copy(copied);
});

// A part that cannot be had: what stands there stays, and beside the server's phase it is told that it may be old.
const phase = document.getElementById("phase");
const dot = document.getElementById("dot");
const [ready, calm] = [phase?.textContent, dot?.className];
function connected(words) {
  dot.className = words === ready ? calm : "dot off";
  phase.textContent = words;
}
document.addEventListener("htmx:error", () => connected("not connected"));
document.addEventListener("htmx:after:request", ({ detail: { ctx: { response: { status } } } }) =>
  connected(status < 400 ? ready : status < 500 ? `the server answered ${status}` : "not connected"));

// Parts of a page that are asked for again after a change: <div data-part="rows">. Each is its own `source`: htmx lets one
// request of a source wait for another, and drops what comes besides.
document.addEventListener("changed", () => {
  for (const part of document.querySelectorAll("[data-part]")) {
    window.htmx?.ajax("GET", `${location.pathname}?part=${part.dataset.part}`, { source: part, target: part, swap: part.getAttribute("hx-swap") ?? "innerHTML" });
  }
});

document.getElementById("sign-in")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  try {
    await ask("POST", "sign-in", { key: form.elements.key.value.trim() });
    location.assign(form.dataset.next);
  } catch (error) {
    say(said(), error.message, "bad");
  }
});
