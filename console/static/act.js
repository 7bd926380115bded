// Shared by all pages: API calls and their messages, signing in and out.
// Text from the server and from models is only inserted as text, never as markup.

export const api = (path) => new URL(`../${path}`, new URL(".", location.href)).href;

export function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Replace the children of `where`, but only those that differ, so that focus, selections and screen readers are not
// disturbed. Elements with the same `data-key` stay, and their children are updated in the same way.
export function put(where, ...children) {
  const old = [...where.childNodes];
  const next = [...make("div", {}, ...children).childNodes].map((child) => {
    const at = old.findIndex((one) => one.isEqualNode(child) || (child.dataset?.key && one.dataset?.key === child.dataset.key));
    if (at < 0) return child;
    const [kept] = old.splice(at, 1);
    if (kept.isEqualNode(child)) return kept;
    for (const { name, value } of child.attributes) kept.setAttribute(name, value);
    put(kept, ...child.childNodes);
    return kept;
  });
  for (const child of old) child.remove();
  next.forEach((child, i) => { if (where.childNodes[i] !== child) where.insertBefore(child, where.childNodes[i] ?? null); });
}

export const ms = (seconds) =>
  seconds < 0.1 ? `${(seconds * 1e3).toFixed(1)} ms` : seconds < 0.9995 ? `${Math.round(seconds * 1e3)} ms` : `${seconds.toFixed(1)} s`;

export function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (Math.round(bytes * 10) >= 10240 && unit < 4) { bytes /= 1024; unit += 1; } // what rounds to 1024.0 is 1.0 of the next
  return `${bytes.toFixed(unit ? 1 : 0)} ${units[unit]}`;
}

// Small sums are shown to the millionth, as they are stored, and with at least two decimals.
export const money = (value) => (value >= 10 ? value.toFixed(2) : value.toFixed(6).replace(/(\.\d\d\d*?)0+$/, "$1"));

const NS = "http://www.w3.org/2000/svg";

export function draw(where, name, attributes, words) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (words !== undefined) made.textContent = words;
  where?.append(made);
  return made;
}

// Draw a request's time by cause, like the macro `fall` in shell.html.
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

// Throws an Error whose message says what to do, with all `faults` if there are several.
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

const SIGNED_OUT = "Your session has ended. Sign in again, in another tab to keep this page, and repeat this.";

export async function failure(response) {
  let body = {};
  try { body = (await response.json()).error ?? {}; } catch { /* not JSON */ }
  const isSignedOut = response.status === 401 && body.code === "missing_api_key";
  const error = new Error(isSignedOut ? SIGNED_OUT : body.message ?? `The server answered ${response.status}.`);
  error.faults = body.faults ?? body.details ?? [];
  error.status = response.status;
  return error;
}

// The events of a streamed response, one by one. Throws an Error for an event that is an error.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw Object.assign(new Error(event.error.message), { faults: event.error.faults ?? [] });
      yield event;
    }
  }
}

// Run `does`, and show its error in `where`.
export async function attempt(where, does) {
  try { await does(); } catch (error) { say(where, error.message, "bad", error.faults); }
}

// The same, with a button disabled meanwhile. Then give it back the focus that disabling takes away.
export async function withDisabled(button, where, does) {
  const isFocused = document.activeElement === button;
  button.disabled = true;
  await attempt(where, does);
  button.disabled = false;
  if (isFocused && document.activeElement === document.body) button.focus();
}

// Fetch the parts of the page again that may have changed.
export const changed = () => document.dispatchEvent(new Event("changed"));

// Return the submit button of a form, no matter how the form was submitted.
export const sender = (event) => event.submitter ?? event.target.querySelector("button[type=submit]");

const said = () => document.getElementById("said");

// <button data-call="PUT v1/models/x/pin" data-body='{}' data-ask="Sure?" data-done="It is pinned.">
async function press(button) {
  if (button.dataset.ask && !confirm(button.dataset.ask)) return;
  const [method, path] = button.dataset.call.split(" ");
  const where = button.dataset.here === undefined ? api(path) : path;
  await ask(method, where, button.dataset.body ? JSON.parse(button.dataset.body) : undefined);
  say(said(), button.dataset.done ?? "Done.", "good");
  changed();
}

// <button data-alias="v1/adapters/x" data-version="v2">
async function setAlias(button) {
  const { alias: path, version } = button.dataset;
  const alias = prompt(`An alias for ${version}, such as prod`)?.trim();
  if (!alias) return;
  await ask("PUT", api(`${path}/aliases/${encodeURIComponent(alias)}`), { version });
  say(said(), `${alias} points at ${version}.`, "good");
  changed();
}

// <input data-filter="ID">: show only the rows or options of that element that contain all of its words. If the selected
// option is hidden, select the first visible one.
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

const labels = new WeakMap(); // original labels of buttons that briefly say "Copied"

async function copy(button) {
  if (!labels.has(button)) labels.set(button, button.textContent);
  try {
    await (navigator.clipboard ? navigator.clipboard.writeText(button.dataset.copy) : copySelection(button));
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not copied";
  }
  setTimeout(() => { button.textContent = labels.get(button); }, 1200);
}

// Over plain HTTP, browsers deny scripts the clipboard but copy a selection.
function copySelection(button) {
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
  if (button) withDisabled(button, said(), () => press(button));
  const aliased = event.target.closest("[data-alias]");
  if (aliased) attempt(said(), () => setAlias(aliased));
  if (event.target.closest("[data-sign-out]")) {
    attempt(said(), async () => location.assign((await (await ask("POST", "sign-out", {})).json()).next));
  }
  const copied = event.target.closest("[data-copy]");
  if (copied) copy(copied);
});

// If a part cannot be fetched, keep the old content and say next to the server's phase that it may be outdated.
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

// Fetch the parts of a page again after a change: <div data-part="rows">. Each is its own `source`, because htmx queues one
// request per source and drops further ones.
document.addEventListener("changed", () => {
  const words = new URLSearchParams({ words: document.querySelector("[name=words]")?.value ?? "" });
  for (const part of document.querySelectorAll("[data-part]")) {
    window.htmx?.ajax("GET", `${location.pathname}?part=${part.dataset.part}&${words}`, { source: part, target: part, swap: part.getAttribute("hx-swap") ?? "innerHTML" });
  }
});

const signIn = document.getElementById("sign-in");
if (signIn) {
  signIn.addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(said(), async () => {
      await ask("POST", "sign-in", { key: signIn.elements.key.value.trim() });
      location.assign(signIn.dataset.next);
    });
  });
  signIn.querySelector("button").disabled = false; // until now, the browser would submit the form itself, with the key in the address
}
