// Charts: memory over one run, and the roofline, at the width of their container.

function axes(width, height, left, right, top, bottom) {
  const inner = { x: left, y: top, w: width - left - right, h: height - top - bottom };
  return { inner, chart: svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img" }) };
}

/** Return three to five round numbers up to `most`. */
function ticks(most) {
  const raw = most / 5, size = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * size).find((s) => s >= raw) || raw || 1;
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, k) => k * step);
}

function drawMemory() {
  const g = graph(), holder = $("memory-chart");
  $("memory").hidden = g.plan_memory.length === 0;
  if (g.plan_memory.length === 0) return;
  const width = holder.clientWidth || 800, height = width < 600 ? 240 : 300;
  const { inner, chart } = axes(width, height, 62, 12, 18, 30);
  const peak = (ms) => Math.max(...ms.map((m) => m.nbytes), 1);
  const [ours, theirs] = [peak(g.plan_memory), peak(g.op_memory)];
  const most = 1.12 * Math.max(ours, theirs);
  const y = (n) => inner.y + inner.h * (1 - n / most);
  chart.setAttribute("aria-label", `Memory over one run: peak ${bytes(ours)} as compiled, ${bytes(theirs)} op by op`);
  for (const t of ticks(most)) {
    chart.append(svg("line", { class: "grid", x1: inner.x, x2: inner.x + inner.w, y1: y(t), y2: y(t) }),
      svg("text", { x: inner.x - 8, y: y(t) + 4, "text-anchor": "end" }, bytes(t)));
  }
  const steps = (ms) => ms.map((m, k) => {
    const [a, b] = [k, k + 1].map((n) => inner.x + (inner.w * n) / ms.length);
    return `${k ? "L" : "M"}${a} ${y(m.nbytes)}L${b} ${y(m.nbytes)}`;
  }).join("");
  const line = steps(g.plan_memory);
  chart.append(svg("path", { class: "plan", d: `${line}L${inner.x + inner.w} ${y(0)}L${inner.x} ${y(0)}Z` }),
    svg("path", { class: "plan-line", d: line }), svg("path", { class: "ops-line", d: steps(g.op_memory) }));
  g.plan_memory.forEach((m, k) => {
    const region = g.regions.findIndex((r) => r.name === m.name);
    const w = inner.w / g.plan_memory.length;
    chart.append(svg("rect", { class: "step", x: inner.x + k * w, y: inner.y, width: w, height: inner.h,
      onclick: () => region >= 0 && select("region", region, true) },
    svg("title", {}, `${m.name}: ${bytes(m.nbytes)} live`)));
  });
  chart.append(svg("text", { x: inner.x, y: height - 8 }, "start"),
    svg("text", { x: inner.x + inner.w, y: height - 8, "text-anchor": "end" }, "end of the run"));
  holder.replaceChildren(el("p", { class: "key" },
    el("span", {}, el("i", {}), `as compiled: peak ${bytes(ours)}`),
    el("span", {}, el("i", { class: "dashed" }), `op by op: peak ${bytes(theirs)}`)), chart);
}

