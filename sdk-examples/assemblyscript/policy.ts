// Policy decides what "greet" may be asked.
import { Call, Decision, onRestrict } from "../../pdk/assemblyscript/assembly/index";

export function restrict(): i32 { return onRestrict(policy); }

function policy(c: Call): Decision {
  const args: string[] = [];
  for (let i = 0; i < c.args.length; i++) {
    const arg = c.args[i];
    if (arg.startsWith("-")) return Decision.deny("greet.flag", "greet has no flag " + arg, "leave it out");
    if (arg.includes("\n") || arg.includes("\r")) return Decision.deny("greet.line", "a name has one line", "greet one after the other");
    args.push(arg.trim());
  }
  const d = Decision.allow();
  d.args = args; // what the policy returns is what runs
  return d;
}
