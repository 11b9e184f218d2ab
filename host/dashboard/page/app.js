// The page: views by the fragment of the address, drawn again when something changed.

import { ask, follow, takeToken } from "./stream.js";
import { callLink, connection, heard, kindOf, model, onChange, pending, problems, recently, running } from "./model.js";
import { h, patch, plain, said } from "./dom.js";

const main = document.getElementById("main");

// --- words -------------------------------------------------------------------------

function clock(at, whole) {
  const d = new Date(at);
  if (Number.isNaN(d.getTime())) return "";
  const time = d.toLocaleTimeString([], { hour12: false });
  return whole || Math.abs(Date.now() - d.getTime()) > 12 * 3_600_000 ? d.toLocaleDateString() + " " + time : time;
}

function took(ms) {
  if (!(ms >= 0)) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 100_000) return `${(ms / 1000).toFixed(1)} s`;
  const m = Math.floor(ms / 60_000);
  return m < 120 ? `${m} min` : m < 2880 ? `${Math.floor(m / 60)} h` : `${Math.floor(m / 1440)} days`;
}

function many(n) {
  for (const [at, unit] of [[1e9, " G"], [1e6, " M"], [1e4, " k"]]) if (n >= at) return (n / (at === 1e4 ? 1e3 : at)).toFixed(1) + unit;
  return String(n ?? 0);
}

