// The ring of one base model: a stall for each adapter place, host memory as the inner dial, the bridge in the middle.
import { draw } from "./act.js";

const C = 190;
const node = (name, attributes, parent) => draw(parent, name, attributes);

function arc(r0, r1, from, to) {
  const at = (r, a) => `${(C + r * Math.sin(a)).toFixed(1)} ${(C - r * Math.cos(a)).toFixed(1)}`;
  const most = to - from > Math.PI ? 1 : 0; // use the larger of the two arcs between two points
  return `M${at(r1, from)}A${r1} ${r1} 0 ${most} 1 ${at(r1, to)}L${at(r0, to)}A${r0} ${r0} 0 ${most} 0 ${at(r0, from)}Z`;
}

export class Ring {
  constructor(svg) {
    this.svg = svg;
    this.places = 0;
    this.turned = 0;
    this.arrived = new Map(); // maps a stall to the time until which it is shown as new
  }

  build(places, hostPlaces) {
    this.svg.replaceChildren();
    this.places = places;
    this.dial = Math.min(hostPlaces, 64);
    this.hostPlaces = hostPlaces;
    const turn = 2 * Math.PI;
    const gap = Math.min(0.018, turn / places / 8);
    this.stalls = [];
    for (let i = 0; i < places; i += 1) {
      const from = (turn * i) / places + gap;
      const to = (turn * (i + 1)) / places - gap;
      const path = node("path", { class: "stall", d: arc(92, 136, from, to) }, this.svg);
      const title = node("title", {}, path);
      const middle = (from + to) / 2;
      const x = C + 143 * Math.sin(middle);
      const y = C - 143 * Math.cos(middle);
      const right = middle < Math.PI;
      const turned = (middle * 180) / Math.PI + (right ? -90 : 90);
      const label = node("text", {
        class: "lab", x: x.toFixed(1), y: y.toFixed(1), "text-anchor": right ? "start" : "end",
        "dominant-baseline": "middle", transform: `rotate(${turned.toFixed(1)} ${x.toFixed(1)} ${y.toFixed(1)})`,
      }, this.svg);
      this.stalls.push({ path, title, label });
    }
    this.hostParts = [];
    for (let i = 0; i < this.dial; i += 1) {
      const part = turn / this.dial;
      this.hostParts.push(node("path", { class: "hostpart", d: arc(82, 88, part * i + 0.012, part * (i + 1) - 0.012) }, this.svg));
    }
    node("circle", { class: "table", cx: C, cy: C, r: 76 }, this.svg);
    this.bridge = node("g", { class: "bridge" }, this.svg);
    node("line", { x1: C, y1: C + 70, x2: C, y2: C - 74 }, this.bridge);
    node("circle", { cx: C, cy: C - 72, r: 5 }, this.bridge);
    node("circle", { class: "hub", cx: C, cy: C, r: 52 }, this.svg);
    this.big = node("text", { class: "big", x: C, y: C - 2, "text-anchor": "middle" }, this.svg);
    this.sub = node("text", { class: "sub", x: C, y: C + 16, "text-anchor": "middle" }, this.svg);
    this.sub2 = node("text", { class: "sub", x: C, y: C + 31, "text-anchor": "middle" }, this.svg);
  }

  // Turn the bridge to a stall in the shorter direction.
  point(number) {
    const target = (360 * (number + 0.5)) / this.places;
    const difference = ((target - this.turned) % 360 + 540) % 360 - 180;
    this.turned += difference;
    this.bridge.setAttribute("transform", "");
    this.bridge.style.transform = `rotate(${this.turned.toFixed(1)}deg)`;
    this.bridge.classList.add("busy");
    clearTimeout(this.rest);
    this.rest = setTimeout(() => this.bridge.classList.remove("busy"), 1800);
  }

  // Show a swap that has just been decided. It may have been too short for the samples.
  show(adapter) {
    const number = this.last?.stalls.find((stall) => stall.adapter === adapter)?.number;
    if (number === undefined) return;
    this.point(number ?? 0);
    this.arrived.set(number, Date.now() + 1800);
    setTimeout(() => this.draw(this.last), 1850);
    this.draw(this.last);
  }

  draw(ring) {
    if (ring.places !== this.places || ring.host_places !== this.hostPlaces) this.build(ring.places, ring.host_places);
    this.last = ring;
    const at = new Map(ring.stalls.map((stall) => [stall.number, stall]));
    const names = this.places <= 48;
    this.stalls.forEach(({ path, title, label }, number) => {
      const stall = at.get(number);
      const isNew = (this.arrived.get(number) ?? 0) > Date.now();
      const state = !stall ? "free" : isNew && stall.state !== "run" ? "new" : stall.state;
      path.setAttribute("class", `stall ${state}`);
      label.setAttribute("class", `lab ${isNew ? "new" : state}`);
      const words = { run: `${stall?.running ?? 0} running`, held: "in place", swap: "arriving", new: "just arrived" };
      title.textContent = stall ? `${stall.adapter}: ${words[state]}${stall.pinned ? ", pinned" : ""}` : "a free place";
      const shown = stall && (names || state !== "held") ? stall.adapter : "";
      label.textContent = shown.length > 18 ? `${shown.slice(0, 17)}…` : shown;
      if (stall?.state === "swap") this.point(number);
    });
    const lit = Math.round((this.dial * ring.host_used) / Math.max(1, ring.host_places));
    this.hostParts.forEach((part, i) => part.setAttribute("class", i < lit ? "hostpart on" : "hostpart"));
    this.big.textContent = ring.state === "ready" ? `${ring.stalls.length} of ${ring.places}` : ring.state;
    this.sub.textContent = ring.state === "ready" ? "places taken" : "the base model";
    this.sub2.textContent = `${ring.running} running · ${ring.waiting} waiting`;
    this.svg.setAttribute("aria-label",
      `${ring.stalls.length} of ${ring.places} adapter places of ${ring.model} are taken, ${ring.running} requests run`);
  }
}
