// Sessions, files, checkpoints, slow calls.

import { Chart } from "./charts.js";
import { card, facts, h, setText, table } from "./dom.js";
import { age, byteRate, bytes, count, percent, rate, seconds, whole } from "./format.js";

const SHOWN = 15;

export function sessions({ end, save }) {
  const { element, about } = card("sessions", "Look-ahead sessions", "whole");
  const drawn = table(
    [
      { head: "session", className: "cut", text: (one) => one.name },
      { head: "steps", className: "number", text: (one) => whole(one.last_step) },
      { head: "a second", className: "number", text: (one) => rate(one.rate) },
      { head: "announced ahead", className: "number", share: ahead, text: (one) => `${one.announced_step - one.last_step} of ${one.lookahead_steps_max}` },
      { head: "ready", className: "number", text: (one) => whole(one.ready_steps) },
      { head: "hit rate", className: "number", text: (one) => percent(one.hit_rate) },
      { head: "early", className: "number", text: (one) => percent(one.early_share) },
      { head: "stalls", className: "number", text: (one) => `${count(one.stalls)}, ${seconds(one.stall_s)}` },
      { head: "ranks", className: "number", text: (one) => `${one.ranks_joined} of ${one.world_size}` },
      { head: "oldest lease", className: "number", text: (one) => age(one.oldest_lease_s) },
      { head: "tables", className: "number", text: (one) => (one.tables == null ? "–" : whole(one.tables)) },
      { head: "state", text: (one) => (one.held_back ? "waits for room" : one.planner) },
      { head: "action", className: "number", text: () => "End", does: (one) => `End the session ${one.name}`, act: end },
      { head: "run", className: "number", text: () => "Save", does: (one) => `Save the run of ${one.name} for embstore report`, act: save },
    ],
    (one) => one.name,
    "No session is open. A trainer that announces its steps has one here.",
  );
  element.append(drawn.element);
  function set({ stats, now }) {
    const open = stats.sessions.open;
    drawn.set(open.map((one) => ({ ...one, rate: now[`steps/${one.name}`] })));
    about.textContent = open.length ? `${open.length} open` : "";
  }
  return { element, set };
}

function ahead(session) {
  return (session.announced_step - session.last_step) / session.lookahead_steps_max;
}

export function storage() {
  const { element, about } = card("storage", "Log and base");
  const names = ["Log", "Rows in the log", "Base", "Folds / merges", "Command log", "Executed again in", "Last commit", "Backups", "Files checked"];
  const drawn = facts(names);
  const chart = new Chart({ format: byteRate, nothing: "Nothing was read or written." });
  const note = h("p", { className: "note bad" });
  element.append(drawn.element, chart.element, note);
  function set({ stats, history, span }) {
    const { storage: s, command_log: log, commits, backups, scrubber } = stats;
    drawn.set([
      `${bytes(s.log_bytes)} in ${s.log_segments} files`,
      `${count(s.log_rows)} of ${count(s.log_records)} records`,
      `${bytes(s.base_bytes)}, ${s.base_runs} runs, ${s.base_files} files`,
      `${s.folds} / ${s.base_merges}${s.merge_running ? ", one runs" : ""}`,
      `${log.durability}: ${bytes(log.bytes)}, ${count(log.waiting)} wait`,
      seconds(log.replay_s),
      `${age(commits.commit_age_s)} ago, ${commits.own_commits} by itself`,
      backups.backup_running ? `${bytes(backups.backup_bytes)} of ${bytes(backups.backup_of_bytes)}` : `${backups.backups} made`,
      `${bytes(scrubber.scrubbed_bytes)}, ${scrubber.scrub_passes} passes`,
    ]);
    const line = (series, name) =>
      history.shown(span, series).lines.filter((one) => one.name === "").map((one) => ({ ...one, name }));
    chart.set(history.shown(span, "read").times, [...line("read", "read"), ...line("written", "written")]);
    const problems = [s.merge_error, commits.own_commit_error, backups.backup_error, ...scrubber.scrub_errors];
    setText(note, problems.filter(Boolean).join(" · "));
    about.textContent = replication(stats.replication);
  }
  return { element, set };
}

