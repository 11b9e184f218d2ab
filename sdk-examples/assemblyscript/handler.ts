// Handler is the tool "greet": it greets whom it is told to.
import { Call, Outcome, config, isText, member, onHandle, quote, textOf } from "../../pdk/assemblyscript/assembly/index";

export function handle(): i32 { return onHandle(greet); }

function greet(c: Call): Outcome {
  let who = c.args.join(" ");
  if (c.payload.length) {
    // A program asks with a payload instead of arguments.
    const name = member(c.payload, "name");
    if (name.length && !isText(name)) return Outcome.failed("name must be text");
    who = textOf(name);
  }
  if (!who.length) who = "world";
  if (who == "nobody") return Outcome.fails("NOBODY", "there is nobody to greet");
  const text = config("greeting") + ", " + who + "!";
  const r = Outcome.text(text + "\n");
  r.data = '{"greeting":' + quote(text) + "}";
  return r;
}
