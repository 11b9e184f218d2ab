// What is known of the daemon: answers, and what has happened since. It draws nothing.

import { ask } from "./stream.js";

const mostCalls = 200, mostFailures = 100, mostLog = 500;
const hour = 3_600_000;
// recently is how long a call that failed is something that is wrong now.
export const recently = 15 * 60_000;

const serious = new Set(["INTERNAL", "TOOL_BROKEN", "STORE_UNAVAILABLE", "TIMEOUT", "GUEST_TRAP", "OUTCOME_UNKNOWN"]);

export const model = {
  link: { live: false, why: "" },
  status: null, reliability: null, tools: [], breakers: [], approvals: [], identities: [],
  sessions: new Map(), minutes: [], since: null, calls: [], failures: [],
  log: [], // what happened while the page was open, the oldest first
  errors: new Map(), // of questions, by name
  unasked: new Set(["tools", "approvals", "identities", "reliability", "sessions"]), // without an answer yet
};

// The questions that a page has beside the stream, and what becomes of the answers.
const questions = {
  tools: (v) => { model.tools = v; },
  approvals: (v) => { model.approvals = v; },
  identities: (v) => { model.identities = v; },
  reliability: (v) => { model.reliability = v; },
  sessions: (v) => {
    if (!v.data) throw new Error(v.message || "no answer");
    model.sessions = new Map(v.data.value.map((s) => [s.id, s]));
  },
};

let changed = () => {};
export function onChange(f) { changed = f; }

// Answers that are out of date are asked for again, soon, and not too often.
const stale = new Set();
let asking = false;
const pause = 300, again = 2000;

function outdate(...names) {
  for (const n of names) stale.add(n);
  if (!asking) {
    asking = true;
    setTimeout(refresh, pause);
  }
}

async function refresh() {
  const names = [...stale];
  stale.clear();
  await Promise.all(names.map(async (name) => {
    try {
      questions[name](await ask(name));
      model.errors.delete(name);
    } catch (e) {
      model.errors.set(name, e.message);
    }
    model.unasked.delete(name);
  }));
  changed();
  setTimeout(() => {
    asking = false;
    if (stale.size) outdate();
  }, again);
}

function keep(list, item, most) {
  list.push(item);
  if (list.length > most) list.splice(0, list.length - most);
}

// connection takes in how the stream is.
export function connection(state) {
  if (!state.live && model.link.live) note("the connection was lost: " + state.why);
  model.link = { since: model.link.live === state.live ? model.link.since : Date.now(), ...state };
  changed();
}

function note(text) {
  keep(model.log, { event: "note", at: new Date(Date.now()).toISOString(), reason: text }, mostLog);
}

// heard takes in what happened.
export function heard(list) {
  for (const e of list) take(e);
  changed();
}

function take(e) {
  switch (e.event) {
    case "history":
      model.minutes = e.minutes;
      model.since = e.since;
      model.calls = e.calls;
      model.failures = e.failures;
      return;
    case "tick":
      if (e.status) model.status = e.status;
      if (e.breakers) model.breakers = e.breakers;
      minute(e.minute);
      return;
    case "ready":
      outdate(...Object.keys(questions));
      return;
    case "lost":
      outdate(...Object.keys(questions));
      note("some of what happened was not told");
      return;
    case "tool":
      outdate("tools");
      break;
    case "approval":
      outdate("approvals");
      break;
    case "discovery":
      outdate("identities");
      break;
  }
  if (e.event !== "output") keep(model.log, e, mostLog);
  if (e.session) inSession(e);
}

// inSession follows a session, as far as events tell of it.
function inSession(e) {
  if (e.event === "state" && (e.state === "closing" || e.state === "closed")) {
    model.sessions.delete(e.session);
    return;
  }
  let s = model.sessions.get(e.session);
  if (!s) {
    s = { id: e.session, name: "", owner: e.owner, state: "active", used: e.at, running: [], recent: [], telemetry: { calls: 0 } };
    model.sessions.set(e.session, s);
    outdate("sessions"); // its name is not known
  }
  const x = s.running.find((r) => r.execution === e.execution);
  switch (e.event) {
    case "state": s.state = e.state; break;
    case "settings": s.name = e.name || ""; break;
    case "queue": s.queued = e.queued || 0; break;
    case "begin":
      s.used = e.at;
      s.state = "active";
      if (!x) s.running.push({ execution: e.execution, tool: e.tool, kind: e.kind, job: e.job, started: e.at, last_line: "" });
      break;
    case "attempt": if (x) { x.attempts = e.attempt; x.mutating = e.mutating; } break;
    case "output": if (x && e.last_line) x.last_line = e.last_line; break;
    case "end": ended(s, e); break;
  }
}

