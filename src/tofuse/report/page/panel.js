// The details panel of the selected op, edge, region, source line, input or output.

/** Select an item, show its details, and bring it into view. */
function select(kind, id, jump = false) {
  state.kind = kind;
  state.id = id;
  const g = graph();
  scene.querySelectorAll(".on, .near").forEach((n) => n.classList.remove("on", "near"));
  const panel = $("panel");
  const show = { op: showOp, edge: showEdge, region: showRegion, line: showLine, port: showPort }[kind];
  panel.replaceChildren(...(show ? show(id) : showHelp()).flat(3).filter((n) => n));
  panel.classList.toggle("open", Boolean(show));
  panel.scrollTop = 0;
  const place = show ? `#${state.graph}.${kind}.${id}` : location.pathname + location.search;
  history.replaceState(null, "", place);
  if (!show) return;
  if (drawn[kind] && drawn[kind][id]) drawn[kind][id].classList.add("on");
  const near = { edge: () => [g.edges[id].source, g.edges[id].target], line: () => opsOfLine(id) }[kind];
  for (const k of near ? near() : []) if (drawn.op[k]) drawn.op[k].classList.add("near");
  if (jump) $("program").querySelector(".toolbar").scrollIntoView({ block: "start", behavior: "instant" });
  const box = boxOf(kind, id);
  if (box) reveal(box);
}

function boxOf(kind, id) {
  const g = graph();
  if (kind === "op") return g.ops[id].box || (readersOf(id)[0] || {}).box;
  if (kind === "region") return g.regions[id].box;
  if (kind === "port") return g.ports[id].box;
  if (kind === "edge") return g.ops[g.edges[id].target].box;
  const first = opsOfLine(id).map((k) => g.ops[k].box).find((b) => b);
  return first || null;
}

const opsOfLine = (line) => graph().ops.map((o, k) => k).filter((k) => graph().ops[k].line === line);
const readersOf = (id) => graph().edges.filter((e) => e.source === id).map((e) => graph().ops[e.target]);

function head(kind, title, type) {
  return [
    el("p", { class: "kind" }, kind,
      el("button", { class: "close", type: "button", onclick: () => select("", -1) }, "Close")),
    el("h3", {}, title),
    type ? el("p", { class: "type" }, type) : null,
  ];
}

