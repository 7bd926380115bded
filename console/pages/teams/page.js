// Creates teams and keys. A key's text is only in the answer to its creation, and on this page until you leave it.
import { ask, changed, make, say, sender, withDisabled } from "../act.js";

const where = document.getElementById("made");
let isOpen = !document.querySelector("[data-sign-out]");

// Later messages do not replace it, because it cannot be shown again.
function show(key, name = "") {
  const use = make("button", { type: "button", class: "small" }, "Sign in with it");
  use.addEventListener("click", () => withDisabled(use, where, () => signIn(key.value).then(() => location.reload())));
  where.replaceChildren();
  document.getElementById("secrets").prepend(make("div", { class: "said good" }, `Key ${key.id} of team ${key.team}. Store it: it is not shown again.`,
    make("div", { class: "secret" }, make("code", {}, key.value), make("button", { type: "button", class: "small", "data-copy": key.value }, "Copy"), use)));
  subjects("Keys", `key ${key.id}`, `${key.id} ${name}`);
}

// Offer new teams and keys in the form for limits.
function subjects(group, value, words) {
  document.querySelector(`#limit optgroup[label=${group}]`).append(make("option", { value }, words));
}

// A new key is accepted within a second, or a few on a busy machine.
async function signIn(key, tries = 20) {
  try {
    await ask("POST", "sign-in", { key });
  } catch (error) {
    if (!tries) throw error;
    await new Promise((resolve) => setTimeout(resolve, 300));
    await signIn(key, tries - 1);
  }
}

function send(button, path, body, done) {
  return withDisabled(button, where, async () => {
    await done(await (await ask("POST", path, body)).json());
    changed();
  });
}

document.getElementById("team").addEventListener("submit", (event) => {
  event.preventDefault();
  const { id, name } = event.target.elements;
  send(sender(event), "teams/team", { id: id.value.trim(), name: name.value.trim() }, (team) => {
    say(where, `Team ${team.id} was created.`, "good");
    const list = document.querySelector("#key [name=team]");
    list.append(make("option", {}, team.id));
    list.value = team.id;
    subjects("Teams", `team ${team.id}`, team.id);
    event.target.reset();
  });
});

document.getElementById("key").addEventListener("submit", (event) => {
  event.preventDefault();
  const form = event.target;
  const scopes = [...form.querySelectorAll("[name=scopes]:checked")].map((box) => box.value);
  const { team, name, models, days } = form.elements;
  const body = { team: team.value, name: name.value.trim(), scopes, models: models.value.trim() || "*" };
  send(sender(event), "teams/key", days.value ? { ...body, days: Number(days.value) } : body, async (made) => {
    show(made, body.name);
    // The first key ends open access, so sign in its creator if the key allows that.
    if (!isOpen || !scopes.includes("admin")) return;
    await signIn(made.value);
    isOpen = false;
  });
});

document.getElementById("rows").addEventListener("click", (event) => {
  const button = event.target.closest("[data-rotate]");
  if (button && confirm(`Create a successor of ${button.dataset.rotate}? The old key stays valid for a day.`)) {
    send(button, "teams/rotate", { id: button.dataset.rotate }, show);
  }
});

document.getElementById("limit").addEventListener("submit", (event) => {
  event.preventDefault();
  const output = document.getElementById("limited");
  withDisabled(sender(event), output, () => limit(event, output));
});

async function limit(event, output) {
  const { subject, kind, amount, model, mode } = event.target.elements;
  const [owner, whose] = subject.value.split(" ");
  const body = { owner, subject: whose ?? "", kind: kind.value, amount: amount.value.trim(), model: model.value.trim(), mode: mode.value };
  const isTrial = event.submitter?.value === "simulate";
  const found = await (await ask("POST", isTrial ? "teams/simulate" : "teams/limit", body)).json();
  if (isTrial) {
    const when = found.refused ? ` The first at ${new Date(found.first * 1e3).toLocaleString()}, the last at ${new Date(found.last * 1e3).toLocaleString()}.` : "";
    say(output, `${found.amount} ${found.words} would have refused ${found.refused} of ${found.requests} requests of the last ${found.days} days.${when}`, found.refused ? "" : "good");
    return;
  }
  say(output, `Set: ${found.words}. It takes effect within a second.`, "good");
  changed();
}

document.querySelector('[data-part="list"]').addEventListener("click", (event) => {
  const button = event.target.closest("[data-weight]");
  if (!button) return;
  const answer = prompt(`The weight of ${button.dataset.weight} relative to other teams`, button.dataset.now);
  if (answer === null) return;
  const weight = answer.trim() ? Number(answer) : NaN; // anything else is sent as null, and the server reports it
  send(button, "teams/weight", { id: button.dataset.weight, weight }, (team) => { say(where, `${team.id} now has weight ${team.weight}.`, "good"); });
});
