// Handler is the tool "interview": it asks, and waits for what the caller
// answers.
import { Call, Outcome, bytes, emit, onHandle, recv, text } from "../../pdk/assemblyscript/assembly/index";

export function handle(): i32 { return onHandle(interview); }

/** The next line of the caller's input, however it was cut into pieces; null at its end. */
let rest = "";
function line(): string | null {
  while (!rest.includes("\n")) {
    const got = recv();
    if (got.error.length) throw new Error(got.error);
    const data = got.data;
    if (data == null) {
      if (!rest.length) return null;
      rest += "\n";
      break;
    }
    rest += text(data);
  }
  const end = rest.indexOf("\n");
  const first = rest.substring(0, end);
  rest = rest.substring(end + 1);
  return first;
}

function interview(c: Call): Outcome {
  const questions = ["What is your name?", "What is your quest?"];
  const answers: string[] = [];
  for (let i = 0; i < questions.length; i++) {
    if (emit("stdout", bytes(questions[i] + "\n")).length) return new Outcome();
    const answer = line();
    if (answer == null) return Outcome.fails("NO_ANSWER", "the caller said nothing to: " + questions[i]);
    answers.push(answer);
  }
  return Outcome.text("Go on, " + answers[0] + ", and " + answers[1] + ".\n");
}