function ended(s, e) {
  s.used = e.at;
  if (model.status) model.status.calls++;
  if (s.running.some((r) => r.execution === e.execution)) {
    s.running = s.running.filter((r) => r.execution !== e.execution);
    s.telemetry.calls++;
  }
  // What the daemon told of the last hour may have it already.
  if (model.calls.some((c) => c.execution === e.execution && c.session === e.session && c.at === e.at)) return;
  keep(model.calls, e, mostCalls);
  if (serious.has(e.code)) keep(model.failures, e, mostFailures);
  if (e.code === "STORE_UNAVAILABLE") outdate("reliability", "tools");
  if (e.code === "TOOL_BROKEN") outdate("tools");
}

function minute(m) {
  if (!m) return;
  const at = model.minutes.findIndex((o) => o.at === m.at);
  if (at >= 0) model.minutes[at] = m;
  else model.minutes.push(m);
  const oldest = Date.now() - hour;
  model.minutes = model.minutes.filter((o) => Date.parse(o.at) > oldest);
}

// running are the calls that run, the oldest first.
export function running() {
  const list = [];
  for (const s of model.sessions.values()) for (const x of s.running) list.push({ session: s, ...x });
  return list.sort((a, b) => Date.parse(a.started) - Date.parse(b.started));
}

// kindOf says how a call ended: ok, its own exit code, refused, or failed.
export function kindOf(e) {
  if (serious.has(e.code)) return "bad";
  if (e.code) return "warn";
  return e.exit_code ? "own" : "ok";
}

export function pending() { return model.approvals.filter((a) => a.state === "pending"); }

// problems are what is wrong now, the worst first: level, what, why, and where to look or what to do.
export function problems() {
  const list = [];
  const add = (level, what, why, more) => list.push({ level, what, why, ...more });
  const st = model.status || {};
  if (st.config_error) add("bad", "The configuration was not reloaded", st.config_error, { run: "toolctl doctor" });
  if (st.upgrade_error) add("bad", "The last upgrade failed", st.upgrade_error);
  if (model.reliability?.store_error) add("bad", "The store of records does not answer", model.reliability.store_error, { run: "toolctl reliability status" });
  for (const t of model.tools) {
    if (t.state === "ok" || t.state === "updating" || t.state === "loading") continue;
    add(t.state === "broken" || t.state === "refusing" ? "bad" : "warn", ["Tool ", t.name, " is " + t.state], t.reason, { href: "#/tool/" + encodeURIComponent(t.name), key: "tool " + t.name });
  }
  for (const b of model.breakers) {
    if (b.state === "closed" || b.shadow) continue;
    add(b.state === "open" ? "bad" : "warn", ["The breaker of ", b.tool, b.state === "open" ? " refuses calls" : " tries one call"], b.retry_after_ms ? `for another ${Math.ceil(b.retry_after_ms / 1000)} s` : "",
      { run: ["toolctl", "circuit-breaker", "reset", b.tool], key: "breaker " + b.tool + " " + b.identity });
  }
  for (const f of (st.exposed || [])) add("bad", "Others can read or write secrets", f, { run: ["chmod", "600", f] });
  for (const l of (st.linked || [])) add(l.refused ? "bad" : "warn", "A file of the daemon has a second name", l.path);
  for (const l of (st.lost || [])) add("warn", "Confinement is not whole", l, { run: "toolctl doctor" });
  const failed = new Map();
  for (const e of model.failures) {
    if (Date.now() - Date.parse(e.at) > recently) continue;
    const k = e.tool + " " + e.code;
    failed.set(k, { n: (failed.get(k)?.n || 0) + 1, e });
  }
  for (const [k, { n, e }] of failed) {
    add(e.code === "TIMEOUT" ? "warn" : "bad", [n > 1 ? `${n} calls of ` : "A call of ", e.tool, " ended with " + e.code], "", { at: e.at, href: callLink(e), key: "failed " + k });
  }
  for (const [name, why] of model.errors) add("warn", "The page could not ask for " + name, why);
  return list.sort((a, b) => (a.level === "bad" ? 0 : 1) - (b.level === "bad" ? 0 : 1));
}

export function callLink(e) {
  return "#/call/" + encodeURIComponent(e.execution) + "/" + encodeURIComponent(e.at || e.started || "");
}
