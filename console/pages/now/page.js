// Draws the events of the stream, which all viewers share. The browser reconnects to it automatically.
import { api, failure, fall, make, money, ms, put, say, size } from "../act.js";
import { Ring } from "../ring.js";

const $ = (id) => document.getElementById(id);
const rings = new Map();
let now = JSON.parse($("first-look").textContent);
let decided = now.decisions[0]?.number ?? 0;

const number = (value) => Math.round(value).toLocaleString("en");

function spark(id, values) {
  const most = Math.max(...values, 1e-9);
  const points = values.map((value, i) => `${((i * 120) / (values.length - 1)).toFixed(1)},${(26 - (24 * value) / most).toFixed(1)}`);
  $(`spark-${id}`).firstElementChild.setAttribute("points", points.join(" "));
}

function segment(kind, part, name, words, title, least = 0.07) {
  const made = make("span", { class: kind, title: title ?? `${name}: ${words}` }, make("b", {}, name), make("i", {}, words));
  made.style.flexGrow = part;
  if (part < least) made.classList.add("narrow");
  return made;
}

function segments(store, parts) {
  const free = Math.max(0, store.budget - store.held);
  const held = parts.map(({ model, bytes, colour }, i) => {
    const isComing = model.percent !== null && ["loading", "waking"].includes(model.state);
    const name = isComing ? `${model.id}: ${Math.round(model.percent)} %` : model.id;
    return segment(isComing ? "coming" : `m${((colour ?? i) % 6) + 1}`, bytes / store.budget, name, size(bytes));
  });
  return [...held, segment("free", free / store.budget, "free", size(free))];
}

// One ruler per device, with its name if there are several. Models keep their colours; a model on several devices has an
// equal part on each.
function rulers(held) {
  const several = now.devices.length > 1;
  put($("rulers"), ...now.devices.flatMap((store) => {
    const words = `${store.name} · ${store.label} · ${store.fault ? `unavailable: ${store.fault}` : `${size(store.held)} of ${size(store.budget)}`}`;
    const parts = held
      .map((model, i) => ({ model, on: model.devices, colour: i }))
      .filter(({ on }) => !several || on.includes(store.name))
      .map((part) => ({ ...part, bytes: part.model.bytes / part.on.length }));
    return [
      several ? make("p", { class: store.fault ? "small bad" : "small dim", "data-key": `words-${store.name}` }, words) : null,
      make("div", { class: "ruler", "data-key": `ruler-${store.name}` }, ...segments(store, parts)),
    ].filter(Boolean);
  }));
}

function memory() {
  const held = now.models.filter((model) => model.bytes > 0 && !["absent", "failed"].includes(model.state));
  $("device-words").textContent = `${now.device.label} · ${size(now.device.held)} of ${size(now.device.budget)}`;
  rulers(held);
  $("host-part").hidden = !now.host;
  if (now.host) {
    $("host-words").textContent = `${size(now.host.held)} of ${size(now.host.budget)}`;
    put($("host-ruler"), ...segments(now.host, now.models.filter((m) => m.host_bytes > 0).map((model) => ({ model, bytes: model.host_bytes }))));
  }
  put($("parts"), ...now.models.map((model) => {
    const idle = model.idle_seconds !== null && !model.running ? `, idle for ${idleWords(model.idle_seconds)}` : "";
    const busy = model.running || model.waiting ? `, ${model.running} running, ${model.waiting} waiting` : idle;
    const wake = model.state === "asleep" && model.wake_seconds !== null ? `, back in about ${ms(model.wake_seconds)}` : "";
    const colour = held.indexOf(model);
    const holds = colour < 0 ? "" : ` ${size(model.bytes)},`;
    return make("li", { class: colour < 0 ? "" : `in m${(colour % 6) + 1}` }, make("b", {}, model.id), `${holds} ${model.state}${model.pinned ? ", pinned" : ""}${busy}${wake}`);
  }));
  put($("loads"), ...now.models.filter((m) => m.percent !== null && m.state !== "ready").map((model) => {
    // Screen readers announce each phase, and its progress only on demand.
    return make("p", { class: "small", "data-key": model.id }, `${model.id}: ${model.phase} `, make("span", { "aria-hidden": "true", "data-key": "detail" }, model.detail),
      make("progress", { max: 100, value: model.percent, "data-key": "bar", "aria-label": `${model.id}: ${model.phase} ${model.detail}` }));
  }), ...now.models.filter((m) => m.failure).map((m) => make("p", { class: "small bad" }, `${m.id}: ${m.failure}`)));
}