function replication(one) {
  if (one.role === "standby") {
    const behind = `${count(one.commands_behind)} commands, ${seconds(one.seconds_behind)} behind`;
    return one.connected ? `standby of ${one.leader}: ${behind}` : `standby, not connected: ${one.reason}`;
  }
  return one.standbys ? `${one.role} with ${one.standbys} standbys` : one.role;
}

export function checkpoints({ checkpoint, protect, drop }) {
  const { element, head, about } = card("checkpoints", "Checkpoints", "roomy");
  head.append(h("button", { id: "checkpoint", type: "button", textContent: "New checkpoint", onclick: checkpoint }));
  const drawn = table(
    [
      { head: "label", className: "cut", text: (one) => one.label },
      { head: "age", className: "number", text: (one) => age(one.age_s) },
      { head: "command", className: "number", text: (one) => whole(one.command) },
      { head: "behind now", className: "number", text: (one) => count(one.behind) },
      { head: "tables", className: "number", text: (one) => (one.tables == null ? "–" : whole(one.tables)) },
      { head: "metadata", className: "cut mono", text: (one) => JSON.stringify(one.metadata) },
      { head: "kept", text: (one) => (one.protected ? "protected" : "routine") },
      { head: "protection", className: "number", text: protection, does: (one) => `${protection(one)} ${one.label}`, act: protect },
      { head: "removal", className: "number", text: () => "Drop", does: (one) => `Drop ${one.label}`, act: drop },
    ],
    (one) => one.label,
    "No checkpoint is kept. A crash loses what the durability level says; a restore needs one.",
  );
  element.append(drawn.element);
  function set({ checkpoints: kept, stats }) {
    const clock = stats.service.start_time_seconds + stats.service.uptime_s; // the server's
    const aged = (one) => (one.made_at == null ? null : Math.max(0, clock - one.made_at));
    const described = (one) => ({ ...one, age_s: aged(one), behind: stats.command - one.command });
    const rows = (kept || []).map(described).reverse();
    drawn.set(rows);
    about.textContent = rows.length ? `${rows.length} kept, ${bytes(stats.storage.checkpoints_bytes)} wait for them` : "";
  }
  return { element, set };
}

function protection(one) {
  return one.protected ? "Unprotect" : "Protect";
}

function longest(stages) {
  const [first] = Object.entries(stages || {}).sort(([, one], [, other]) => other - one);
  return first ? `${first[0]}, ${seconds(first[1] / 1000)}` : "–";
}

export function slowCalls() {
  const { element, about } = card("slow", "Slow calls", "whole");
  const drawn = table(
    [
      { head: "at", text: (one) => new Date(one.ended_at * 1000).toLocaleTimeString() },
      { head: "verb", text: (one) => one.verb },
      { head: "status", className: "cut", text: (one) => one.code },
      { head: "took", className: "number", text: (one) => seconds(one.ms / 1000) },
      { head: "in the queue", className: "number", text: (one) => seconds(one.wait_ms / 1000) },
      { head: "on the engine", className: "number", text: (one) => seconds(one.run_ms / 1000) },
      { head: "most of it", className: "cut", text: (one) => longest(one.stage_ms) },
      { head: "tables", className: "cut", text: (one) => one.tables || "–" },
      { head: "keys", className: "number", text: (one) => (one.keys ? one.keys.toLocaleString() : "–") },
      { head: "received", className: "number", text: (one) => bytes(one.received_bytes) },
      { head: "sent", className: "number", text: (one) => bytes(one.sent_bytes) },
      { head: "client", className: "cut", text: (one) => [one.token, one.client].filter(Boolean).join(": ") || "–" },
      { head: "rank, step", className: "number", text: (one) => (one.step == null ? "–" : `${one.rank ?? "–"}, ${one.step}`) },
      { head: "request, trace", className: "mono cut", text: (one) => [one.request, one.traceparent].filter(Boolean).join(", ") || "–" },
    ],
    (one) => `${one.ended_at} ${one.verb} ${one.request}`,
    "None since the server was started.",
  );
  element.append(drawn.element);
  function set({ calls }) {
    drawn.set(calls.slow_calls.slice(0, SHOWN));
    about.textContent = `calls of ${seconds(calls.slow_call_ms / 1000)} and more, the latest first`;
  }
  return { element, set };
}
