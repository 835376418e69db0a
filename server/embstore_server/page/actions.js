// What an operator does from the page. Each is confirmed, says what it will do, and what came of it.

import { ask, setToken } from "./api.js";
import { confirm } from "./dialog.js";
import { h } from "./dom.js";
import { bytes, seconds, whole } from "./format.js";

const LONG_S = 3600;
const SAVED_MS = 60_000;
const UNITS = { "": 1, B: 1, K: 2 ** 10, KIB: 2 ** 10, M: 2 ** 20, MIB: 2 ** 20, G: 2 ** 30, GIB: 2 ** 30, T: 2 ** 40, TIB: 2 ** 40 };

// view() has what was seen last; look() looks again
export function actions(view, look) {
  function checkpoint() {
    const command = view().stats.command;
    confirm({
      title: "New checkpoint",
      text: [`Everything up to the present command, ${whole(command)} or later, is made durable and kept under a label. Calls go on meanwhile.`],
      fields: [{ name: "label", label: "Label", value: `page-${command}` }],
      button: "Make the checkpoint",
      async act({ label }) {
        const { checkpoint: made } = await ask("api/v1/commands/Checkpoint", { method: "POST", body: { label }, timeoutS: LONG_S });
        look();
        return `Kept ${made.label}: all up to command ${whole(Number(made.command))} is durable`;
      },
    });
  }

  async function retain(label, retention) {
    await ask("api/v1/commands/SetRetention", { method: "POST", body: { label, retention: `RETENTION_${retention}` } });
    look();
  }

  function protect({ label, protected: isProtected }) {
    confirm({
      title: isProtected ? `Unprotect the checkpoint ${label}?` : `Protect the checkpoint ${label}?`,
      text: isProtected
        ? ["It is a routine one again: the next checkpoints of its folder may push it out, and it can be dropped."]
        : ["Newer checkpoints do not push it out, and it cannot be dropped, until it is unprotected. Its files are kept as long."],
      button: isProtected ? "Unprotect" : "Protect",
      async act() {
        await retain(label, isProtected ? "ROUTINE" : "PROTECTED");
        return isProtected ? `${label} is a routine checkpoint` : `${label} is protected`;
      },
    });
  }

  function drop({ label, command, protected: isProtected }) {
    const more = isProtected ? ["It is protected: the server refuses until it is unprotected."] : [];
    confirm({
      title: `Drop the checkpoint ${label}?`,
      text: [
        `It cannot be restored any more: the state of command ${whole(command)} is gone for good, unless a backup has it. What the store has now stays.`,
        ...more,
      ],
      button: "Drop it",
      danger: true,
      async act() {
        await retain(label, "DROPPED");
        return `Dropped ${label}`;
      },
    });
  }

  function resize() {
    const { cache } = view().stats;
    confirm({
      title: "Resize the cache",
      text: [
        `Its budget is ${bytes(cache.budget_bytes)}, of which ${bytes(cache.memory_bytes)} are in use. Rows beyond a smaller one leave the cache; no row and no bit changes.`,
        "It holds until the server is restarted. While a session is open the server refuses.",
      ],
      fields: [{ name: "size", label: "New budget, as 512 MiB or 4 GiB", value: exactly(cache.budget_bytes) }],
      button: "Resize",
      async act({ size }) {
        const cache_bytes = parseBytes(size);
        await ask("api/v1/commands/ResizeCache", { method: "POST", body: { cache_bytes }, timeoutS: LONG_S });
        look();
        return `The cache's budget is ${bytes(cache_bytes)} now`;
      },
    });
  }

  function policy() {
    const { stats, server } = view();
    confirm({
      title: "Change the policy",
      text: [
        `Which rows leave the cache first. Now it is ${stats.policy}; the miss ratios below say what others would do.`,
        "Rows stay where they are, and begin anew under the new policy: no row and no bit changes, and calls and sessions go on. It holds until the server is restarted.",
      ],
      fields: [{ name: "policy", label: "Policy", value: stats.policy, options: server.policies }],
      button: "Change the policy",
      async act(body) {
        await ask("api/v1/commands/SetPolicy", { method: "POST", body, timeoutS: LONG_S });
        look();
        return `The policy is ${body.policy} now`;
      },
    });
  }

  function end(session) {
    confirm({
      title: `End the session ${session.name}?`,
      text: [
        `It is at step ${whole(session.last_step)}, with ${session.ranks_joined} of ${session.world_size} ranks; the most silent one was heard of ${seconds(session.oldest_lease_s)} ago.`,
        "All its ranks are told so, and its pinned rows are released. What was trained stays, and so does its place: a trainer that opens it again goes on from there.",
      ],
      button: "End the session",
      danger: true,
      async act() {
        const own = view().server?.settings.tokens && !session.name.includes(":") ? ":" : "";
        const body = { name: own + session.name }; // no path: a name may be ".."
        await ask("api/v1/commands/EndSession", { method: "POST", body });
        look();
        return `Ended the session ${session.name}`;
      },
    });
  }

  // For `embstore report`, which draws it. Nothing changes, so nothing is asked.
  function save(session) {
    const { runs, stats } = view();
    const href = URL.createObjectURL(new Blob([JSON.stringify(runs.file(session, stats))], { type: "application/json" }));
    h("a", { href, download: `${session.name.replaceAll(/[^\w.-]+/g, "-")}.run.json` }).click();
    setTimeout(() => URL.revokeObjectURL(href), SAVED_MS);
  }

  function token(why = "") {
    confirm({
      title: "Token",
      text: [why || "The server asks who calls.", "It stays in this tab until that is closed, and is sent to this server alone."],
      fields: [{ name: "token", label: "NAME.SECRET, as embstore token add wrote it", type: "password" }],
      button: "Use it",
      async act({ token: given }) {
        setToken(given);
        look();
      },
    });
  }

  return { checkpoint, protect, drop, resize, policy, end, save, token };
}

// A size as people write it, if that says all of it.
export function exactly(size) {
  const said = bytes(size);
  return parseBytes(said) === size ? said : `${size} B`;
}

export function parseBytes(text) {
  const found = /^(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?\s*([a-z]*)$/i.exec(text);
  const unit = found && UNITS[found[3].toUpperCase()];
  const number = found && Number(found[1].replaceAll(",", "") + (found[2] ?? ""));
  if (!unit || !(number > 0)) throw new Error(`Expected a size as 512 MiB or 4.5 GiB, found “${text}”`);
  return Math.round(number * unit);
}
