// componentize-js 0.23.0
export const time = {
  getCurrentTime() { return new Date(0).toISOString(); },
  format(ms, names) { return { text: new Date(Number(ms)).toISOString(), count: names.length, first: names[0] ?? null }; },
  fail(text) { throw text; },
};
