// Each form makes one API call and shows it as curl and Python. Answers of models are inserted as text only.
import { api, ask, events, make, ms, say, sender, withDisabled } from "../act.js";
import { start } from "../tabs.js";

const $ = (id) => document.getElementById(id);
const isKeyed = document.querySelector("[data-sign-out]") !== null;
const literal = (value) => // in Python
  JSON.stringify(value, null, 1).replace(/\n\s*/g, " ").replace(/"(?:[^"\\]|\\.)*"|\b(true|false|null)\b/g, (text, word) => ({ true: "True", false: "False", null: "None" })[word] ?? text);
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
start();

// --- the call as code -----------------------------------------------------------------------------------------------
const CLIENT = (base) => `from openai import OpenAI\n\nclient = OpenAI(base_url="${base}", api_key="YOUR_KEY")\n`;

function showCall(id, path, body, python, response) {
  const box = document.querySelector(`[data-call-of="${id}"]`);
  const json = JSON.stringify(body, null, 1).replace(/\n\s*/g, " ");
  const curl = `curl ${api(path)}${isKeyed ? ' -H "Authorization: Bearer $ROUNDHOUSE_API_KEY"' : ""}`;
  box.querySelector("[data-curl]").textContent = body instanceof FormData
    ? `${curl} ${[...body].map(([name, value]) => `-F ${quoted(`${name}=${value instanceof File ? `@"${value.name.replaceAll(/["\\]/g, "\\$&")}"` : value}`)}`).join(" ")}`
    : `${curl} -H 'Content-Type: application/json' \\\n  -d ${quoted(json)}`;
  box.querySelector("[data-python]").textContent = python;
  if (!response) return;
  const names = ["x-request-id", "x-roundhouse-model", "x-roundhouse-adapter", "x-roundhouse-route", "x-roundhouse-class",
    "x-roundhouse-warning", "x-roundhouse-limit-warning", "server-timing"];
  box.querySelector("[data-headers]").textContent = names.filter((name) => response.headers.has(name))
    .map((name) => `${name}: ${response.headers.get(name)}`).join("\n");
}

// --- chat -----------------------------------------------------------------------------------------------------------
const sides = [...document.querySelectorAll("[data-side]")].map((element) => ({ element, side: element.dataset.side, messages: [] }));
let stopped = new AbortController();

function line(side, kind, text) {
  const made = make("p", { class: kind }, text);
  const turns = side.element.querySelector(".turns");
  turns.append(made);
  turns.scrollTop = turns.scrollHeight;
  return made;
}

async function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

function json(text, name) {
  if (!text.trim()) return undefined;
  try { return JSON.parse(text); } catch (error) { throw new Error(`${name} cannot be read: ${error.message}`); }
}

// Return what the form adds to a request. Throws an Error that names the field that cannot be read.
async function options(form) {
  const { system, temperature, max_tokens: most, image, tools, schema } = form.elements;
  const found = { temperature: Number(temperature.value || 0) };
  if (most.value) found.max_tokens = Number(most.value);
  const listed = json(tools.value, "Tools");
  if (listed !== undefined) found.tools = listed;
  const shape = json(schema.value, "The schema");
  if (shape !== undefined) found.response_format = { type: "json_schema", json_schema: { name: "answer", schema: shape } };
  return { system: system.value.trim(), image: image.files[0] ? await dataUrl(image.files[0]) : "", fields: found };
}

// `auto@v1 starter-chat:iso-date intent:iso-date 0.998`, as in the response header.
function routed(side, model, text, header) {
  const where = side.element.querySelector("[data-route]");
  where.hidden = !header;
  if (!header) return;
  const [router, target, reason, score] = header.split(" ");
  const words = `${router} chose ${target}: ${decodeURIComponent(reason)}${score === "-" ? "" : `, ${score}`}. `;
  const link = `routers?${new URLSearchParams({ name: model, text })}`;
  where.replaceChildren(words, where.dataset.explained === undefined ? "" : make("a", { href: link }, "Alternatives"));
}

// Tool calls arrive in pieces: first the name, then the arguments.
function calls(delta) {
  return (delta?.tool_calls ?? []).map(({ function: one }) => `${one?.name ? `\n${one.name} ` : ""}${one?.arguments ?? ""}`).join("");
}

