// Calls: hit rates, throughput, latency by verb, stage times, queue.

import { Chart, shares } from "./charts.js";
import { card, h, table } from "./dom.js";
import { bytes, count, percent, rate, seconds, whole } from "./format.js";

const VERBS_SHOWN = 6;
const RATES_SHOWN = 8;
const STAGES_SHOWN = 8;

export function hitRates() {
  const { element, about } = card("hit-rates", "Hit rate");
  const chart = new Chart({
    format: percent,
    range: shares,
    nothing: "No lookups since the page was opened.",
  });
  element.append(chart.element);
  function set({ history, span, stats }) {
    const { times, lines } = history.shown(span, "hit/");
    const sessions = new Set(stats.sessions.open.map((one) => `session ${one.name}`));
    const rank = ({ name }) => (!name.startsWith("session ") ? 0 : sessions.has(name) ? 1 : 2);
    const first = [...lines].sort((a, b) => rank(a) - rank(b)).slice(0, RATES_SHOWN);
    const more = lines.length - first.length;
    about.textContent = `of unique keys, by layout of rows and session${more ? `, ${more} more` : ""}; policy ${stats.policy}`;
    chart.set(times, first);
  }
  return { element, set };
}

export function throughput() {
  const { element, about } = card("throughput", "Calls");
  about.textContent = "by verb";
  const chart = new Chart({ format: rate });
  element.append(chart.element);
  function set({ history, span }) {
    const { times, lines } = history.shown(span, "calls/");
    chart.set(times, largest(lines, VERBS_SHOWN));
  }
  return { element, set };
}

export function latency() {
  const { element, head, about } = card("latency", "Time of calls");
  const choice = h("select", { id: "quantile", "aria-label": "Quantile" });
  choice.append(h("option", { value: "p99", textContent: "p99" }), h("option", { value: "p50", textContent: "p50" }));
  head.append(choice);
  about.textContent = "by verb, each two seconds";
  const chart = new Chart({ format: seconds });
  element.append(chart.element);
  let view = null;
  function set(given) {
    view = given;
    const { times, lines } = view.history.shown(view.span, `${choice.value}/`);
    const used = view.history.shown(view.span, "calls/").lines;
    const names = largest(used, VERBS_SHOWN).map((line) => line.name);
    chart.set(times, lines.filter((line) => names.includes(line.name)));
  }
  choice.onchange = () => view && set(view);
  return { element, set };
}

export function verbs() {
  const { element, about } = card("verbs", "Verbs");
  about.textContent = "over the last ten seconds";
  const quantiles = ({ call }) => (call ? `${seconds(call.p50)} / ${seconds(call.p99)}` : "–");
  const drawn = table(
    [
      { head: "verb", text: (one) => one.verb },
      { head: "calls", className: "number", text: (one) => whole(one.total) },
      { head: "a second", className: "number", text: (one) => rate(one.perSecond) },
      { head: "p50 / p99", className: "number", text: quantiles },
      { head: "in the queue, p99", className: "number", text: (one) => seconds(one.wait?.p99) },
      { head: "on the engine, p99", className: "number", text: (one) => seconds(one.engine?.p99) },
    ],
    (one) => one.verb,
    "No calls yet.",
  );
  element.append(drawn.element);
  function set({ recent }) {
    drawn.set([...recent].sort((a, b) => b.total - a.total).slice(0, 9));
  }
  return { element, set };
}

export function stages() {
  const { element, about } = card("stages", "Stages");
  about.textContent = "where the engine's time, and look-ahead's, goes";
  const drawn = table(
    [
      { head: "stage", text: (one) => one.name },
      { head: "of a second", className: "number", share: (one) => one.now, text: (one) => seconds(one.now) },
      { head: "since start", className: "number", text: (one) => seconds(one.total) },
      { head: "times", className: "number", text: (one) => (one.laps == null ? "" : count(one.laps)) },
    ],
    (one) => one.name,
    "No calls yet.",
  );
  element.append(drawn.element);
  function set({ stats, now }) {
    const rows = Object.entries(stats.stages).map(([name, one]) => ({
      name,
      now: now[`stage/${name}`] ?? 0,
      total: one.seconds,
      laps: one.laps,
    }));
    const ahead = Object.entries(stats.sessions.planning.stage_seconds)
      .filter(([, total]) => total > 0)
      .map(([name, total]) => ({ name: `look-ahead: ${name}`, now: now[`ahead/${name}`] ?? 0, total }));
    const first = (list) => list.sort((a, b) => b.total - a.total).slice(0, STAGES_SHOWN);
    drawn.set([...first(rows), ...first(ahead)]);
  }
  return { element, set };
}

export function queue() {
  const { element, about } = card("queue", "Queue and bytes in flight");
  const waiting = new Chart({ format: count });
  const flying = new Chart({ format: bytes });
  element.append(waiting.element, flying.element);
  function set({ history, span, stats }) {
    about.textContent = stats.service.running_verb ? `the engine works on ${stats.service.running_verb}` : "";
    const named = (name, said) =>
      history.shown(span, name).lines.filter((line) => line.name === "").map((line) => ({ ...line, name: said }));
    const { times } = history.shown(span, "queue");
    waiting.set(times, named("queue", "calls that wait"));
    flying.set(times, named("inflight", "bytes in flight"));
  }
  return { element, set };
}

// Of the verbs, those that are called most, by name; who only looks, as this page, comes last.
function largest(lines, many) {
  const looks = (line) => Number(/^(Get|List)/.test(line.name));
  const total = (line) => line.values.reduce((sum, value) => sum + (value || 0), 0);
  const sorted = [...lines].sort((a, b) => looks(a) - looks(b) || total(b) - total(a));
  return sorted.slice(0, many).sort((a, b) => a.name.localeCompare(b.name));
}
