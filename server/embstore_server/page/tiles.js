// The row of numbers on top, each with a line of its last minutes.

import { sparkline } from "./charts.js";
import { h, setText } from "./dom.js";
import { age, byteRate, bytes, count, percent, rate, seconds } from "./format.js";
import { sum } from "./history.js";

const SVG = "http://www.w3.org/2000/svg";
const POINTS = 90;

const TILES = [
  {
    name: "Hit rate",
    series: () => "hits",
    value: ({ now, stats }) => percent(now.hits ?? stats.cache.unique_hit_rate),
    sub: ({ stats }) => `${percent(stats.cache.unique_hit_rate)} since start, ${stats.policy}`,
  },
  {
    name: "Keys looked up",
    series: () => "keys",
    value: ({ now }) => rate(now.keys),
    sub: ({ now }) => `${rate(now.calls)} calls`,
  },
  {
    name: "Time of a call, p99",
    series: ({ busiest }) => (busiest ? `p99/${busiest.verb}` : ""),
    value: ({ busiest }) => seconds(busiest?.call?.p99),
    sub: ({ busiest }) => (busiest ? `${busiest.verb}, p50 ${seconds(busiest.call?.p50)}` : "no calls lately"),
  },
  {
    name: "Queue",
    series: () => "queue",
    value: ({ stats }) => count(stats.service.queue_calls),
    sub: ({ stats }) => `${bytes(stats.service.inflight_bytes)} in flight`,
  },
  {
    name: "Cache in use",
    series: () => "occupancy",
    value: ({ now }) => percent(now.occupancy),
    sub: ({ stats }) => `${bytes(stats.cache.memory_bytes)} of ${bytes(stats.cache.budget_bytes)}`,
  },
  {
    name: "Sessions",
    series: () => "sessions",
    value: ({ stats }) => count(stats.sessions.open.length),
    sub: ({ stats }) => `${seconds(sum(stats.sessions.open.map((one) => one.stall_s)))} stalled`,
  },
  {
    name: "Since the last commit",
    series: () => "",
    value: ({ stats }) => age(stats.commits.commit_age_s),
    sub: ({ stats }) => `durability ${stats.command_log.durability}`,
  },
  {
    name: "Files",
    series: () => "read",
    value: ({ stats }) => bytes(stats.storage.log_bytes + stats.storage.base_bytes),
    sub: ({ now }) => `${byteRate(now.read)} read`,
  },
];

export function tiles() {
  const drawn = TILES.map((tile) => {
    const value = h("div", { className: "value", textContent: "–" });
    const sub = h("div", { className: "sub" });
    const area = path("area");
    const line = path("line");
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 100 22");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    svg.append(area, line);
    const name = h("div", { className: "name", textContent: tile.name });
    return { tile, value, sub, area, line, element: h("div", { className: "tile" }, name, value, sub, svg) };
  });
  const element = h("div", { id: "overview", className: "tiles" }, ...drawn.map((one) => one.element));

  function set(view) {
    for (const { tile, value, sub, area, line } of drawn) {
      setText(value, tile.value(view));
      const said = tile.sub(view);
      setText(sub, said);
      sub.title = said;
      const [outline, filled] = sparkline(view.history.values(tile.series(view), POINTS));
      line.setAttribute("d", outline);
      area.setAttribute("d", filled);
    }
  }
  return { element, set };
}

function path(name) {
  const made = document.createElementNS(SVG, "path");
  made.setAttribute("class", name);
  return made;
}
