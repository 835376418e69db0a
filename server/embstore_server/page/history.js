// What was seen since the page was opened. Counters of the server only grow: a rate is the difference
// of two looks over the time between them, and a quantile that of two histograms. A restart of the
// server is a gap, and so is a time in which nobody looked. What begins anew meanwhile, as the pools of
// a restored store and a session of the same name, has no rate until it is seen twice.

const POINTS_MAX = 1000;
const RECENT_S = 10;
const GAP_S = 60;
const LOOK_MS = 2000;
const LOOK_MS_MAX = 20_000;
const REST = 20;

export class History {
  constructor() {
    this.clear();
  }

  clear() {
    this.times = [];
    this.series = new Map();
    this.last = null;
    this.looks = [];
    this.now = {};
  }

  // look: {at (seconds), stats, calls}
  push(look) {
    if (this.last && look.at <= this.last.at) this.clear(); // the clock was set back
    const before = this.last && follows(this.last, look) ? this.last : null;
    if (!before) this.looks = [];
    this.now = { ...gauges(look), ...(before ? rates(before, look) : {}) };
    this.last = look;
    this.looks.push(look);
    while (this.looks.length > 2 && this.looks[1].at <= look.at - RECENT_S) this.looks.shift();
    const length = this.times.push(look.at);
    for (const name of Object.keys(this.now)) {
      if (!this.series.has(name)) this.series.set(name, new Array(length - 1).fill(null));
    }
    for (const [name, values] of this.series) values.push(this.now[name] ?? null);
    if (length > POINTS_MAX) {
      this.times.shift();
      for (const [name, values] of this.series) {
        values.shift();
        if (!(name in this.now) && values.every((value) => value == null)) this.series.delete(name);
      }
    }
  }

  // The points of the last `span` seconds: times, and the series whose names begin with `prefix`.
  shown(span, prefix) {
    const end = this.times.at(-1) ?? 0;
    let from = this.times.findIndex((at) => at >= end - span);
    if (from < 0) from = this.times.length;
    const found = [...this.series.keys()].filter((name) => name.startsWith(prefix)).sort();
    return {
      times: this.times.slice(from),
      lines: found
        .map((name) => ({ name: name.slice(prefix.length), values: this.series.get(name).slice(from) }))
        .filter((line) => line.values.some((value) => value != null)),
    };
  }

  values(name, points) {
    return (this.series.get(name) || []).slice(-points);
  }

  // Calls of each verb: those of the last seconds, as {verb, total, perSecond, call, wait, engine},
  // each of the last three {p50, p95, p99} in seconds, or null where there was none.
  recentCalls() {
    const [first, look] = [this.looks[0], this.looks.at(-1)];
    if (!look || first === look) return [];
    const time = look.stats.service.uptime_s - first.stats.service.uptime_s;
    if (time <= 0) return [];
    return Object.entries(look.calls.verbs).map(([verb, now]) => {
      const before = first.calls.verbs[verb];
      const part = (name) => summary(look.calls.bounds, difference(now[name], before?.[name]));
      const calls = sum(difference(now.call, before?.call));
      return {
        verb,
        total: sum(now.call),
        perSecond: calls / time,
        call: part("call"),
        wait: part("wait"),
        engine: part("engine"),
      };
    });
  }
}

// Milliseconds from one look to the next, by the calls of the last seconds: stats are counted anew for
// each look, which takes the engine of a large cache long, and may take a twentieth of its time.
export function restMs(recent) {
  const seconds = recent.find((one) => one.verb === "GetStats")?.engine?.p50 ?? 0;
  return Math.min(LOOK_MS_MAX, Math.max(LOOK_MS, REST * seconds * 1000));
}

export function poolName(pool) {
  return `${pool.optimizer} ${pool.dim}`;
}

function follows(before, look) {
  return before.stats.service.instance === look.stats.service.instance && look.at - before.at <= GAP_S;
}

// What a counter has grown by; null: it began anew.
function grown(now, before) {
  return now >= before ? now - before : null;
}