function drawRoofline() {
  const g = graph(), holder = $("roofline-chart"), limits = data.limits;
  $("roofline").hidden = g.regions.length === 0;
  const points = g.regions.map((r, k) => ({ r, k })).filter(({ r }) => r.measured_us > 0 && r.work > 0 && r.nbytes > 0)
    .map(({ r, k }) => ({ r, k, x: r.work / r.nbytes, y: r.work / (r.measured_us * 1e-6) }));
  if (!limits || points.length === 0) {
    holder.replaceChildren(el("p", { class: "empty" }, limits ? "The arithmetic of these operations is unknown." : "Nothing was measured. ",
      limits ? "" : el("code", {}, "tofuse.explain(fn, measure=True)(...)"), limits ? "" : " runs the program a few times and draws this chart."));
    return;
  }
  const width = holder.clientWidth || 800, height = width < 600 ? 300 : 380;
  const { inner, chart } = axes(width, height, 62, 16, 34, 44);
  const ridge = limits.arithmetic / limits.bandwidth;
  const xs = [...points.map((p) => p.x), ridge], ys = [...points.map((p) => p.y), limits.arithmetic];
  const low = Math.floor(Math.log10(Math.min(...xs) / 1.5)), high = Math.ceil(Math.log10(Math.max(...xs) * 1.5));
  const bottom = Math.floor(Math.log10(Math.min(...ys) / 1.5)), top = Math.ceil(Math.log10(Math.max(...ys) * 1.2));
  const x = (v) => inner.x + (inner.w * (Math.log10(v) - low)) / (high - low);
  const y = (v) => inner.y + inner.h * (1 - (Math.log10(v) - bottom) / (top - bottom));
  chart.setAttribute("aria-label", "Roofline: operations per second over operations per byte, one dot for each launch");
  for (let k = low; k <= high; k += 1)
    chart.append(svg("line", { class: "grid", x1: x(10 ** k), x2: x(10 ** k), y1: inner.y, y2: inner.y + inner.h }),
      svg("text", { x: x(10 ** k), y: inner.y + inner.h + 16, "text-anchor": "middle" }, k < 0 ? (10 ** k).toFixed(-k) : 10 ** k));
  for (let k = bottom; k <= top; k += 1)
    chart.append(svg("line", { class: "grid", x1: inner.x, x2: inner.x + inner.w, y1: y(10 ** k), y2: y(10 ** k) }),
      svg("text", { x: inner.x - 8, y: y(10 ** k) + 4, "text-anchor": "end" }, rate(10 ** k)));
  const start = Math.max(10 ** low, 10 ** bottom / limits.bandwidth);
  chart.append(svg("path", { class: "roof", d: `M${x(start)} ${y(start * limits.bandwidth)}L${x(ridge)} ${y(limits.arithmetic)}L${x(10 ** high)} ${y(limits.arithmetic)}` }));
  const most = Math.max(...points.map((p) => p.r.measured_us));
  for (const p of points)
    chart.append(svg("circle", { class: `dot ${p.r.kind}`, cx: x(p.x), cy: y(p.y), r: 4 + 8 * Math.sqrt(p.r.measured_us / most),
      onclick: () => select("region", p.k, true) },
    svg("title", {}, `${p.r.name}: ${rate(p.y)} operations/s, ${digits(p.x)} operations/byte, ${micros(p.r.measured_us)}`)));
  const taken = points.map((p) => ({ left: x(p.x) - 8, right: x(p.x) + 8, y: y(p.y), of: p }));
  for (const p of [...points].sort((a, b) => b.r.measured_us - a.r.measured_us).slice(0, 6)) {
    const after = x(p.x) < inner.x + inner.w / 2, long = 7.6 * p.r.name.length;
    const left = after ? x(p.x) + 16 : x(p.x) - 16 - long, box = { left, right: left + long, y: y(p.y), of: p };
    if (taken.some((t) => t.of !== p && t.left < box.right && box.left < t.right && Math.abs(t.y - box.y) < 16)) continue;
    taken.push(box);
    chart.append(svg("text", { class: "strong", x: after ? left : left + long, y: y(p.y) + 4, "text-anchor": after ? "start" : "end" }, p.r.name));
  }
  chart.append(svg("text", { x: inner.x + inner.w / 2, y: height - 8, "text-anchor": "middle" }, "operations per byte"));
  chart.append(svg("text", { x: 8, y: 13 }, "operations per second"));
  holder.replaceChildren(el("p", { class: "key" },
    el("span", {}, el("i", { class: "round" }), "kernel (a larger dot takes longer)"),
    el("span", {}, el("i", { class: "round library" }), "library call"),
    el("span", {}, `memory ${digits(limits.bandwidth / 1e9)} GB/s, arithmetic ${digits(limits.arithmetic / 1e9)} G/s, both measured on this machine`)), chart);
}
