// Requests to the server that the page came from, and to no other. The token stays in this tab.
//
// Paths are relative to the page's own, so that it may be below a prefix of a proxy. Other servers may
// be below others of the same origin, so a token is kept by the page's path.

const TOKEN = `embstore.token ${new URL(".", location).pathname}`;
const TIMEOUT_S = 10;
const GRACE_S = 5; // of a server that is there and late, beyond what it was given

let token = sessionStorage.getItem(TOKEN) || "";

export class Refused extends Error {
  constructor(status, message, request = "") {
    super(message);
    this.status = status;
    this.request = request;
  }

  get needsToken() {
    return this.status === 401;
  }

  // What a person can do about it.
  get plain() {
    const where = this.request ? ` (request ${this.request})` : "";
    if (this.status === 0) return "The server does not answer. It is asked again every two seconds.";
    if (this.status === 403) return `This token is not allowed to do that: ${this.message}${where}`;
    if (this.status === 504) return `No answer in time; the engine may be busy: ${this.message}${where}`;
    return `${sentence(this.message)}${where}`;
  }
}

function sentence(text) {
  return text ? text[0].toUpperCase() + text.slice(1) : "The server refused, and did not say why";
}

export function hasToken() {
  return token !== "";
}

export function setToken(given) {
  if (/[^\x21-\x7e]/.test(given)) throw new Error("Expected NAME.SECRET, in printable ASCII without spaces");
  token = given;
  if (given) sessionStorage.setItem(TOKEN, given);
  else sessionStorage.removeItem(TOKEN);
}

export async function ask(path, { method = "GET", body, timeoutS = TIMEOUT_S } = {}) {
  const headers = { "X-Request-Timeout": String(timeoutS) };
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    const signal = AbortSignal.timeout((timeoutS + GRACE_S) * 1000); // a process that is stopped never answers
    answer = await fetch(path, { method, headers, body: body && JSON.stringify(body), cache: "no-store", signal });
  } catch {
    throw new Refused(0, "no answer");
  }
  const told = await answer.json().catch(() => null);
  if (!told && answer.ok) throw new Refused(0, "no whole answer");
  if (!answer.ok) throw new Refused(answer.status, told?.message || answer.statusText, told?.request);
  return told;
}
