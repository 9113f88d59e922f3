// The program's diagram: boxes and edges, with panning, zooming and keyboard navigation.

const canvas = $("graph");
const scene = svg("g", {});
canvas.append(scene);
const camera = { x: 0, y: 0, scale: 1 };
const drawn = { op: [], edge: [], region: [], port: [] };

function drawGraph() {
  const g = graph();
  scene.replaceChildren();
  for (const kind of Object.keys(drawn)) drawn[kind] = [];
  $("program").hidden = g.regions.length === 0;
  const layers = [0, 1, 2, 3, 4].map(() => svg("g", {}));
  scene.append(...layers);
  g.regions.forEach((r, k) => {
    if (!r.box) return;
    layers[0].append((drawn.region[k] = drawRegion(r, k)));
    layers[4].append(drawTitle(r));
  });
  drawPorts(g, layers);
  g.edges.forEach((e, k) => layers[1].append((drawn.edge[k] = drawEdge(e, k, layers[3]))));
  g.ops.forEach((o, k) => o.box && layers[2].append((drawn.op[k] = drawOp(o, k))));
}

function drawRegion(r, k) {
  const { x, y, width, height } = r.box;
  return svg("g", { class: `region ${r.kind}`, "data-kind": "region", "data-id": k },
    svg("rect", { x, y, width, height, rx: 10 }));
}

/** Draw a region's name and cost, on top of the edges that enter it. */
function drawTitle(r) {
  const { x, y, width } = r.box;
  const us = r.measured_us !== null ? micros(r.measured_us) : bytes(r.nbytes);
  const room = Math.max(6, Math.floor((width - 28 - 7 * us.length) / 7.4));
  const name = r.name.length > room ? `${r.name.slice(0, room - 1)}…` : r.name;
  return svg("g", { class: `title ${r.kind}` },
    svg("text", { x: x + 12, y: y + 20 }, name),
    svg("text", { class: "cost", x: x + width - 12, y: y + 20 }, us));
}

function drawOp(o, k) {
  const { x, y, width, height } = o.box;
  return svg("g", { class: "op", "data-kind": "op", "data-id": k },
    svg("rect", { x, y, width, height }),
    svg("text", { x: x + 10, y: y + 20 }, o.name,
      svg("tspan", { class: "shape", dx: 7 }, o.shape)));
}

function drawEdge(e, k, marks) {
  const names = { class: e.fused ? "edge" : "edge cut", "data-kind": "edge", "data-id": k };
  const group = svg("g", names);
  const a = graph().ops[e.source].box, b = graph().ops[e.target].box;
  if (!a || !b) return group;
  const long = e.points.length === 0;
  const from = [a.x + a.width / 2, a.y + a.height], to = [b.x + b.width / 2, b.y];
  const paths = long
    ? [curve([from, [from[0] + 14, from[1] + 18]]), curve([[to[0] - 14, to[1] - 18], to])]
    : [curve(e.points)];
  for (const d of paths) group.append(svg("path", { class: "hit", d }), svg("path", { class: "visible", d }));
  if (!e.fused) {
    // the first and last segments run inside the regions; the mark belongs between them
    const at = long ? [to[0] - 14, to[1] - 18] : middle(e.points.length > 3 ? e.points.slice(1, -1) : e.points);
    marks.append(svg("g", names, svg("circle", { cx: at[0], cy: at[1], r: 4.5 })));
  }
  return group;
}

/** Return the middle of the longest segment, where a mark is easiest to see. */
function middle(points) {
  let best = 0, at = points[0];
  for (let k = 1; k < points.length; k += 1) {
    const [[x, y], [u, v]] = [points[k - 1], points[k]];
    if (Math.hypot(u - x, v - y) > best) { best = Math.hypot(u - x, v - y); at = [(x + u) / 2, (y + v) / 2]; }
  }
  return at;
}

function curve(points) {
  let d = `M${points[0][0]} ${points[0][1]}`;
  for (let k = 1; k < points.length; k += 1) {
    const [x, y] = points[k - 1], [u, v] = points[k], half = (y + v) / 2;
    d += `C${x} ${half} ${u} ${half} ${u} ${v}`;
  }
  return d;
}

