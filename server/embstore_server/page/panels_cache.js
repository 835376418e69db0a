// The cache: memory by purpose, occupancy, hit rates at other sizes, hottest tables.

import { Chart, shares } from "./charts.js";
import { card, h, meter, setText, table } from "./dom.js";
import { bytes, count, percent, rate, whole } from "./format.js";
import { poolName, sum } from "./history.js";

const TABLES_SHOWN = 12;
const levelTwo = (one) => (one.host_slots ? `${count(one.host_rows)} rows, ${percent(one.host_hit_rate)} hit` : "-");
const dirtyShare = (one) => (one.resident_rows ? one.dirty_rows / one.resident_rows : 0);
const FEW_CALLS = 100;

export function memory({ resize }) {
  const { element, head } = card("memory", "Memory by purpose", "third roomy");
  head.append(h("button", { id: "resize", type: "button", textContent: "Resize cache", onclick: resize }));
  const names = {
    cache: "Cache: rows, index, staging",
    host: "Level two: rows on the host",
    counts: "Counts and recorded calls",
    log: "Index of the log",
    inflight: "Requests and replies in flight",
    device: "Device",
    process: "Whole process",
  };
  const meters = Object.fromEntries(Object.entries(names).map(([key, name]) => [key, meter(name)]));
  element.append(...Object.values(meters).map((one) => one.element));
  function set({ stats }) {
    const { cache, memory: used, frequency, device_facts: device } = stats;
    const whole_ = used.process_resident_bytes;
    const of = (value, most) => `${bytes(value)} of ${bytes(most)}`;
    meters.cache.set(of(cache.memory_bytes, cache.budget_bytes), cache.memory_bytes / cache.budget_bytes);
    meters.host.element.hidden = !cache.host_budget_bytes;
    meters.host.set(of(cache.host_memory_bytes, cache.host_budget_bytes), cache.host_memory_bytes / cache.host_budget_bytes);
    meters.counts.set(bytes(frequency.memory_bytes), frequency.memory_bytes / whole_);
    meters.log.set(bytes(used.log_index_bytes), used.log_index_bytes / whole_);
    meters.inflight.set(bytes(used.inflight_bytes), used.inflight_bytes / whole_);
    meters.process.set(bytes(whole_), whole_ / (device.memory_bytes || whole_));
    meters.device.element.hidden = device.memory_bytes == null || device.memory_free_bytes == null;
    const taken = device.memory_bytes - device.memory_free_bytes;
    meters.device.set(`${of(taken, device.memory_bytes)}, all programs`, taken / device.memory_bytes);
  }
  return { element, set };
}

export function occupancy({ policy }) {
  const { element, head, about } = card("cache", "Occupancy", "wide roomy");
  head.append(h("button", { id: "policy", type: "button", textContent: "Change policy", onclick: policy }));
  about.textContent = "by layout of rows: optimizer and dimension";
  const drawn = table(
    [
      { head: "layout", text: (one) => poolName(one) },
      { head: "rows in slots", className: "number", share: (one) => one.occupancy, text: (one) => percent(one.occupancy) },
      { head: "slots", className: "number", text: (one) => whole(one.slots) },
      { head: "level two", className: "number", text: levelTwo },
      { head: "dirty", className: "number", share: dirtyShare, text: (one) => percent(dirtyShare(one)) },
      { head: "memory", className: "number", text: (one) => bytes(one.memory_bytes) },
      { head: "hit rate", className: "number", text: (one) => percent(one.unique_hit_rate) },
      { head: "missed: host / log / base / new", className: "number", text: (one) => [one.misses_host, one.misses_log, one.misses_base, one.misses_initializer].map(count).join(" / ") },
      { head: "evicted", className: "number", text: (one) => rate(one.evicted) },
    ],
    poolName,
    "No tables yet: a trainer, or embstore table create, makes one.",
  );
  const note = h("p", { className: "note" });
  element.append(drawn.element, note);
  function set({ stats, now }) {
    drawn.set(stats.cache.pools.map((pool) => ({ ...pool, evicted: now[`evicted/${poolName(pool)}`] })));
    const { planning } = stats.sessions;
    const { hot_set: hot, warming } = stats.frequency;
    const parts = [`${whole(planning.pinned_rows)} rows pinned for announced steps`];
    const { host_budget_bytes: below, host_budget_reason: reason } = stats.cache;
    if (below) parts.push(`level two: up to ${bytes(below)} of the host's memory, ${reason}`);
    if (hot.version) parts.push(`hot set ${hot.version}: ${whole(hot.pinned_rows)} of ${whole(hot.rows)} rows pinned`);
    if (warming.running) parts.push(`warming up: ${whole(warming.rows)} of ${whole(warming.of)} rows`);
    setText(note, parts.join(" · "));
  }
  return { element, set };
}