const idleWords = (seconds) => (seconds < 90 ? `${Math.round(seconds)} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`);

function causes() {
  const spent = Object.entries(now.minute.causes);
  const whole = spent.reduce((sum, [, value]) => sum + value, 0);
  for (const [name, value] of spent) document.querySelector(`[data-cause="${name}"]`).textContent = ms(value);
  put($("causes"), ...(whole
    ? spent.filter(([, value]) => value > 0).map(([name, value]) => segment(name, value / whole, name, ms(value), undefined, 0.2))
    : [make("span", { class: "none" }, "No request ended in the last minute.")]));
}

function shares() {
  $("shares-part").hidden = !now.shares || !Object.keys(now.shares).length;
  if (!now.shares) return;
  const whole = Object.values(now.shares).reduce((sum, value) => sum + value, 0) || 1;
  put($("shares"), ...Object.entries(now.shares).map(([team, value]) => {
    const part = Math.round((100 * value) / whole);
    return make("li", {}, make("span", {}, team), make("meter", { min: 0, max: 100, value: part, "aria-label": team }), make("span", { class: "num dim" }, `${part} %`));
  }));
}

function decisions() {
  $("undecided").hidden = now.decisions.length > 0;
  put($("decisions"), ...now.decisions.slice(0, 6).map((one) => make("li", {},
    make("b", {}, one.subject), ` ${one.words} `, one.object ? make("b", {}, one.object) : null,
    make("small", {}, `${new Date(one.at * 1e3).toLocaleTimeString()} · ${one.model}${one.more ? ` · ${one.more}` : ""}`))));
  const fresh = now.decisions.filter((one) => one.number > decided && one.kind === "swap").reverse();
  decided = Math.max(decided, now.decisions[0]?.number ?? 0);
  for (const one of fresh) rings.get(one.model)?.show(one.subject);
}

const WAYS = { evict: "its process ends", drain: "after its requests have ended", sleep: "it goes to sleep" };

function nextToLeave() {
  const named = Object.entries(now.next_to_leave).map(([id, way]) => {
    const { idle_seconds: idle } = now.models.find((model) => model.id === id) ?? {};
    return make("span", {}, make("b", {}, id), ` (${WAYS[way]}${idle === null || idle === undefined ? "" : `, idle for ${idleWords(idle)}`})`);
  });
  const isHeld = now.models.some((model) => model.bytes > 0);
  put($("next-to-leave"), ...(named.length ? ["Next to leave if room is needed: ", ...named.flatMap((one, i) => (i ? [", ", one] : [one]))]
    : isHeld ? ["No model can make room now: all are busy, pinned, still loading or just loaded."] : []));
}

function requests() {
  const longest = Math.max(...now.requests.map((one) => one.total), 1e-9);
  const rows = now.requests.map((one) => make("tr", { "data-key": one.id },
    make("td", {}, make("a", { class: "mono", href: `requests?id=${encodeURIComponent(one.id)}` }, one.id.length > 12 ? `${one.id.slice(0, 12)}…` : one.id)),
    make("td", { class: "wide" }, one.team, ...(one.service_class === "interactive" ? [] : [" ", make("span", { class: `tag ${one.service_class}` }, one.service_class)])),
    make("td", { class: "wrap who" }, one.answered_by || "-"), make("td", { class: "wide dim" }, one.why || "-"),
    make("td", {}, make("span", { class: `tag ${one.end}` }, one.end)), make("td", {}, fall(one.causes, longest)), make("td", { class: "num sum" }, ms(one.total))));
  put($("last-requests"), ...(rows.length ? rows : [make("tr", {}, make("td", { colspan: 7, class: "empty" }, "No request has ended yet."))]));
}