function facts(...rows) {
  const shown = rows.filter((r) => r && r[1] !== null && r[1] !== "");
  return el("dl", { class: "facts" }, shown.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function sourceOf(line) {
  if (line < 0) return null;
  const l = graph().lines[line];
  return el("div", { class: "source" }, el("span", { class: "place", title: l.file }, l.place),
    l.code ? el("pre", {}, l.code) : null);
}

function times(r) {
  return [
    r.predicted_us > 0 ? ["Predicted", micros(r.predicted_us)] : null,
    r.measured_us !== null ? ["Measured", micros(r.measured_us)] : null,
  ];
}

function verdict(e) {
  return el("span", { class: e.fused ? "tag" : "tag cut" }, e.fused ? "Fused" : "Not fused");
}

function edgeLinks(title, found, end) {
  if (found.length === 0) return null;
  const item = (k) => {
    const e = graph().edges[k], o = graph().ops[e[end]];
    return el("li", {}, el("button", { type: "button", onclick: () => select("edge", k) },
      el("span", {}, o.name, el("small", {}, e.fused ? e.title : e.rule)), verdict(e)));
  };
  return [el("h4", {}, title), el("ul", { class: "links" }, found.map(item))];
}

function opLink(k) {
  const o = graph().ops[k];
  return el("li", {}, el("button", { type: "button", onclick: () => select("op", k) },
    el("span", {}, o.name, el("small", {}, o.line >= 0 ? graph().lines[o.line].place : "")),
    el("small", {}, o.shape)));
}

function regionLink(k) {
  const r = graph().regions[k];
  return el("li", {}, el("button", { type: "button", onclick: () => select("region", k) },
    el("span", {}, r.name, el("small", {}, `${plural(r.ops.length, "operation")}, ${bytes(r.nbytes)}`)),
    el("span", { class: `tag ${r.kind}` }, kinds[r.kind].split(" ")[0])));
}

function showHelp() {
  return [
    el("h3", {}, "How to read it"),
    el("p", {}, "Click an operation, an edge, or a box. This panel then shows the line of your code it comes from, what it reads and writes, and why it was or was not fused."),
    el("div", { class: "legend" },
      el("i", {}), "a generated kernel: one launch of fused operations",
      el("i", { class: "library" }), "a library call",
      el("i", { class: "line" }), "a value that stays in registers or cache",
      el("i", { class: "line cut" }), "a tensor stored in memory and read back, because its two operations were not fused",
      el("i", { class: "port" }), "an input or an output"),
    graph().edges.some((e) => !e.points.length)
      ? el("p", {}, "A short stub is the end of a long edge. Click it to see both of its operations.") : null,
  ];
}

function showOp(id) {
  const g = graph(), o = g.ops[id];
  const edges = (end) => g.edges.map((e, k) => k).filter((k) => g.edges[k][end] === id);
  const view = o.region < 0;
  const launch = view ? null : g.regions[o.region];
  return [
    head(view ? "View" : "Operation", o.target, o.values.join(", ") + (o.type ? ` : ${o.type}` : "")),
    sourceOf(o.line),
    view ? el("p", {}, "A view copies nothing: kernels and library calls read the same memory with other strides.") : null,
    view ? null : facts(
      ["Memory traffic if run alone", bytes(o.nbytes)],
      ["Arithmetic", o.work > 0 ? `${rate(o.work)} operations` : ""],
      o.reads.length ? ["Reads inputs", o.reads.join(", ")] : null,
      launch.predicted_us > 0 ? ["Its launch, predicted", micros(launch.predicted_us)] : null,
      launch.measured_us !== null ? ["Its launch, measured", micros(launch.measured_us)] : null),
    view ? null : [el("h4", {}, "Runs in"), el("ul", { class: "links" }, regionLink(o.region))],
    edgeLinks("Operands", edges("target"), "source"),
    edgeLinks("Read by", edges("source"), "target"),
  ];
}

function showEdge(id) {
  const g = graph(), e = g.edges[id];
  return [
    head("Edge between two operations", pair(e), e.value),
    el("p", {}, verdict(e)),
    el("h4", {}, e.title),
    el("p", {}, e.meaning),
    e.fused ? null : el("p", {}, "Rule: ", el("code", {}, e.rule), "."),
    e.todo ? el("p", { class: "todo" }, el("b", {}, "What you can do"), e.todo) : null,
    facts(
      ["Size of the value", bytes(e.nbytes)],
      e.fused ? ["Memory traffic saved", bytes(e.saved)] : null,
      e.us > 0 ? ["Predicted time saved", micros(e.us)] : null,
      e.views.length ? ["Read through views", e.views.join(", ")] : null),
    sourceOf(g.ops[e.source].line),
    g.ops[e.source].line !== e.line ? sourceOf(e.line) : null,
    el("h4", {}, "The two operations"),
    el("ul", { class: "links" }, opLink(e.source), opLink(e.target)),
    e.fused ? null : [el("h4", {}, "They run in"),
      el("ul", { class: "links" }, regionLink(g.ops[e.source].region), regionLink(g.ops[e.target].region))],
  ];
}

function showRegion(id) {
  const g = graph(), r = g.regions[id];
  const us = r.measured_us !== null ? r.measured_us : r.predicted_us;
  const entering = g.edges.map((e, k) => k).filter((k) => g.ops[g.edges[k].target].region === id && g.ops[g.edges[k].source].region !== id);
  const leaving = g.edges.map((e, k) => k).filter((k) => g.ops[g.edges[k].source].region === id && g.ops[g.edges[k].target].region !== id);
  return [
    head(kinds[r.kind][0].toUpperCase() + kinds[r.kind].slice(1), r.name, ""),
    r.why ? el("p", {}, r.why) : null,
    facts(
      ["Operations", r.ops.length],
      ["Executor", r.executor],
      ["Memory traffic", bytes(r.nbytes)],
      r.work > 0 ? ["Arithmetic", `${rate(r.work)} operations`] : null,
      ...times(r),
      us > 0 && r.measured_us !== null ? ["Throughput", throughput(r.nbytes, us)] : null),
    edgeLinks("Inputs from other launches", entering, "source"),
    edgeLinks("Results read by other launches", leaving, "target"),
    r.lines.length ? [el("h4", {}, "Your lines"), r.lines.map(sourceOf)] : null,
    r.loops >= 0 ? el("details", {}, el("summary", {}, "Loops"), el("pre", { tabindex: 0 }, g.texts[r.loops])) : null,
    r.source >= 0 ? el("details", {}, el("summary", {}, "Generated source"), el("pre", { tabindex: 0 }, g.texts[r.source])) : null,
    el("details", {}, el("summary", {}, plural(r.ops.length, "operation")), el("ul", { class: "links" }, r.ops.map(opLink))),
  ];
}

function showLine(id) {
  const found = opsOfLine(id), l = graph().lines[id];
  const regions = [...new Set(found.map((k) => graph().ops[k].region).filter((k) => k >= 0))];
  return [
    head("Line of your code", l.place, ""),
    sourceOf(id),
    el("p", {}, `${plural(found.length, "operation")} in ${regions.length === 1 ? "1 launch" : `${regions.length} launches`}.`),
    el("h4", {}, "Runs in"),
    el("ul", { class: "links" }, regions.map(regionLink)),
    el("h4", {}, "Operations"),
    el("ul", { class: "links" }, found.map(opLink)),
  ];
}

function showPort(id) {
  const g = graph(), p = g.ports[id];
  const ops = g.ops.map((o, k) => k).filter((k) => g.ops[k].region >= 0 && (p.output ? g.ops[k].values : g.ops[k].reads).includes(p.name));
  return [
    head(p.output ? "Output" : "Input", p.name, p.type),
    facts(["Size", bytes(p.nbytes)]),
    el("h4", {}, p.output ? "Computed by" : "Read by"),
    el("ul", { class: "links" }, ops.map(opLink)),
  ];
}
