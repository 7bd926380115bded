// Explains the decision for a message, and draws the curve of other thresholds.
import { api, ask, attempt, draw, make, say } from "../act.js";

const $ = (id) => document.getElementById(id);
const part = (value) => value.toFixed(3);
const percent = (value) => (value === null ? "not judged" : `${(100 * value).toFixed(1)} %`);
const money = (micro) => (micro / 1e6).toFixed(6);

// --- a decision -----------------------------------------------------------------------------------------------------
function scores(found) {
  return make("ul", { class: "shares", "aria-label": "Scores" }, ...Object.entries(found.scores).sort(([, a], [, b]) => b - a).map(([name, value]) =>
    make("li", {}, make("span", {}, name), make("meter", { min: 0, max: 1, value: Math.max(0, Math.min(1, value)), "aria-label": `score of ${name}` }), make("span", { class: "num" }, part(value)))));
}

function fact(name, value) {
  return make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "wrap" }, value));
}

$("explain")?.addEventListener("submit", (event) => {
  event.preventDefault();
  const { model, text } = event.target.elements;
  attempt($("decided"), async () => {
    const response = await ask("POST", api("v1/route"), { model: model.value, messages: [{ role: "user", content: text.value }] });
    const found = await response.json();
    const took = /dur=([\d.]+)/.exec(response.headers.get("server-timing") ?? "")?.[1];
    const score = found.score === null ? "" : `, score ${part(found.score)}`;
    const box = say($("decided"), "", "good");
    box.append(make("p", {}, make("b", { id: "target" }, found.target), ` by ${found.router}: ${found.reason}${score}${took ? `, decided in ${took} ms` : ""}`));
    if (Object.keys(found.scores).length) box.append(make("h3", {}, "Scores and alternatives"), scores(found));
    box.append(make("table", {}, make("tbody", {}, fact("alternatives", found.alternatives.join(", ") || "none"), fact("fall-backs", found.fallbacks.join(", ") || "none"),
      ...Object.entries(found.saw).map(([name, value]) => fact(name.replaceAll("_", " "), value)))));
  });
});

// --- cost and quality -----------------------------------------------------------------------------------------------
const [WIDTH, HEIGHT, EDGE] = [640, 220, 44];

// Plot quality against cost if requests have a price, else against the threshold. Marks the router's own threshold.
function plot(points, threshold) {
  const costs = points.map((point) => point.cost_micro);
  const hasCosts = Math.max(...costs) - Math.min(...costs) > 1e-9;
  const of = (point) => (hasCosts ? point.cost_micro : point.threshold);
  const quality = points.some((point) => point.accepted !== null) ? "accepted" : "answered";
  const [least, most] = [Math.min(...points.map(of)), Math.max(...points.map(of))];
  const x = (value) => EDGE + ((WIDTH - 2 * EDGE) * (value - least)) / (most - least || 1);
  const y = (value) => HEIGHT - EDGE + 10 - (HEIGHT - EDGE - 10) * value;
  const words = quality === "accepted" ? "accepted answers" : "requests that an intent decides";
  const svg = make("div", {});
  const image = draw(null, "svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "curve", role: "img", "aria-label": `Share of ${words} against ${hasCosts ? "the mean cost of a request" : "the threshold"}; the figures are in the table below` });
  for (const step of [0, 0.25, 0.5, 0.75, 1]) {
    draw(image, "line", { class: "line", x1: EDGE, x2: WIDTH - EDGE, y1: y(step), y2: y(step) });
    draw(image, "text", { x: EDGE - 6, y: y(step) + 4, "text-anchor": "end" }, `${100 * step} %`);
  }
  const shown = points.filter((point) => point[quality] !== null).sort((a, b) => of(a) - of(b));
  draw(image, "polyline", { class: "path", points: shown.map((point) => `${x(of(point)).toFixed(1)},${y(point[quality]).toFixed(1)}`).join(" ") });
  for (const point of shown) draw(draw(image, "circle", { class: "point", cx: x(of(point)), cy: y(point[quality]), r: 3.5 }), "title", {}, `threshold ${point.threshold}: ${percent(point[quality])} ${words}, ${money(point.cost_micro)} per request`);
  const own = threshold === null ? null : shown.reduce((a, b) => (!a || Math.abs(b.threshold - threshold) < Math.abs(a.threshold - threshold) ? b : a), null);
  if (own) {
    draw(image, "circle", { class: "own", cx: x(of(own)), cy: y(own[quality]), r: 6 });
    draw(image, "text", { class: "own", x: Math.min(x(of(own)) + 10, WIDTH - 150), y: y(own[quality]) - 10 }, `threshold ${part(threshold)}`);
  }
  draw(image, "text", { x: EDGE, y: HEIGHT - 4 }, hasCosts ? money(least) : part(least));
  draw(image, "text", { x: WIDTH / 2, y: HEIGHT - 4, "text-anchor": "middle" }, hasCosts ? "mean cost per request" : "threshold");
  draw(image, "text", { x: WIDTH - EDGE, y: HEIGHT - 4, "text-anchor": "end" }, hasCosts ? money(most) : part(most));
  svg.append(image, make("p", { class: "small dim" }, `Share of ${words}, against ${hasCosts ? "the mean cost of a request" : "the threshold"}.${hasCosts ? "" : costs[0] ? " A request would cost the same at each." : " These requests had no price."}`));
  return svg;
}

function table(heads, rows) {
  return make("table", {}, make("thead", {}, make("tr", {}, ...heads.map((head, i) => make("th", { class: i ? "num" : "", scope: "col" }, head)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((cell, i) => make("td", { class: i ? "num" : "wrap" }, cell))))));
}

async function curve() {
  const { name, days } = $("curve-of").elements;
  const threshold = name.selectedOptions[0].dataset.threshold;
  $("outcomes").replaceChildren();
  try {
    const report = await (await ask("GET", api(`v1/routers/${encodeURIComponent(name.value)}/report?days=${days.value}`))).json();
    $("outcomes").replaceChildren(table(["answered by", "requests", "judged", "accepted", "cost per request"],
      report.outcomes.map((one) => [`${one.target}, ${one.reason}`, String(one.requests), String(one.judged), percent(one.accepted), money(one.cost_micro)])));
    if (report.replay.length) {
      $("curve").replaceChildren(plot(report.replay, threshold ? Number(threshold) : null));
      $("outcomes").append(make("details", {}, make("summary", {}, "The curve as a table"), table(["threshold", "decided by an intent", "accepted", "cost per request"],
        report.replay.map((one) => [one.threshold.toFixed(2), percent(one.answered), percent(one.accepted), money(one.cost_micro)]))));
    } else say($("curve"), "This router had no requests in that time, or none was decided by intents. Try it in the Playground, and rate answers with POST /v1/feedback.");
  } catch (error) {
    say($("curve"), error.message, error.status === 404 ? "" : "bad", error.faults);
  }
}

$("curve-of")?.addEventListener("change", curve);
if ($("curve-of")) curve();
if (new URLSearchParams(location.search).has("text")) $("explain")?.requestSubmit();
