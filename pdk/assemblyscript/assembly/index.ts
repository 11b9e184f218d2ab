/**
 * The AssemblyScript SDK for toold guests: policies and tools that run as
 * WebAssembly modules.
 *
 * A guest exports functions that take nothing and answer 0. What they are asked
 * and answer travels as JSON, which onRestrict, onHandle and onDescribe read and
 * write:
 *
 *     import { Call, Decision, onRestrict } from "./toold";
 *
 *     export function restrict(): i32 {
 *       return onRestrict((c: Call): Decision => {
 *         if (c.args.includes("--force"))
 *           return Decision.deny("force", "--force rewrites what others have", "push without it");
 *         return Decision.allow();
 *       });
 *     }
 *
 * It is built by asc with the options "runtime": "stub", since every call begins
 * with the state that the module had when it was loaded: nothing needs freeing,
 * and a global that a call changes is as before in the next. What is to last
 * goes through varSet.
 *
 * A policy fails closed: a call that cannot be read, Decision.failed and a throw
 * are errors of the guest, and a host refuses a call whose policy fails. A throw
 * says its message, file and line.
 */

import { input, output, setError } from "./host";
import { Writer } from "./json";
import { Call, Classification, Decision, Describe, Discovery, Ended, Outcome, Reconcile, Reconciliation, Surface, Wire } from "./types";

export * from "./host";
export * from "./json";
export * from "./types";
import * as base64 from "./base64";
export { base64 };

/** The body of the export restrict. */
export function onRestrict(policy: (c: Call) => Decision): i32 {
  const r = input();
  const c = Call.read(r);
  if (!r.end()) return fail("read call: " + r.wrong);
  const d = policy(c);
  if (d.failure.length) return fail(d.failure);
  const w = new Writer();
  d.write(w);
  output(w);
  return 0;
}

/** The body of the export handle. */
export function onHandle(handler: (c: Call) => Outcome): i32 {
  const r = input();
  const c = Call.read(r);
  if (!r.end()) return fail("read call: " + r.wrong);
  const out = handler(c);
  if (out.failure.length) return fail(out.failure);
  const w = new Writer();
  out.write(w);
  output(w);
  return 0;
}

/** The body of the export describe. */
export function onDescribe(d: Describe): i32 {
  const w = new Writer();
  d.write(w);
  output(w);
  return 0;
}

/** The body of the export discover. */
export function onDiscover(discover: (d: Discovery) => Surface): i32 {
  const r = input();
  const d = Discovery.read(r);
  if (!r.end()) return fail("read discovery: " + r.wrong);
  const s = discover(d);
  if (s.failure.length) return fail(s.failure);
  const w = new Writer();
  s.write(w);
  output(w);
  return 0;
}

/** The body of the export classify. */
export function onClassify(classify: (e: Ended) => Classification): i32 {
  const r = input();
  const e = Ended.read(r);
  if (!r.end()) return fail("read what ended: " + r.wrong);
  const c = classify(e);
  if (c.error.length) return fail(c.error);
  const w = new Writer();
  c.write(w);
  output(w);
  return 0;
}

/** The body of the export reconcile. */
export function onReconcile(reconcile: (q: Reconcile) => Reconciliation): i32 {
  const r = input();
  const q = Reconcile.read(r);
  if (!r.end()) return fail("read reconcile: " + r.wrong);
  const a = reconcile(q);
  if (a.failure.length) return fail(a.failure);
  const w = new Writer();
  a.write(w);
  output(w);
  return 0;
}

/** The body of the export wire: the policy of what the tool's binary sends. */
export function onWire(wire: (w: Wire) => Decision): i32 {
  const r = input();
  const q = Wire.read(r);
  if (!r.end()) return fail("read wire: " + r.wrong);
  const d = wire(q);
  if (d.failure.length) return fail(d.failure);
  const w = new Writer();
  d.write(w);
  output(w);
  return 0;
}

function fail(why: string): i32 {
  setError(why);
  return 1;
}