function perSecond(now, before, time) {
  const made = grown(now, before);
  return made == null ? null : made / time;
}

function gauges({ stats }) {
  const pools = stats.cache.pools;
  const slots = sum(pools.map((pool) => pool.slots));
  return {
    queue: stats.service.queue_calls,
    inflight: stats.service.inflight_bytes,
    sessions: stats.sessions.open.length,
    occupancy: slots ? sum(pools.map((pool) => pool.resident_rows - pool.host_rows)) / slots : null,
  };
}

function rates(before, look) {
  const [a, b] = [before.stats, look.stats];
  const time = b.service.uptime_s - a.service.uptime_s; // the server's clock: answers may be late
  if (time <= 0) return {};
  const found = {
    read: perSecond(b.storage.bytes_read, a.storage.bytes_read, time),
    written: perSecond(b.storage.bytes_written, a.storage.bytes_written, time),
  };
  const all = { hits: 0, keys: 0, accesses: 0 };
  for (const pool of b.cache.pools) {
    const old = a.cache.pools.find((p) => p.dim === pool.dim && p.optimizer === pool.optimizer);
    const accesses = old && grown(pool.accesses, old.accesses);
    const keys = old && grown(pool.unique_keys, old.unique_keys);
    if (accesses == null || keys == null) continue;
    const hits = pool.unique_hits - old.unique_hits;
    found[`hit/${poolName(pool)}`] = keys > 0 ? hits / keys : null;
    found[`evicted/${poolName(pool)}`] = perSecond(evictions(pool), evictions(old), time);
    all.hits += hits;
    all.keys += keys;
    all.accesses += accesses;
  }
  found.hits = all.keys > 0 ? all.hits / all.keys : null;
  found.keys = all.accesses / time;
  for (const session of b.sessions.open) {
    const old = a.sessions.open.find((s) => s.name === session.name);
    if (!old || session.lookup_keys < old.lookup_keys) continue;
    const keys = session.lookup_keys - old.lookup_keys;
    const hits = session.lookup_hits - old.lookup_hits;
    found[`hit/session ${session.name}`] = keys > 0 ? hits / keys : null;
    found[`steps/${session.name}`] = perSecond(session.steps_finished, old.steps_finished, time);
  }
  for (const [stage, now] of Object.entries(b.stages)) {
    found[`stage/${stage}`] = perSecond(now.seconds, a.stages[stage]?.seconds ?? 0, time);
  }
  for (const [stage, now] of Object.entries(b.sessions.planning.stage_seconds)) {
    found[`ahead/${stage}`] = perSecond(now, a.sessions.planning.stage_seconds[stage] ?? 0, time);
  }
  let calls = 0;
  for (const [verb, now] of Object.entries(look.calls.verbs)) {
    const made = difference(now.call, before.calls.verbs[verb]?.call);
    calls += sum(made);
    found[`calls/${verb}`] = sum(made) / time;
    const times = summary(look.calls.bounds, made);
    found[`p50/${verb}`] = times?.p50 ?? null;
    found[`p99/${verb}`] = times?.p99 ?? null;
  }
  found.calls = calls / time;
  return found;
}

function evictions(pool) {
  return pool.evictions_clean + pool.evictions_dirty + pool.evictions_host;
}

function difference(now, before) {
  return before ? now.map((value, i) => value - before[i]) : now;
}

export function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

function summary(bounds, counts) {
  const total = sum(counts);
  if (!total) return null;
  const at = (share) => quantile(bounds, counts, share * total);
  return { p50: at(0.5), p95: at(0.95), p99: at(0.99) };
}

// As the server does it, and Prometheus: linear inside a bucket.
function quantile(bounds, counts, rank) {
  let below = 0;
  for (let i = 0; i < bounds.length; i += 1) {
    if (counts[i] && below + counts[i] >= rank) {
      const low = i ? bounds[i - 1] : 0;
      return low + ((bounds[i] - low) * (rank - below)) / counts[i];
    }
    below += counts[i];
  }
  return bounds.at(-1);
}
