// The page: it looks at the server every two seconds, or more seldom where that takes long, and has each part show what was seen.

import { actions } from "./actions.js";
import { ask, hasToken, Refused } from "./api.js";
import { repaint } from "./charts.js";
import { nameParts, setText } from "./dom.js";
import { age } from "./format.js";
import { History, restMs } from "./history.js";
import { memory, missRatio, occupancy, tables } from "./panels_cache.js";
import { hitRates, latency, queue, stages, throughput, verbs } from "./panels_calls.js";
import { checkpoints, sessions, slowCalls, storage } from "./panels_rest.js";
import { Runs } from "./runs.js";
import { switchTheme } from "./theme.js";
import { tiles } from "./tiles.js";

const LOOK_MS = 2000;
const SELDOM_MS = 10_000; // settings
const KEPT_MS = 60_000; // checkpoints, as long as their labels stay
const PREDICT_MS = 60_000;

const byId = (id) => document.getElementById(id);
const history = new History();
const view = { history, runs: new Runs(), stats: null, calls: null, server: null, checkpoints: null, hitRates: null, recent: [] };
let timer = 0;
let looking = false;
let again = false;
let paused = false;
let refused = false; // until another token is given, asking again is of no use
const asked = new Map();

const act = actions(() => view, lookNow);
const parts = [
  tiles(),
  hitRates(),
  throughput(),
  latency(),
  verbs(),
  stages(),
  queue(),
  memory(act),
  occupancy(act),
  missRatio(),
  tables(),
  sessions(act),
  storage(),
  checkpoints(act),
  slowCalls(),
];
byId("main").append(...parts.map((part) => part.element));
nameParts(byId("main"));

function draw() {
  if (!view.stats) return;
  view.span = Number(byId("span").value);
  view.now = history.now;
  view.recent = history.recentCalls();
  const work = view.recent.filter((one) => !/^(Get|List)/.test(one.verb) && one.call);
  view.busiest = work.sort((a, b) => b.perSecond - a.perSecond)[0] || null;
  for (const part of parts) part.set(view);
  const { service, device, device_facts: facts } = view.stats;
  const who = [`embstore ${service.version}`, `${device}: ${facts.model}`, `up for ${age(service.uptime_s)}`];
  setText(byId("foot"), [...who, `store ${view.stats.store_id}, epoch ${view.stats.epoch}`].join(" · "));
}

function say(state, kind, message = "") {
  const pill = byId("state");
  setText(pill, state);
  pill.className = `pill ${kind}`;
  const banner = byId("banner");
  setText(banner, message);
  banner.hidden = !message;
  banner.className = kind;
}

// Ask `path` if it is `every` ms since it was answered last, or for another state of the server; keep
// what was answered before else.
async function seldom(name, path, every, { of = "", part = (answer) => answer } = {}) {
  const last = asked.get(name);
  if (last && last.of === of && performance.now() - last.at < every) return;
  view[name] = part(await ask(path));
  asked.set(name, { of, at: performance.now() });
}

// A prediction is begun by who asks, and fetched when it is there.
async function predict() {
  const { service, policy, cache } = view.stats;
  const { predicting = true, curves = [] } = view.hitRates ?? {};
  const every = predicting ? LOOK_MS : curves.length ? PREDICT_MS : SELDOM_MS;
  const of = [service.instance, policy, cache.budget_bytes].join();
  await seldom("hitRates", "api/v1/hit-rates", every, { of });
}

async function look() {
  try {
    const [stats, calls] = await Promise.all([ask("api/v1/stats"), ask("api/v1/calls")]);
    Object.assign(view, { stats, calls });
    history.push({ at: Date.now() / 1000, stats, calls });
    view.runs.note({ at: Date.now() / 1000, stats });
    await seldom("server", "api/v1/server", SELDOM_MS, { of: stats.service.instance });
    const of = [stats.service.instance, stats.epoch, ...stats.storage.checkpoints, "", ...stats.storage.checkpoints_protected].join("\n");
    await seldom("checkpoints", "api/v1/checkpoints", KEPT_MS, { of, part: (answer) => answer.checkpoints });
    await predict();
    draw();
    const { ready, reason } = stats.service;
    byId("token").hidden = !(hasToken() || view.server.settings.tokens);
    if (ready) say(stats.read_only ? "read only" : "ready", "good");
    else say("not ready", "warn", `Writes are not served now: ${reason}`);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    await explain(error);
  }
}

async function explain(error) {
  if (error.needsToken) {
    refused = true;
    byId("token").hidden = false;
    say("token needed", "warn", "This server serves those it knows: give a token.");
    if (!byId("dialog").open) act.token(hasToken() ? "The server does not know this token." : "");
    return;
  }
  if (error.status === 504) {
    const server = await ask("api/v1/server").catch(() => null);
    const verb = server?.service.running_verb;
    say("busy", "warn", verb ? `The engine works on ${verb}; what is shown is older.` : error.plain);
    return;
  }
  const state = { 0: "no answer", 403: "not allowed", 503: "not ready" }[error.status] ?? "refused";
  say(state, error.status === 503 ? "warn" : "bad", error.plain);
}

async function lookNow() {
  if (looking) {
    again = true;
    return;
  }
  clearTimeout(timer);
  looking = true;
  try {
    do {
      again = refused = false;
      await look();
    } while (again);
  } finally {
    looking = false;
    if (!paused && !refused && !document.hidden) timer = setTimeout(lookNow, restMs(view.recent));
  }
}

byId("span").onchange = draw;
byId("pause").onclick = ({ target }) => {
  paused = !paused;
  setText(target, paused ? "Resume" : "Pause");
  if (paused) clearTimeout(timer);
  else lookNow();
};
byId("token").onclick = () => act.token();
byId("theme").onclick = () => {
  switchTheme();
  repaint();
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !paused) lookNow();
});
lookNow();
