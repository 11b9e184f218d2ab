// Elements, made of text only: nothing that the daemon says is ever read as markup.

const svg = "http://www.w3.org/2000/svg";
const drawn = new Set(["svg", "rect", "path", "line", "text", "title", "g"]);

// h makes an element. Children are elements, texts, lists of these, or nothing.
export function h(tag, attributes, ...children) {
  const e = drawn.has(tag) ? document.createElementNS(svg, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on") || name === "style" || name === "srcdoc") throw new Error("no attribute " + name);
    if ((name === "href" || name === "src") && !String(value).startsWith("#")) throw new Error("a link leads out of the page");
    e.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    e.append(child instanceof Node ? child : visible(child));
  }
  return e;
}

// patch makes the element have what next has, and keeps what is the same: focus, what
// is selected and what is unfolded stay. Elements with a data-key are told by it.
export function patch(old, next) {
  for (const { name } of [...old.attributes]) {
    if (!next.hasAttribute(name) && !(old.tagName === "DETAILS" && name === "open")) old.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  const keyed = new Map();
  for (const c of old.children) if (c.dataset?.key) keyed.set(c.dataset.key, c);
  let at = old.firstChild;
  for (const n of [...next.childNodes]) {
    const k = n.dataset?.key;
    let o = k ? keyed.get(k) : at;
    if (o && k !== o.dataset?.key) o = null;
    if (o && (o.nodeType !== n.nodeType || o.nodeName !== n.nodeName)) o = null;
    if (!o) {
      old.insertBefore(n, at);
      continue;
    }
    if (k) keyed.delete(k);
    if (o === at) at = at.nextSibling;
    else old.insertBefore(o, at);
    if (n.nodeType === Node.TEXT_NODE) {
      if (o.data !== n.data) o.data = n.data;
    } else patch(o, n);
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

// Characters that are not seen, or that make others look like what they are not.
const unseen = /[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\u{e0000}-\u{e0fff}]|\p{Cs}/gu;

const escaped = (c) => c === "\n" ? c : "\\u{" + c.codePointAt(0).toString(16) + "}";

// visible is a text with what is unseen escaped, apart from line breaks.
function visible(text) {
  return String(text).replace(unseen, escaped);
}

// plain is a text that others chose, as it can be shown on a line: what is unseen is
// escaped, and what is too long is cut.
export function plain(text, most = 240) {
  let s = visible(text ?? "").replaceAll("\n", "\\u{a}");
  if (s.length > most) s = s.slice(0, most).replace(/[\ud800-\udbff]$/, "") + "…";
  return s;
}

// said is a text of others on its own, so that no direction of it changes the rest.
export function said(text, most) {
  return text ? h("bdi", null, plain(text, most)) : "";
}
