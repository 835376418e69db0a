// What this page has seen of each open session: samples, as RunHistory of a trainer takes them, in a
// file that `embstore report` draws.
//
// The server keeps no history: it would have to look at itself for as long as a session is open, for
// a file that most sessions never want. The page looks anyway. So the file begins where the page did,
// and has not what only a trainer knows: where the time of its loop went. As there, a sample is what
// had been counted until then, and of SAMPLES_MAX every second one is given up.

const KIND = "embstore run 1";
const SAMPLES_MAX = 256;
const COUNTED = [
  "lookup_keys",
  "lookup_hits",
  "prefetched_keys",
  "early_bytes",
  "late_bytes",
  "stalls",
  "stall_s",
  "held_back_s",
  "steps_in_parts",
  "steps_planned_again",
];
const OPTIONS = ["name", "tables", "planner", "shared", "world_size", "lookahead_steps_max"];

export class Runs {
  constructor() {
    this.seen = new Map();
  }

  // look: {at (seconds), stats}
  note({ at, stats }) {
    const before = this.seen;
    this.seen = new Map();
    for (const session of stats.sessions.open) {
      let run = before.get(session.name);
      if (!run || !goesOn(run, session, stats, at)) run = { instance: stats.service.instance, begun: at, every: 0, samples: [] };
      this.seen.set(session.name, run);
      const last = run.samples.at(-1);
      if (last && at - run.begun < last.time_s + run.every) continue;
      run.samples.push(sampled(session, stats, at - run.begun));
      if (run.samples.length > SAMPLES_MAX) {
        run.samples = run.samples.filter((_, i) => i % 2 === 0);
        run.every = (2 * (run.samples.at(-1).time_s - run.samples[0].time_s)) / SAMPLES_MAX;
      }
    }
  }

  // The file of an open session.
  file(session, stats) {
    const { samples } = this.seen.get(session.name);
    const names = new Set(samples.flatMap(Object.keys));
    const columns = [...names].map((name) => [name, samples.map((one) => one[name] ?? 0)]);
    return {
      kind: KIND,
      session: Object.fromEntries(OPTIONS.map((name) => [name, session[name]])),
      samples: Object.fromEntries(columns),
      cache: { budget_bytes: stats.cache.budget_bytes, layouts: [] },
      accesses: [],
    };
  }
}

// A session that was opened again by its name counts from nothing.
function goesOn(run, session, stats, at) {
  const last = run.samples.at(-1);
  const grows = COUNTED.every((name) => session[name] >= last[name]) && session.last_step >= last.step;
  return run.instance === stats.service.instance && at - run.begun >= last.time_s && grows;
}

function sampled(session, stats, time) {
  const planning = Object.entries(stats.sessions.planning.stage_seconds);
  return {
    step: session.last_step,
    time_s: time,
    ...Object.fromEntries(COUNTED.map((name) => [name, session[name]])),
    bytes_read: stats.storage.bytes_read,
    bytes_written: stats.storage.bytes_written,
    ...Object.fromEntries(planning.map(([stage, seconds]) => [`planning.${stage}`, seconds])),
  };
}
