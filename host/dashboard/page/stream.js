// The daemon's answers, and the stream of what happens. Nothing here knows the page.

const key = "toold token";

// takeToken keeps the token of the address for as long as the tab is open, and takes
// it out of the address: that is shown, kept and copied.
export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem(key, given);
    history.replaceState(null, "", location.pathname + "#/");
    hurry();
  }
}

// hurry ends a pause between two tries.
let hurry = () => {};

function get(path, signal) {
  const token = sessionStorage.getItem(key);
  return fetch("api/" + path, {
    headers: token ? { Authorization: "Bearer " + token } : {},
    credentials: "omit", cache: "no-store", redirect: "error", signal,
  });
}

// Refused is an answer that is an error.
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function refusal(answer) {
  let text = answer.statusText;
  try {
    text = (await answer.json()).error || text;
  } catch { /* it is no JSON */ }
  return new Refused(answer.status, text);
}

// ask answers a question, as JSON.
export async function ask(path) {
  const answer = await get(path);
  if (!answer.ok) throw await refusal(answer);
  return answer.json();
}

// silence is how long the daemon may say nothing: it says something every ten seconds.
const silence = 30_000;

// follow calls heard with lists of what happens, for as long as the page is open, and
// state with how the connection is: it begins again where it was cut.
export async function follow(heard, state) {
  for (let failed = 0; ; failed++) {
    const cut = new AbortController();
    let late;
    const wait = () => {
      clearTimeout(late);
      late = setTimeout(() => cut.abort(new Error("nothing is heard from it")), silence);
    };
    try {
      wait();
      const answer = await get("live", cut.signal);
      if (!answer.ok) throw await refusal(answer);
      failed = 0;
      state({ live: true });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ;) {
        const { value, done } = await reader.read();
        if (done) break;
        wait();
        const lines = (rest + value).split("\n");
        rest = lines.pop();
        heard(lines.filter(Boolean).map((line) => JSON.parse(line)));
      }
      state({ live: false, why: "the daemon ended the stream" });
    } catch (e) {
      state({ live: false, why: e.message, status: e.status });
    } finally {
      clearTimeout(late);
      cut.abort();
    }
    await new Promise((go) => {
      hurry = go;
      setTimeout(go, Math.min(500 * 2 ** Math.min(failed, 5), 10_000));
    });
  }
}