// The server renders the cards, so a base that was added or removed needs a reload.
function isOfAnother() {
  const cards = [...document.querySelectorAll("[data-ring]")].map((card) => card.dataset.ring);
  return String(cards.sort()) !== String(now.rings.map((ring) => ring.model).sort());
}

function places() {
  for (const ring of now.rings) {
    const card = document.querySelector(`[data-ring="${CSS.escape(ring.model)}"]`);
    if (!card) continue; // until the page is reloaded
    if (!rings.has(ring.model)) rings.set(ring.model, new Ring(card.querySelector("svg.ring")));
    rings.get(ring.model).draw(ring);
    card.querySelector("[data-words]").textContent = `${ring.adapters} adapters, ${ring.places} places`;
    card.querySelector("[data-host]").textContent = `in host memory: ${ring.host_used} of ${ring.host_places}`;
    const rows = [...ring.stalls].sort((a, b) => a.number - b.number).map((stall) => make("tr", {},
      make("td", {}, `${stall.number + 1}`), make("td", { class: "mono" }, stall.adapter),
      make("td", {}, { run: "answering", held: "in place", swap: "arriving" }[stall.state] + (stall.pinned ? ", pinned" : "")),
      make("td", { class: "num" }, `${stall.running ?? 0}`)));
    put(card.querySelector("[data-places]"), ...rows);
  }
}

function draw() {
  const { minute } = now;
  $("kpi-first").textContent = minute.first_p90 === null ? "-" : ms(minute.first_p90);
  $("kpi-rate").textContent = minute.tokens < 600 ? (minute.tokens / 60).toFixed(1) : number(minute.tokens / 60);
  $("kpi-swaps").textContent = number(minute.swaps);
  $("kpi-requests").textContent = number(minute.requests);
  $("kpi-cost").textContent = now.cost_per_accepted === null ? "-" : `${money(now.cost_per_accepted)} ${now.currency}`;
  spark("first", minute.firsts);
  spark("rate", minute.rates);
  spark("swaps", minute.swap_rates);
  spark("requests", minute.request_rates);
  const longest = now.waiting ? `, the longest for ${ms(now.longest_wait)}` : "";
  $("summary").textContent = `${now.running} ${now.running === 1 ? "request" : "requests"} running, ${now.waiting} waiting${longest}.`;
  $("phase").textContent = now.phase;
  $("dot").className = now.phase === "ready" ? "dot" : "dot off";
  memory();
  nextToLeave();
  places();
  causes();
  shares();
  decisions();
  requests();
}

// Browsers reconnect when a stream ends, but not when it is refused: by a proxy while the server starts, or because a
// restart ended the session.
function connect() {
  const stream = new EventSource("events");
  stream.addEventListener("now", (event) => {
    const { uptime } = now;
    now = JSON.parse(event.data);
    if (now.uptime < uptime) decided = 0; // the server was restarted, and counts from the beginning
    draw();
    if (isOfAnother() && !$("ask")?.disabled) location.reload();
  });
  stream.addEventListener("error", async () => {
    $("dot").className = "dot off";
    $("phase").textContent = "not connected, retrying";
    if (stream.readyState !== EventSource.CLOSED) return;
    const page = await fetch("now", { redirect: "manual" }).catch(() => null);
    if (page?.type === "opaqueredirect") location.assign("sign-in?next=now");
    else setTimeout(connect, 2000);
  });
}

// Let the browser paint what the server rendered first: drawing the rest takes just as long.
requestAnimationFrame(() => setTimeout(() => {
  draw();
  connect();
}));