export function missRatio() {
  const { element, head, about } = card("miss-ratio", "Miss ratio by size of the cache", "roomy");
  const choice = h("select", { id: "layout", "aria-label": "Layout of rows", hidden: true });
  head.append(choice);
  const chart = new Chart({
    format: percent,
    range: shares,
    x: { log: true, format: bytes },
  });
  const note = h("p", { className: "note" });
  element.append(chart.element, note);
  let view = null;
  function set(given) {
    view = given;
    const { hitRates } = view;
    if (!hitRates || hitRates.age_s == null) {
      chart.say("Being predicted from the accesses that were counted.");
      return;
    }
    const names = hitRates.curves.map(poolName);
    if (names.join() !== [...choice.options].map((one) => one.value).join()) {
      choice.replaceChildren(...names.map((name) => h("option", { value: name, textContent: name })));
    }
    choice.hidden = names.length < 2;
    const curve = hitRates.curves[Math.max(0, choice.selectedIndex)];
    if (!curve) {
      setText(about, "");
      chart.set([], []);
      chart.say("No accesses have been counted yet: the setting count_rate says how many lookups are.");
      setText(note, "");
      return;
    }
    const today = curve.slots.indexOf(curve.slots_now);
    const lines = Object.entries(curve.policies).map(([name, hits]) => ({
      name,
      values: hits.map((share) => 1 - share),
      label: `${percent(1 - hits[today])} today`,
    }));
    if (curve.host_rows[today]) {
      const both = curve.both[hitRates.policy];
      lines.push({ name: `${hitRates.policy}, both levels`, values: both.map((share) => 1 - share), label: `${percent(1 - both[today])} today` });
    }
    chart.set(curve.cache_bytes, lines, { at: curve.cache_bytes[today], text: "today" });
    setText(about, curve.method === "recorded" ? `from ${curve.calls} recorded calls` : "estimated from counts");
    const few = curve.method === "recorded" && curve.calls < FEW_CALLS;
    const hint = few ? " So few calls are mostly first uses, which miss in any cache: let more be recorded." : "";
    setText(note, `${poolName(curve)}, ${curve.tables.length} table${curve.tables.length > 1 ? "s" : ""}; the policy now is ${hitRates.policy}. What look-ahead announces does not miss.${hint}`);
  }
  choice.onchange = () => view && set(view);
  return { element, set };
}

export function tables() {
  const { element, about } = card("tables", "Hottest tables", "roomy");
  const drawn = table(
    [
      { head: "table", className: "cut", text: (one) => one.name },
      { head: "of the keys", className: "number", share: (one) => one.share, text: (one) => percent(one.share) },
      { head: "rows", className: "number", text: (one) => count(one.rows) },
      { head: "hit rate", className: "number", text: (one) => percent(one.hit_rate) },
      { head: "in the cache", className: "number", text: (one) => percent(one.rows ? one.resident_rows / one.rows : null) },
      { head: "dirty", className: "number", text: (one) => count(one.dirty_rows) },
      { head: "updates", className: "number", text: (one) => count(one.t) },
      { head: "layout", text: poolName },
    ],
    (one) => one.name,
    "No tables yet.",
  );
  element.append(drawn.element);
  function set({ stats }) {
    const all = sum(Object.values(stats.tables).map((one) => one.lookup_keys));
    const rows = Object.entries(stats.tables).map(([name, one]) => ({
      name,
      ...one,
      share: all ? one.lookup_keys / all : 0,
    }));
    rows.sort((a, b) => b.share - a.share || b.resident_rows - a.resident_rows);
    drawn.set(rows.slice(0, TABLES_SHOWN));
    const more = rows.length > TABLES_SHOWN ? `${TABLES_SHOWN} of ${rows.length}` : `${rows.length}`;
    about.textContent = `${more}, by all keys of lookups since the start`;
  }
  return { element, set };
}