function bytes(n) {
  for (const [at, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) if (n >= at) return (n / at).toFixed(1) + " " + unit;
  return (n ?? 0) + " B";
}

function time(at, whole) { return at ? h("time", { datetime: at }, clock(at, whole)) : ""; }

const marks = { bad: "✕", warn: "!", ok: "✓", own: "✓" };

function outcome(e) {
  const kind = kindOf(e);
  return h("span", { class: kind }, h("span", { class: "mark", "aria-hidden": "true" }, marks[kind]), " ", e.code || (e.exit_code ? `exit ${e.exit_code}` : "ok"));
}

// command is what to type. Words of others are quoted, and not shown as something to
// type where they hold what is not seen.
function command(words) {
  if (!words) return null;
  const text = typeof words === "string" ? words : words.map((w) => /^[\w@%+=:,./-]+$/.test(w) ? w : "'" + w.replaceAll("'", "'\\''") + "'").join(" ");
  return plain(text, 2000) === text ? h("code", { class: "run" }, text) : null;
}

function sessionName(s) {
  return s.name || (s.default ? "default" : "") || s.id;
}

function sessionLink(id) {
  if (!id) return "";
  const s = model.sessions.get(id);
  return h("a", { href: "#/session/" + encodeURIComponent(id) }, said(s ? sessionName(s) : id, 40));
}

function toolLink(name) {
  return h("a", { href: "#/tool/" + encodeURIComponent(name) }, said(name, 60));
}

// --- parts -------------------------------------------------------------------------

// table makes one of columns: title, what a row has in it, and a class.
function table(caption, columns, list, keyOf, none) {
  if (!list.length) return h("p", { class: "none" }, none);
  return h("table", null,
    h("caption", { class: "unseen" }, caption),
    h("thead", null, h("tr", null, columns.map(([title, , cls]) => h("th", { scope: "col", class: cls }, title)))),
    h("tbody", null, list.map((item) => h("tr", { "data-key": keyOf(item) }, columns.map(([, cell, cls], i) =>
      h(i ? "td" : "th", { scope: i ? null : "row", class: cls }, cell(item)))))));
}

function section(title, ...content) {
  const id = "s-" + title.toLowerCase().replaceAll(/\W+/g, "-");
  return h("section", { "aria-labelledby": id, "data-key": id }, h("h3", { id }, title), content);
}

function view(title, ...content) {
  return [h("h2", { id: "view", tabindex: "-1", "data-key": "view" }, title), content];
}

// facts is a list of names and values, without those that are empty.
function facts(rows) {
  return h("dl", null, rows.filter(([, v]) => v !== undefined && v !== null && v !== "" && !(Array.isArray(v) && !v.length)).map(([k, v]) =>
    h("div", { "data-key": k }, h("dt", null, k), h("dd", null, v))));
}

function lines(list, most = 100) {
  return h("ul", { class: "plain" }, list.slice(0, most).map((v) => h("li", null, said(v, 2000))), list.length > most && h("li", null, `and ${list.length - most} more`));
}

function json(v) {
  return h("pre", { tabindex: "0" }, JSON.stringify(v, null, 1).split("\n").map((l) => plain(l, 2000)).join("\n"));
}

// --- the views ---------------------------------------------------------------------

function now() {
  const wrong = problems(), waits = pending(), runs = running();
  const link = model.link;
  const bad = wrong.filter((p) => p.level === "bad").length;
  let level = "ok", text = "Nothing is wrong";
  if (!link.live) [level, text] = ["bad", link.status === 401 ? "This page may not look" : "Not connected"];
  else if (!model.status || model.unasked.size) [level, text] = ["own", "Asking the daemon"];
  else if (bad) [level, text] = ["bad", wrong.length === 1 ? "Something is wrong" : `${wrong.length} things are wrong`];
  else if (wrong.length) [level, text] = ["warn", wrong.length === 1 ? "Look at one thing" : `Look at ${wrong.length} things`];
  return [
    h("h2", { id: "view", tabindex: "-1", "data-key": "view", class: "head " + level }, text,
      waits.length ? h("small", null, waits.length === 1 ? "one call waits for an approval" : `${waits.length} calls wait for an approval`) : ""),
    !link.live && h("div", { class: "problem bad", "data-key": "cut" }, away(link)),
    wrong.length > 0 && h("ul", { class: "problems", "data-key": "problems", "aria-label": "What is wrong" }, wrong.slice(0, 30).map((p) =>
      h("li", { class: "problem " + p.level, "data-key": p.key || String(p.what) + p.why },
        h("strong", null, h("span", { class: "mark", "aria-hidden": "true" }, marks[p.level]), " ", words(p.what)), " ",
        p.at && ["last at ", time(p.at), " "], p.why && h("span", { class: "why" }, said(p.why, 400)), " ",
        p.href && h("a", { href: p.href }, "Look"), " ", command(p.run)))),
    waits.length > 0 && approvals(waits),
    section("Running", table("Calls that run", [
      ["Tool", (x) => [toolLink(x.tool), x.last_line && h("span", { class: "line" }, said(x.last_line, 160))]],
      ["For", (x) => h("a", { href: callLink({ execution: x.execution, at: x.started }) }, took(Date.now() - Date.parse(x.started))), "num"],
      ["Session", (x) => sessionLink(x.session.id), "wide"],
      ["What", (x) => [x.job ? "job" : x.kind, x.mutating ? ", changes things" : "", x.attempts > 1 ? `, attempt ${x.attempts}` : ""], "wide"],
      ["Stop it", (x) => command(["toolctl", "session", "abort", x.session.id, "--execution", x.execution, "--all"]), "wider"],
    ], runs, (x) => x.session.id + " " + x.execution, "No call runs.")),
    section("Last hour", charts()),
    section("Last calls", calls(model.calls.slice(-12).reverse()), h("p", { class: "more" }, h("a", { href: "#/calls" }, "All that are kept"))),
  ];
}

function away(link) {
  if (link.status === 401) {
    return [h("strong", null, "The token is missing, or of a daemon that has ended since. "), "Open the address that this prints: ", command("toolctl dashboard")];
  }
  return [h("strong", null, "What is shown may be old. "), "It was cut off ", link.since ? ["at ", time(new Date(link.since).toISOString())] : "", ", and is tried again. ",
    link.why && ["(", said(link.why, 200), ") "], command("toolctl check-instances")];
}

function words(list) {
  return [list].flat().map((w, i) => i % 2 ? said(w, 80) : w);
}

function approvals(list) {
  return section("Waiting for an approval", table("Calls that wait for an approval", [
    ["Tool", (a) => [h("a", { href: "#/approval/" + encodeURIComponent(a.id) }, said(a.steps.map((s) => s.tool).join(", "), 80)), a.text && h("span", { class: "line" }, said(a.text, 160))]],
    ["Until", (a) => time(a.expires), "num"],
    ["Who asks", (a) => said(a.asker_name || a.asker, 40), "wide"],
    ["Session", (a) => sessionLink(a.session), "wide"],
    ["Decide", (a) => command(["toolctl", "approvals", "show", a.id]), "wider"],
  ], list, (a) => a.id, ""));
}

function calls(list) {
  return table("Calls that ended, the last first", [
    ["Tool", (e) => h("a", { href: callLink(e) }, said(e.tool, 60))],
    ["Outcome", outcome],
    ["At", (e) => time(e.at), "num"],
    ["Took", (e) => took(e.duration_ms || 0), "num"],
    ["Session", (e) => sessionLink(e.session), "wide"],
    ["What", (e) => [e.job ? "job" : e.kind, e.mutating ? ", changes things" : "", e.attempts > 1 ? `, ${e.attempts} attempts` : ""], "wide"],
    ["Fuel", (e) => e.fuel ? many(e.fuel) : "", "num wider"],
  ], list, (e) => e.session + " " + e.execution + " " + e.at, "None since the daemon began to keep them, " + clock(model.since) + ".");
}

// charts are the last hour by minutes.
function charts() {
  const last = new Date(Math.floor(Date.now() / 60_000) * 60_000).getTime();
  const by = new Map(model.minutes.map((m) => [Date.parse(m.at), m]));
  const list = [...Array(60).keys()].map((i) => by.get(last - (59 - i) * 60_000) || { at: new Date(last - (59 - i) * 60_000).toISOString(), calls: 0, failed: 0, refused: 0, p50: 0, p95: 0, max: 0, fuel: 0 });
  const chart = (title, unit, parts) => {
    const top = Math.max(...list.map((m) => parts.reduce((n, [, v, over]) => over ? Math.max(n, v(m)) : n + v(m), 0)), 1);
    const bars = list.map((m, i) => {
      let base = 0;
      return parts.map(([cls, v, over]) => {
        const size = 60 * v(m) / top, y = over ? 60 - size : 60 - base - size;
        base += size;
        return v(m) > 0 && h("rect", { class: cls, x: i * 10 + 1, y: y.toFixed(2), width: 8, height: Math.max(size, 0.8).toFixed(2) });
      });
    });
    return h("figure", { "data-key": title },
      h("figcaption", null, title, h("span", { class: "num" }, "at most " + unit(top))),
      h("svg", { viewBox: "0 0 600 60", preserveAspectRatio: "none", role: "img", "aria-label": `${title} in the last hour: at most ${unit(top)}; the table below has the numbers` },
        h("line", { x1: 0, x2: 600, y1: 60, y2: 60 }), bars));
  };
  const some = list.filter((m) => m.calls).reverse();
  if (!some.length) return h("p", { class: "none" }, "No call has ended.");
  return [
    h("div", { class: "charts", "data-key": "charts" },
      chart("Calls a minute", many, [["ok", (m) => m.calls - m.failed - m.refused], ["warn", (m) => m.refused], ["bad", (m) => m.failed]]),
      chart("Time of calls", took, [["p95", (m) => m.p95, true], ["p50", (m) => m.p50, true]]),
      chart("Fuel a minute", many, [["fuel", (m) => m.fuel]])),
    h("p", { class: "legend", "data-key": "legend" }, [["ok", "ended well, or with a code of its own"], ["warn", "refused"], ["bad", "failed"], ["p50", "half of the calls took less"], ["p95", "95 of 100 did"]].map(([cls, text]) =>
      h("span", null, h("span", { class: cls, "aria-hidden": "true" }, "■"), " ", text))),
    h("details", { "data-key": "numbers" }, h("summary", null, "The numbers"), table("The last hour by minutes", [
      ["Minute", (m) => time(m.at)], ["Calls", (m) => m.calls, "num"], ["Failed", (m) => m.failed, "num"], ["Refused", (m) => m.refused, "num"],
      ["Half within", (m) => took(m.p50), "num"], ["95 % within", (m) => took(m.p95), "num"], ["Longest", (m) => took(m.max), "num wide"], ["Fuel", (m) => many(m.fuel), "num wide"],
    ], some, (m) => m.at, "No call has ended.")),
  ];
}

let wanted = "";
function callsView() {
  const list = model.calls.slice().reverse().filter((e) => !wanted || [e.tool, e.code, e.status, e.session, e.execution].some((v) => v && v.toLowerCase().includes(wanted)));
  return view("Calls",
    h("p", { "data-key": "filter" }, h("label", { for: "filter" }, "With "), h("input", { id: "filter", type: "search", placeholder: "a tool, code, session or id", autocomplete: "off", spellcheck: "false" })),
    h("p", { class: "none", "data-key": "how" }, `The last ${model.calls.length} that ended. All of them: `, command("toolctl audit log")),
    calls(list));
}

function sessionsView() {
  const list = [...model.sessions.values()].sort((a, b) => Date.parse(b.used) - Date.parse(a.used));
  return view("Sessions", table("Sessions, the last used first", [
    ["Session", (s) => h("a", { href: "#/session/" + encodeURIComponent(s.id) }, said(sessionName(s), 60))],
    ["State", (s) => s.state],
    ["Running", (s) => s.running.length || "", "num"],
    ["Used", (s) => time(s.used), "num"],
    ["Calls", (s) => s.telemetry?.calls ?? "", "num wide"],
    ["Folder", (s) => said(s.cwd, 60), "wide"],
    ["Owner", (s) => said(s.owner, 24), "wider"],
  ], list.slice(0, 500), (s) => s.id, "There is none yet: every caller has one from its first call."), list.length > 500 && h("p", null, `and ${list.length - 500} more`));
}

function toolsView() {
  return view("Tools",
    table("Tools", [
      ["Tool", (t) => [toolLink(t.name), t.state !== "ok" && t.reason && h("span", { class: "line" }, said(t.reason, 240))]],
      ["State", (t) => toolState(t)],
      ["Version", (t) => h("code", null, plain(t.version, 8).replace("…", "")), "num"],
      ["Since", (t) => time(t.loaded), "num wide"],
      ["Runs", (t) => t.kind || "", "wide"],
      ["Policies", (t) => (t.policies || []).length || "none", "num wide"],
      ["Confinement", (t) => t.confinement || "", "wider"],
    ], model.tools, (t) => t.name, "There is no tool in the folder."),
    section("Breakers", table("Circuit breakers", [
      ["Tool", (b) => toolLink(b.tool)],
      ["State", (b) => h("span", { class: b.state === "closed" || b.shadow ? "ok" : b.state === "open" ? "bad" : "warn" }, b.state.replace("_", " "), b.shadow ? ", counts only" : "")],
      ["Failed", (b) => b.state === "closed" ? `${b.failed} of ${b.counted}` : "", "num"],
      ["Identity", (b) => said(b.identity || "all", 24), "wide"],
      ["Reset", (b) => b.state === "closed" ? "" : command(["toolctl", "circuit-breaker", "reset", b.tool]), "wider"],
    ], model.breakers, (b) => b.tool + " " + b.identity, "No breaker has counted anything.")));
}

function toolState(t) {
  const cls = { ok: "ok", updating: "ok", loading: "ok", broken: "bad", refusing: "bad" }[t.state] || "warn";
  return h("span", { class: cls }, h("span", { class: "mark", "aria-hidden": "true" }, marks[cls]), " ", plain(t.state, 20));
}

function identitiesView() {
  return view("Identities", table("Identities for which modules have listed tools", [
    ["Tool", (i) => toolLink(i.tool)],
    ["State", (i) => [h("span", { class: { fresh: "ok", empty: "ok", old: "ok", stale: "warn", refused: "bad" }[i.state] || "warn" }, i.state), i.reason && h("span", { class: "line" }, said(i.reason, 160))]],
    ["Tools", (i) => i.tools, "num"],
    ["Used", (i) => time(i.used), "num"],
    ["Identity", (i) => h("code", null, plain(i.fingerprint, 16)), "wide"],
    ["Claims", (i) => said(Object.entries(i.claims || {}).map(([k, v]) => k + "=" + v).join(", "), 80), "wide"],
    ["May", (i) => i.read_only ? "only read" : "", "wider"],
  ], model.identities, (i) => i.fingerprint, "No module lists tools for identities. Who called is in each call and session."),
  section("Who calls", table("Owners of sessions", [
    ["Owner", (o) => said(o.owner, 60)], ["Sessions", (o) => o.n, "num"], ["Running", (o) => o.running, "num"], ["Used", (o) => time(o.used), "num"],
  ], owners(), (o) => o.owner, "Nobody has called.")));
}

function owners() {
  const by = new Map();
  for (const s of model.sessions.values()) {
    const o = by.get(s.owner) || { owner: s.owner, n: 0, running: 0, used: "" };
    o.n++;
    o.running += s.running.length;
    if (Date.parse(s.used) > (Date.parse(o.used) || 0)) o.used = s.used;
    by.set(s.owner, o);
  }
  return [...by.values()].sort((a, b) => Date.parse(b.used) - Date.parse(a.used));
}

// --- one thing ---------------------------------------------------------------------

// details are answers about the one thing that is shown, by path.
const details = { path: "", value: null, error: "" };

function detail(path) {
  if (details.path !== path) {
    Object.assign(details, { path, value: null, error: "" });
    ask(path).then((value) => details.path === path && Object.assign(details, { value }), (e) => details.path === path && Object.assign(details, { error: e.message })).then(draw);
  }
  return details;
}

function waiting(d) {
  return d.error ? h("p", { class: "warn" }, said(d.error, 500)) : !d.value && h("p", { class: "none" }, "Asking the daemon.");
}

function back(href, text) {
  return h("p", { class: "back", "data-key": "back" }, h("a", { href }, "‹ " + text));
}

function callView(id, at) {
  const e = model.calls.find((c) => c.execution === id && (!at || c.at === at)) || model.failures.find((c) => c.execution === id);
  const x = running().find((r) => r.execution === id);
  const d = detail("calls/" + encodeURIComponent(id) + "?at=" + encodeURIComponent(at) + (x ? "" : "#ended"));
  const list = d.value || [];
  return [back("#/calls", "Calls"), view(["Call ", said(id, 80)],
    x && h("p", { class: "problem own" }, `It runs, for ${took(Date.now() - Date.parse(x.started))}. `, command(["toolctl", "session", "abort", x.session.id, "--execution", id, "--all"])),
    !list.length && e && facts([["Tool", toolLink(e.tool)], ["Outcome", outcome(e)], ["Took", took(e.duration_ms || 0)], ["Session", sessionLink(e.session)]]),
    waiting(d), list.map((c) => oneCall(c)),
    h("p", { class: "none" }, "In a terminal: ", command(["toolctl", "audit", "show", id]), " ", command(["toolctl", "result", id])))];
}

function oneCall(c) {
  const q = c.call, end = c.end, who = q.identity || {}, runs = q.runs || {};
  const caller = [who.subject, who.issuer && "of " + who.issuer, "uid " + who.uid, who.pid && "process " + who.pid, who.read_only && "may only read"].filter(Boolean).join(", ");
  return h("article", { "data-key": String(c.n) },
    section("Outcome", facts([
      ["Ended", end ? outcome({ ...end }) : "it runs, or was cut off with its daemon"],
      ["Message", end?.message && said(end.message, 2000)],
      ["Code of the tool", end?.tool_code && said(end.tool_code)],
      ["Took", end && took(end.duration_ms)], ["Began", time(c.at, true)],
      ["Attempts", end?.attempts > 1 ? end.attempts : ""],
      ["Bytes", end && (end.bytes_in || end.bytes_out) ? `${bytes(end.bytes_in)} in, ${bytes(end.bytes_out)} out` : ""],
      ["From", end?.from_cache ? "the record of an earlier call with its key" : ""],
      ["Programs", end?.programs && lines(end.programs.map((p) => p.path + (p.refused ? ": refused, " + p.refused : "") + (p.times > 1 ? ` ×${p.times}` : "")))],
      ["Connections", end?.connections && lines(end.connections.map((k) => k.host + (k.refused ? ": refused, " + k.refused : "") + (k.failed ? ": failed, " + k.failed : "") + (k.rule ? " by rule " + k.rule : "")))],
    ])),
    section("Call", facts([
      ["Tool", [toolLink(q.source || q.tool), q.source ? [" as ", said(q.tool)] : "", q.version ? [" ", h("code", null, plain(q.version, 16))] : ""]],
      ["Arguments", q.args?.length ? lines(q.args.map((a) => JSON.stringify(a))) : ""],
      ["Payload", q.payload && json(q.payload)], ["Withheld", q.withheld && said(q.withheld)],
      ["Folder", said(q.cwd, 400)], ["Key", said(q.key)], ["Session", sessionLink(q.session)],
      ["Caller", said(caller, 400)], ["Claims", Object.keys(who.claims || {}).length ? json(who.claims) : ""],
      ["Socket", q.socket && said(q.socket)], ["Parent", q.parent && said(q.parent)],
      ["Trace", said(q.trace || q.trace_id)],
    ])),
    section("Decision", facts([
      ["Effect", h("span", { class: { allow: "ok", deny: "warn", ask: "warn", error: "bad" }[q.effect] }, plain(q.effect, 20))],
      ["Rule", said(q.rule)],
      ["Policies", q.asked?.length ? h("ul", { class: "plain" }, q.asked.map((a) => h("li", null, said(a.file), a.sha256 && [" ", h("code", null, plain(a.sha256, 12))],
        a.error && h("span", { class: "bad" }, " ", said(a.error, 500)), a.decision && json(a.decision),
        a.input && h("details", null, h("summary", null, "What it was asked"), json(a.input))))) : "none was asked"],
      ["Changed", runs.changed?.join(", ")], ["Runs with", runs.args ? lines(runs.args.map((a) => JSON.stringify(a))) : ""],
      ["Changes things", q.runs ? (runs.mutating ? "yes" : "no") : ""],
      ["Approval", runs.approval && h("a", { href: "#/approval/" + encodeURIComponent(runs.approval) }, said(runs.approval))],
      ["Configuration", q.config && h("code", null, plain(q.config, 16))],
    ])));
}

function sessionView(id) {
  const s = model.sessions.get(id);
  const log = model.log.filter((e) => e.session === id || e.event === "note").slice(-100).reverse();
  return [back("#/sessions", "Sessions"), view(["Session ", said(s ? sessionName(s) : id, 80)],
    !s && h("p", { class: "warn" }, "It was closed, or there was none."),
    s && facts([
      ["Id", said(s.id)], ["State", s.state], ["Owner", said(s.owner)], ["Folder", s.cwd && said(s.cwd, 400)], ["Made", time(s.created, true)], ["Used", time(s.used, true)],
      ["Labels", Object.keys(s.labels || {}).length ? said(Object.entries(s.labels).map(([k, v]) => k + "=" + v).join(", "), 400) : ""],
      ["Waiting turns", s.queued || ""],
      ["Callers", (s.peers || []).length ? lines(s.peers.map((p) => [p.pid && "process " + p.pid, p.container && "container " + p.container.slice(0, 12), p.socket].filter(Boolean).join(", "))) : ""],
      ["Calls", s.telemetry?.calls], ["Fuel", s.telemetry?.fuel ? many(s.telemetry.fuel) : ""],
    ]),
    s && section("Running here", table("Calls that run in it", [
      ["Tool", (x) => [h("a", { href: callLink({ execution: x.execution, at: x.started }) }, said(x.tool, 60)), x.last_line && h("span", { class: "line" }, said(x.last_line, 160))]],
      ["For", (x) => took(Date.now() - Date.parse(x.started)), "num"],
    ], s.running, (x) => x.execution, "No call runs.")),
    section("What happened", h("ol", { class: "log", reversed: true }, log.map((e) => h("li", { "data-key": e.cursor || e.at + e.event }, time(e.at), " ", eventWords(e)))),
      !log.length && h("p", { class: "none" }, "Nothing since this page was opened.")),
    s && section("Its last calls", table("Calls of the session", [
      ["Tool", (e) => h("a", { href: callLink({ execution: e.execution, at: e.at || new Date(Date.parse(e.started) + (e.duration_ms || 0)).toISOString() }) }, said(e.tool, 60))],
      ["Outcome", outcome], ["Took", (e) => took(e.duration_ms || 0), "num"],
    ], (s.recent || []).slice(-20).reverse(), (e) => e.execution + e.started, "None.")))];
}

function eventWords(e) {
  const tool = e.tool ? [said(e.tool, 60), " "] : "";
  switch (e.event) {
    case "begin": return [tool, "begins"];
    case "attempt": return [tool, `attempt ${e.attempt}`];
    case "end": return [h("a", { href: callLink(e) }, said(e.tool, 60)), " ", outcome(e), " in ", took(e.duration_ms || 0)];
    case "steer": return [tool, `is written ${e.bytes || 0} bytes`, e.eof ? " and the end" : ""];
    case "state": return ["the session is ", e.state];
    case "settings": return ["its settings are changed"];
    case "queue": return `${e.queued || 0} turns wait`;
    case "job": return [tool, "job ", e.state];
    case "approval": return [tool, h("a", { href: "#/approval/" + encodeURIComponent(e.approval) }, "approval"), " ", e.state];
    case "discovery": return [tool, "is asked for its tools ", e.code || ""];
    default: return [tool, e.event, " ", said(e.reason || e.change || "", 200)];
  }
}

function toolView(name) {
  const t = model.tools.find((o) => o.name === name);
  const d = detail("tools/" + encodeURIComponent(name) + "#" + (t?.version || "") + (t?.state || ""));
  const v = d.value || t || {}, r = v.rights || {};
  const rights = [];
  for (const [k, c] of Object.entries(r.capabilities || {})) {
    if (c && (!Array.isArray(c) || c.length)) rights.push([k, Array.isArray(c) && c.every((i) => typeof i === "string") ? lines(c) : typeof c === "object" ? json(c) : String(c)]);
  }
  return [back("#/tools", "Tools"), view(["Tool ", said(name, 80)],
    waiting(d),
    v.name && facts([
      ["State", toolState(v)], ["Why", v.reason && said(v.reason, 2000)], ["Description", v.description && said(v.description, 1000)],
      ["Version", v.version && h("code", null, plain(v.version, 64))], ["In use since", time(v.loaded, true)], ["Category", v.category && said(v.category)],
      ["Calls", v.mutating ? "change things, unless the policy says otherwise" : "only read, unless the policy says otherwise"],
    ]),
    v.name && section("Rights", facts([
      ["Runs", [v.kind || "", " ", said(v.path, 400)]],
      ["Confinement", v.confinement || (v.kind === "binary" ? "none" : "")],
      ["Policies", v.policies?.length ? lines(v.policies.map((p, i) => p + (v.policy_digests?.[i] ? " " + v.policy_digests[i].slice(0, 12) : ""))) : h("span", { class: "warn" }, "none: whoever reaches the socket may give it any arguments")],
      ...rights, ["Secrets", r.secrets && lines(r.secrets)], ["Variables", r.environment && lines(r.environment)], ["Roots", r.roots && lines(r.roots)], ["User", r.user && said(r.user)],
      ["The caller runs", r.callbacks && lines(r.callbacks)], ["Terminal", r.terminal && "its own"], ["Events", r.on && lines(r.on)],
      ["Unchecked certificates", v.insecure && h("span", { class: "bad" }, lines(v.insecure))], ["Missing imports", v.missing && lines(v.missing)],
    ])),
    section("Its last calls", calls(model.calls.filter((e) => e.tool === name).slice(-20).reverse())))];
}

function approvalView(id) {
  const a = model.approvals.find((o) => o.id === id);
  const d = detail("approvals/" + encodeURIComponent(id) + "#" + (a?.state || ""));
  const v = d.value;
  return [back("#/", "Now"), view(["Approval ", said(id, 80)], waiting(d),
    v && facts([
      ["State", h("span", { class: v.state === "pending" ? "warn" : "ok" }, plain(v.state, 20))],
      ["The policy says", v.text && said(v.text, 2000)], ["Rule", v.rule && said(v.rule)], ["Who asks", said(v.asker_name || v.asker)], ["Who may decide", v.by && lines(v.by)],
      ["Session", sessionLink(v.session)], ["Made", time(v.made, true)], ["Until", time(v.expires, true)],
      ["Decided", v.decided && [time(v.decided, true), " by ", said(v.decider_name || v.decider), v.reason ? [": ", said(v.reason, 400)] : ""]], ["Outcome", v.outcome && said(v.outcome)],
    ]),
    v?.state === "pending" && h("p", { class: "problem warn" }, "This page decides nothing. Read all of it, then: ", command(["toolctl", "approvals", "approve", v.id]), " ", command(["toolctl", "approvals", "deny", v.id])),
    v?.steps.map((s, i) => section(v.steps.length > 1 ? `Step ${i + 1}` : "What would run", facts([["Tool", toolLink(s.source || s.tool)], ["Version", h("code", null, plain(s.version, 16))]]), s.plan && json(s.plan))))];
}

// --- drawing -----------------------------------------------------------------------

const views = [["", "Now", now], ["calls", "Calls", callsView], ["sessions", "Sessions", sessionsView], ["tools", "Tools", toolsView], ["identities", "Identities", identitiesView]];
const things = { call: [callView, "calls"], session: [sessionView, "sessions"], tool: [toolView, "tools"], approval: [approvalView, ""] };

function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").map((p) => {
    try { return decodeURIComponent(p); } catch { return p; }
  });
  return parts;
}