function drawPorts(g, layers) {
  const inputs = new Map(), outputs = new Map();
  g.ports.forEach((p, k) => {
    (p.output ? outputs : inputs).set(p.name, p.box);
    const { x, y, width, height } = p.box;
    drawn.port[k] = svg("g", { class: "port", "data-kind": "port", "data-id": k },
      svg("rect", { x, y, width, height }), svg("text", { x: x + width / 2, y: y + 16 }, p.name));
    layers[2].append(drawn.port[k]);
  });
  const drawnLines = new Set();
  const drawPortLine = (name, port, region, up) => {
    if (!port || !region.box || drawnLines.has(`${name} ${region.name} ${up}`)) return;
    drawnLines.add(`${name} ${region.name} ${up}`);
    const r = region.box, at = port.x + port.width / 2;
    const x = Math.min(Math.max(at, r.x + 14), r.x + r.width - 14);
    const points = up ? [[at, port.y + port.height], [x, r.y]] : [[x, r.y + r.height], [at, port.y]];
    if (Math.abs(points[1][1] - points[0][1]) < 700) // a longer line would cross other boxes
      layers[0].append(svg("g", { class: "edge faint" }, svg("path", { d: curve(points) })));
  };
  for (const o of g.ops) {
    if (o.region < 0) continue;
    for (const name of o.reads) drawPortLine(name, inputs.get(name), g.regions[o.region], true);
    for (const name of o.values) drawPortLine(name, outputs.get(name), g.regions[o.region], false);
  }
}

// -- camera -------------------------------------------------------------------------------------

function applyCamera() {
  const { x, y, scale } = camera;
  scene.setAttribute("transform", `translate(${x} ${y}) scale(${scale})`);
  canvas.classList.toggle("far", scale < 0.42);
  canvas.style.setProperty("--far", `${Math.min(30, 9.5 / scale)}px`); // keeps titles legible when zoomed out
}

/** Fit the whole diagram if it stays legible or `whole` is set; else show its top, legibly. */
function fit(whole) {
  const g = graph(), w = canvas.clientWidth, h = canvas.clientHeight;
  const margin = 20;
  const all = Math.min((w - 2 * margin) / g.width, (h - 2 * margin) / g.height, 1.15);
  const least = whole ? 0.06 : Math.min(0.8, Math.max(0.62, (w - 2 * margin) / g.width));
  camera.scale = Math.max(all, least);
  const wide = g.width * camera.scale;
  camera.x = wide <= w - 2 * margin ? (w - wide) / 2
    : Math.min(margin, Math.max(w - wide - margin, w / 2 - centreOfFirstRegion(g) * camera.scale));
  camera.y = Math.max((h - g.height * camera.scale) / 2, margin);
  applyCamera();
}

const centreOfFirstRegion = (g) => {
  const box = (g.regions.find((r) => r.box) || { box: { x: 0, width: g.width } }).box;
  return box.x + box.width / 2;
};

function zoom(factor, cx = canvas.clientWidth / 2, cy = canvas.clientHeight / 2) {
  const scale = Math.min(3, Math.max(0.04, camera.scale * factor));
  const k = scale / camera.scale;
  camera.x = cx - (cx - camera.x) * k;
  camera.y = cy - (cy - camera.y) * k;
  camera.scale = scale;
  applyCamera();
}

/** Scroll and zoom so that a box is in view and legible. */
function reveal(box) {
  const w = canvas.clientWidth, h = visibleHeight();
  if (camera.scale < 0.6) camera.scale = 0.9;
  const s = camera.scale, x = box.x * s + camera.x, y = box.y * s + camera.y;
  const inside = x > 8 && y > 8 && x + box.width * s < w - 8 && y + Math.min(box.height * s, h / 2) < h - 8;
  if (!inside) {
    camera.x = w / 2 - (box.x + box.width / 2) * s;
    camera.y = Math.max(h / 3 - box.y * s, h / 2 - (box.y + box.height / 2) * s);
  }
  applyCamera();
}

