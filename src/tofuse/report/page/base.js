// Shared helpers: the page data, element builders, number formats.

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const state = { graph: 0, kind: "", id: -1 };
const graph = () => data.graphs[state.graph];

/** Make an element with attributes and children; null children are left out. */
function el(name, attributes, ...children) {
  const made = document.createElement(name);
  return fill(made, attributes, children);
}

function svg(name, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.flat(3).filter((c) => c !== null && c !== undefined && c !== ""));
  return made;
}

const digits = (x) => String(Number(x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2)));

function scaled(x, step, units) {
  let k = 0;
  while (x >= step && k < units.length - 1) { x /= step; k += 1; }
  return `${k === 0 && Number.isInteger(x) ? x : digits(x)} ${units[k]}`;
}

const bytes = (n) => scaled(n, 1000, ["B", "KB", "MB", "GB", "TB"]);
const micros = (us) => scaled(us, 1000, ["µs", "ms", "s"]);
const rate = (n) => scaled(n, 1000, ["", "K", "M", "G", "T"]);
const throughput = (n, us) => scaled(n / (us * 1e-6), 1000, ["B/s", "KB/s", "MB/s", "GB/s", "TB/s"]);
const amount = (x, unit) => (unit === "bytes" ? bytes(x) : unit === "us" ? micros(x) : String(x));
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
const kinds = { kernel: "kernel", library: "library call", pytorch: "run by PyTorch, op by op" };

/** The two ops of an edge, for a heading. */
const pair = (e) => `${graph().ops[e.source].name} → ${graph().ops[e.target].name}`;