async function turn(side, text, { system, image, fields }) {
  const model = side.element.querySelector("select").value;
  const { messages } = side; // of this conversation, even if another one is started meanwhile
  if (system && !messages.length) messages.push({ role: "system", content: system });
  const parts = image ? [{ type: "text", text }, { type: "image_url", image_url: { url: image } }] : text;
  messages.push({ role: "user", content: parts });
  line(side, "asked", text);
  const answer = line(side, "", "…");
  const body = { model, messages, stream: true, stream_options: { include_usage: true }, ...fields };
  const more = Object.entries(fields).map(([name, value]) => `, ${name}=${literal(value)}`).join("");
  const python = `${CLIENT(api("v1"))}stream = client.chat.completions.create(\n    model=${JSON.stringify(model)}, messages=${literal(messages)}, stream=True${more}\n)\nfor chunk in stream:\n    print(chunk.choices[0].delta.content or "", end="")`;
  showCall(`chat-${side.side}`, "v1/chat/completions", body, python);
  const began = performance.now();
  try {
    const response = await ask("POST", api("v1/chat/completions"), body, { signal: stopped.signal });
    showCall(`chat-${side.side}`, "v1/chat/completions", body, python, response);
    const digest = response.headers.get("x-roundhouse-adapter") ?? response.headers.get("x-roundhouse-model") ?? "";
    routed(side, model, text, response.headers.get("x-roundhouse-route"));
    let whole = "";
    let first;
    let tokens = 0;
    for await (const event of events(response)) {
      const delta = event.choices?.[0]?.delta;
      whole += (delta?.content ?? "") + calls(delta);
      if (whole) first ??= performance.now();
      tokens = event.usage?.completion_tokens ?? tokens;
      answer.textContent = whole.trimStart() || "…";
    }
    const took = (performance.now() - (first ?? began)) / 1e3;
    const rate = tokens > 1 && took > 0 ? ` · ${((tokens - 1) / took).toFixed(1)} tokens/s` : "";
    messages.push({ role: "assistant", content: whole });
    const where = side.element.querySelector("[data-digest]");
    where.textContent = `${digest.replace(/(sha256:.{12}).*/, "$1")} · ${ms((performance.now() - began) / 1e3)}${rate}`;
    where.title = digest;
  } catch (error) {
    messages.pop(); // drop its own question, because the next one is only sent after this one has ended
    if (messages.at(-1)?.role === "system") messages.pop();
    answer.textContent = error.name === "AbortError" ? "(stopped)" : error.message;
    answer.classList.add("bad");
  }
}

$("chat-form")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = event.target.elements.text.value.trim();
  const button = sender(event);
  if (!text || button.disabled) return; // Enter in the text field submits the form even if its button is disabled
  stopped = new AbortController();
  $("stop").disabled = false;
  await withDisabled(button, $("chat-said"), async () => {
    const chosen = await options(event.target);
    $("chat-said").replaceChildren();
    await Promise.all(sides.map((side) => turn(side, text, chosen)));
  });
  $("stop").disabled = true;
});
$("stop")?.addEventListener("click", () => stopped.abort());
$("clear")?.addEventListener("click", () => {
  stopped.abort();
  for (const side of sides) { side.messages = []; side.element.querySelector(".turns").replaceChildren(); }
});
$("chat-form")?.elements.text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); $("chat-form").requestSubmit(); }
});

// Handle a form: disable its button and show that it is working until there is an answer.
function onSubmit(id, where, does) {
  $(id)?.addEventListener("submit", (event) => {
    event.preventDefault();
    withDisabled(sender(event), $(where), async () => {
      say($(where), "working…");
      await does(event.target);
    });
  });
}

// --- embeddings -----------------------------------------------------------------------------------------------------
const MATRIX = 12; // texts that fit side by side in a table
const lines = (form) => form.elements.texts.value.split("\n").map((text) => text.trim()).filter(Boolean);

function shade(cell, value) {
  cell.style.background = `color-mix(in srgb, var(--run) ${Math.round(Math.max(0, value) * 70)}%, var(--card))`;
}

onSubmit("embed-form", "matrix", async (form) => {
  const texts = lines(form);
  const body = { model: form.elements.model.value, input: texts.slice(0, MATRIX) };
  const python = `${CLIENT(api("v1"))}vectors = client.embeddings.create(model=${JSON.stringify(body.model)}, input=${JSON.stringify(body.input)})`;
  showCall("embed", "v1/embeddings", body, python);
  const response = await ask("POST", api("v1/embeddings"), body);
  showCall("embed", "v1/embeddings", body, python, response);
  const vectors = (await response.json()).data.map((one) => one.embedding);
  const norm = (v) => Math.sqrt(v.reduce((sum, x) => sum + x * x, 0));
  const alike = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0) / (norm(a) * norm(b));
  const short = (text) => (text.length > 22 ? `${text.slice(0, 21)}…` : text);
  const head = make("tr", {}, make("th", {}), ...body.input.map((text) => make("th", { scope: "col", title: text }, short(text))));
  const rows = vectors.map((a, i) => make("tr", {}, make("th", { scope: "row", title: body.input[i] }, short(body.input[i])), ...vectors.map((b) => {
    const cell = make("td", {}, alike(a, b).toFixed(2));
    shade(cell, alike(a, b));
    return cell;
  })));
  $("matrix").replaceChildren(make("table", { class: "matrix" }, make("thead", {}, head), make("tbody", {}, ...rows)));
  if (texts.length > MATRIX) $("matrix").append(make("p", { class: "small dim" }, `The first ${MATRIX} of ${texts.length} texts: a larger table would be unreadable.`));
});