/** Return the height of the diagram that the details panel does not cover on a phone. */
function visibleHeight() {
  const panel = $("panel"), h = canvas.clientHeight;
  if (!panel.classList.contains("open") || getComputedStyle(panel).position !== "fixed") return h;
  const visible = innerHeight - panel.offsetHeight - Math.max(0, canvas.getBoundingClientRect().top);
  return Math.min(h, Math.max(150, visible));
}

// -- pointer and keyboard events ----------------------------------------------------------------

const pointers = new Map();
let moved = 0;

canvas.addEventListener("pointerdown", (e) => {
  pointers.set(e.pointerId, [e.clientX, e.clientY]);
  moved = 0;
});
canvas.addEventListener("pointermove", (e) => {
  if (!pointers.has(e.pointerId)) return;
  const old = [...pointers.values()];
  const [x, y] = pointers.get(e.pointerId);
  pointers.set(e.pointerId, [e.clientX, e.clientY]);
  moved += Math.abs(e.clientX - x) + Math.abs(e.clientY - y);
  if (moved > 4 && !canvas.hasPointerCapture(e.pointerId)) {
    canvas.setPointerCapture(e.pointerId);
    canvas.classList.add("dragging");
  }
  if (pointers.size === 2) {
    const now = [...pointers.values()], box = canvas.getBoundingClientRect();
    const distance = ([[a, b], [c, d]]) => Math.hypot(a - c, b - d);
    zoom(distance(now) / Math.max(1, distance(old)), (now[0][0] + now[1][0]) / 2 - box.left, (now[0][1] + now[1][1]) / 2 - box.top);
  } else {
    camera.x += e.clientX - x;
    camera.y += e.clientY - y;
    applyCamera();
  }
});
for (const end of ["pointerup", "pointercancel", "pointerleave"])
  canvas.addEventListener(end, (e) => { pointers.delete(e.pointerId); canvas.classList.remove("dragging"); });
canvas.addEventListener("click", (e) => {
  if (moved > 4) return;
  const target = e.target.closest("[data-kind]");
  if (target) select(target.dataset.kind, Number(target.dataset.id));
  else select("", -1);
});
canvas.addEventListener("wheel", (e) => {
  if (!e.ctrlKey && !e.metaKey) return;
  e.preventDefault();
  const box = canvas.getBoundingClientRect();
  zoom(Math.exp(-e.deltaY * 0.004), e.clientX - box.left, e.clientY - box.top);
}, { passive: false });
canvas.addEventListener("keydown", (e) => {
  const step = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[e.key];
  if (step) moveSelection(...step);
  else if (e.key === "+" || e.key === "=") zoom(1.25);
  else if (e.key === "-") zoom(0.8);
  else if (e.key === "0") fit(true);
  else if (e.key === "Enter") { const first = $("panel").querySelector("button, summary"); if (first) first.focus(); }
  else if (e.key === "Escape") select("", -1);
  else return;
  e.preventDefault();
});

/** Select the op's consumer (down), its producer (up), or the op beside it (left, right). */
function moveSelection(dx, dy) {
  const g = graph();
  const ops = g.ops.map((o, k) => k).filter((k) => g.ops[k].box);
  if (ops.length === 0) return;
  if (state.kind !== "op" || !g.ops[state.id].box) return select("op", ops[0]);
  const here = g.ops[state.id].box;
  if (dy) {
    const edge = g.edges.find((e) => (dy > 0 ? e.source : e.target) === state.id);
    if (edge) select("op", dy > 0 ? edge.target : edge.source);
    return;
  }
  const beside = ops.filter((k) => Math.abs(g.ops[k].box.y - here.y) < 40 && (g.ops[k].box.x - here.x) * dx > 0);
  beside.sort((a, b) => (g.ops[a].box.x - g.ops[b].box.x) * dx);
  if (beside.length) select("op", beside[0]);
}

$("zoom-in").addEventListener("click", () => zoom(1.3));
$("zoom-out").addEventListener("click", () => zoom(1 / 1.3));
$("zoom-fit").addEventListener("click", () => fit(true));