let shown = null;

// draw draws, or says that it could not: what is shown would else be taken for how things are.
function draw() {
  try {
    drawAll();
  } catch (e) {
    main.replaceChildren(h("p", { class: "problem bad" }, "This page failed to show what it was told; toolctl top shows it in a terminal. ", said(e.message, 200)));
    shown = null;
    throw e;
  }
}

function drawAll() {
  const [name, ...rest] = route();
  const [content, under] = Object.hasOwn(things, name) ? [() => things[name][0](rest[0] ?? "", rest[1] ?? ""), things[name][1]] : [(views.find((v) => v[0] === name) || views[0])[2], name];
  if (shown !== location.hash) main.replaceChildren(); // another thing: nothing of the old one stays
  patch(main, h("main", { id: "main", tabindex: "-1" }, content()));
  patch(document.getElementById("views"), h("nav", { "aria-label": "Views", id: "views" }, h("ul", null, views.map(([v, title]) =>
    h("li", null, h("a", { href: "#/" + v, "aria-current": v === under || (v === "" && !views.some((o) => o[0] === under)) ? "page" : null }, title, count(v)))))));
  const st = model.status;
  patch(document.getElementById("facts"), h("p", { id: "facts" }, st ? [said(st.instance, 64), " · ", said(st.version, 40), " · up ", took(Date.now() - Date.parse(st.started)), " · ", many(st.calls), " calls"] : ""));
  patch(document.getElementById("link"), h("p", { id: "link", role: "status", class: model.link.live ? "ok" : "bad" }, model.link.live ? "live" : model.link.why || model.link.status ? "cut off" : "connecting"));
  const wrong = problems().length + (model.link.live ? 0 : 1);
  document.title = (wrong ? `(${wrong}) ` : "") + "toold" + (st && st.instance !== "0" ? " " + plain(st.instance, 40) : "");
  if (shown !== null && shown !== location.hash) {
    scrollTo(0, 0);
    document.getElementById("view")?.focus({ preventScroll: true });
  }
  shown = location.hash;
}

function count(v) {
  const n = { "": problems().length, tools: model.tools.filter((t) => !["ok", "updating", "loading"].includes(t.state)).length }[v];
  return n ? h("span", { class: "count" }, " ", n) : "";
}

let due = false;
function soon() {
  if (due) return;
  due = true;
  setTimeout(() => { due = false; draw(); }, 100);
}

takeToken();
onChange(soon);
addEventListener("hashchange", () => {
  if (location.hash === "#main") {
    history.replaceState(null, "", shown || "#/");
    main.focus();
    return;
  }
  if (location.hash.includes("token=")) { // the address was opened again in this tab
    takeToken();
  }
  draw();
});
addEventListener("input", (e) => {
  if (e.target.id === "filter") { wanted = e.target.value.trim().toLowerCase(); soon(); }
});
addEventListener("keydown", (e) => {
  if (e.key !== "Escape" || e.target.id === "filter") return;
  const up = document.querySelector(".back a");
  if (up) location.hash = up.getAttribute("href");
});
setInterval(draw, 1000); // how long calls run
draw();
follow(heard, connection);