// --- rerank ---------------------------------------------------------------------------------------------------------
onSubmit("rerank-form", "ranks", async (form) => {
  const body = { model: form.elements.model.value, query: form.elements.query.value, documents: lines(form) };
  const headers = isKeyed ? ', headers={"Authorization": "Bearer YOUR_KEY"}' : "";
  const python = `import httpx\n\nfound = httpx.post("${api("v1/rerank")}"${headers}, json=${JSON.stringify(body)}).json()`;
  showCall("rerank", "v1/rerank", body, python);
  const response = await ask("POST", api("v1/rerank"), body);
  showCall("rerank", "v1/rerank", body, python, response);
  const { results } = await response.json();
  $("ranks").replaceChildren(make("ul", { class: "shares" }, ...results.map((one) => make("li", {},
    make("span", { class: "num" }, one.relevance_score.toFixed(4)),
    make("span", {}, body.documents[one.index]),
    make("meter", { min: 0, max: 1, value: Math.max(0, Math.min(1, one.relevance_score)), "aria-label": "score" })))));
});

// --- speech ---------------------------------------------------------------------------------------------------------
const RECORDED_EVERY = 1000; // milliseconds between two transcriptions of the recording so far
const MAX_SECONDS = 60; // longest recording

async function transcribed(file) {
  const body = new FormData();
  body.append("model", $("speech-form").elements.model.value);
  body.append("response_format", "verbose_json");
  body.append("timestamp_granularities[]", "word");
  body.append("file", file, file.name);
  const python = `${CLIENT(api("v1"))}text = client.audio.transcriptions.create(\n    model=${JSON.stringify(body.get("model"))}, file=open(${JSON.stringify(file.name)}, "rb"),\n    response_format="verbose_json", timestamp_granularities=["word"]\n)`;
  showCall("speech", "v1/audio/transcriptions", body, python);
  const answer = await ask("POST", api("v1/audio/transcriptions"), body);
  showCall("speech", "v1/audio/transcriptions", body, python, answer);
  return answer.json();
}

// Show words as spans. Those after the first `known` are new and highlighted.
function write(found, known = Infinity) {
  const words = found.words ?? [];
  const spans = words.map((word, i) => make("span", { class: i >= known ? "lit" : "" }, `${word.word.trim()} `));
  $("words").replaceChildren(...(spans.length ? spans : [found.text]));
  return words.map((word, i) => [word, spans[i]]);
}

let latest; // the latest recording: answers to earlier ones are not shown
async function transcribe(file) {
  latest = file;
  const player = $("player");
  if (player.src) URL.revokeObjectURL(player.src);
  player.src = URL.createObjectURL(file);
  player.hidden = false;
  try {
    const found = await transcribed(file);
    if (latest !== file) return;
    const spans = write(found);
    player.ontimeupdate = () => spans.forEach(([word, span]) => span.classList.toggle("lit", player.currentTime >= word.start && player.currentTime < word.end));
  } catch (error) { if (latest === file) say($("words"), error.message, "bad", error.faults); }
}

onSubmit("speech-form", "words", (form) => transcribe(form.elements.file.files[0]));

// Transcribe the recording so far every second, one request at a time, and the whole of it at the end.
let recorder;
async function listen() {
  const microphone = await navigator.mediaDevices.getUserMedia({ audio: true });
  const parts = [];
  const soFar = () => new File(parts, "microphone.webm", { type: "audio/webm" });
  let known = 0;
  let busy = false;
  recorder = new MediaRecorder(microphone);
  recorder.ondataavailable = async (event) => {
    parts.push(event.data);
    $("recording").textContent = `recording, ${parts.length} s`;
    if (parts.length >= MAX_SECONDS && recorder.state === "recording") recorder.stop();
    if (busy || recorder.state !== "recording") return;
    busy = true;
    try {
      const found = await transcribed(soFar());
      if (recorder.state === "recording") { write(found, known); known = found.words?.length ?? 0; }
    } catch { /* too short so far: try again in a second */ } finally { busy = false; }
  };
  recorder.onstop = () => {
    microphone.getTracks().forEach((track) => track.stop());
    $("record").textContent = "Use the microphone";
    $("record").setAttribute("aria-pressed", "false");
    $("recording").textContent = "";
    transcribe(soFar());
  };
  $("words").replaceChildren();
  recorder.start(RECORDED_EVERY);
  $("record").textContent = "Stop and transcribe";
  $("record").setAttribute("aria-pressed", "true");
  $("recording").textContent = "recording";
}

$("record")?.addEventListener("click", () => {
  if (recorder?.state === "recording") recorder.stop();
  else listen().catch((error) => say($("words"), `The microphone cannot be used: ${error.message}`, "bad"));
});