// --- one question for an adapter that is not in a place --------------------------------------------------------------
const TEXTS = {
  uppercase: "call the lucky bird", "title-case": "the mouth of water", "reverse-words": "as bell dash will",
  "reverse-letters": "call lucky those", "pig-latin": "close star turn", "kebab-case": "sign boring coffee",
  "count-words": "count hear her paper", acronym: "sun bird apple", "last-word": "the river runs.",
  "drop-vowels": "quick carrot cake", rot13: "meet end path", "double-words": "away each king.",
  "words-to-digits": "six thousand seventy one", "digits-to-words": "ticket 5 memory",
  "iso-date": "October 23rd, 1930", "extract-json": "Petra, 51, Berlin", "mask-pii": "ines45@ifle.io",
  sentiment: "the food was good today", intent: "show the balance of my account today",
  "compare-numbers": "2 and 72?",
};

function candidate() {
  for (const ring of now.rings) {
    const name = ring.away.find((one) => TEXTS[one]) ?? ring.away[0];
    if (name) return { name, model: ring.model, isAway: true };
  }
  const ring = now.rings.find((one) => one.stalls.length);
  if (!ring) return null;
  const stall = ring.stalls[Math.floor(Math.random() * ring.stalls.length)];
  return { name: stall.adapter.split("@")[0], model: ring.model, isAway: false };
}

function spent(timing, total) {
  const durations = Object.fromEntries([...(timing ?? "").matchAll(/(\w+);dur=([\d.]+)/g)].map(([, name, value]) => [name, value / 1e3]));
  const { queue = 0, load = 0, swap = 0, first = 0 } = durations;
  const loaded = Math.min(load, Math.max(0, queue - swap));
  return { queue: Math.max(0, queue - loaded - swap), load: loaded, swap, prefill: Math.max(0, first - queue), decode: Math.max(0, total - first) };
}

function cost(parts, total) {
  $("cost").hidden = false;
  $("cost").replaceChildren(...Object.entries(parts).filter(([, value]) => value > 0.00005).map(([name, value]) => {
    const made = make("span", { class: name, title: `${name}: ${ms(value)}` }, value / total > 0.14 ? `${name} ${ms(value)}` : "");
    made.style.flexGrow = value / total;
    return made;
  }));
}

$("ask")?.addEventListener("click", async () => {
  const found = candidate();
  if (!found) {
    $("asked").textContent = "There is no adapter yet. Register one on the page Adapters.";
    return;
  }
  const button = $("ask");
  const text = TEXTS[found.name] ?? "hello";
  button.disabled = true;
  $("asked").textContent = `${found.name} ← “${text}”`;
  $("answer").textContent = "…";
  $("cost-words").textContent = found.isAway ? `${found.name} is not in a place: it is fetched from disk or host memory.` : "Every adapter is in a place already: no swap is needed.";
  $("cost").hidden = true;
  const began = performance.now();
  try {
    const response = await fetch(api("v1/chat/completions"), {
      method: "POST", headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ model: `${found.model.split("#")[0]}:${found.name}`, messages: [{ role: "user", content: text }], max_tokens: 48, temperature: 0 }),
    });
    if (!response.ok) throw await failure(response);
    const answer = await response.json();
    const total = (performance.now() - began) / 1e3;
    const parts = spent(response.headers.get("server-timing"), total);
    $("answer").textContent = answer.choices[0].message.content;
    cost(parts, total);
    const blink = parts.swap < 0.1 ? ", less than the blink of an eye" : "";
    const swap = parts.swap > 0 ? `The swap took ${ms(parts.swap)} of that${blink}.` : "No swap was needed.";
    $("cost-words").textContent = `${ms(total)} from click to answer. ${swap} Ask again to try the next adapter.`;
  } catch (error) {
    $("answer").textContent = "";
    say($("cost-words"), error.message, "bad", error.faults);
  } finally {
    button.disabled = false;
    button.textContent = "Ask another one";
  }
});
