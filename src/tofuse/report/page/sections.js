// The sections around the diagram: comparison, rules, table of launches, compile time.

function drawComparison() {
  const rows = data.comparisons.map((c) => {
    const most = Math.max(c.before, c.after, 1e-9);
    const gain = c.after > 0 ? c.before / c.after : 0;
    const word = !gain ? "" : gain >= 1.005 ? `${digits(gain)}× less` : gain > 0.995 ? "the same" : `${digits(1 / gain)}× more`;
    const bar = (name, x, kind) => el("div", { class: `bar ${kind}` }, el("span", {}, name),
      el("i", { style: `width:${(100 * x) / most}%` }), el("b", {}, amount(x, c.unit)));
    return el("div", {}, el("h3", {}, c.name, el("span", { class: gain < 0.995 ? "gain worse" : "gain" }, word)),
      bar("Before", c.before, "before"), bar("After", c.after, "after"), el("p", {}, c.note));
  });
  $("bars").replaceChildren(el("div", { class: "bars" }, rows));
}

function drawRules() {
  const g = graph(), shown = 6;
  $("why").hidden = g.edges.length === 0 && g.rules.length === 0;
  if (g.rules.length === 0) {
    $("rules").replaceChildren(el("p", { class: "good" }, "Every pair of neighbouring operations was fused."));
    return;
  }
  $("rules").replaceChildren(...g.rules.map((r) => {
    const item = (k) => {
      const e = g.edges[k];
      const l = e.line >= 0 ? g.lines[e.line] : null;
      return el("li", {}, el("button", { type: "button", onclick: () => select("edge", k, true) },
        el("span", {}, pair(e), l ? el("small", {}, `${l.place}  `, el("code", {}, l.code)) : null),
        el("small", {}, bytes(e.nbytes))));
    };
    const other = (o) => {
      const l = o.line >= 0 ? g.lines[o.line] : null;
      return el("li", {}, el("span", {}, o.rule, l ? el("small", {}, `${l.place}  `, el("code", {}, l.code)) : null));
    };
    const list = el("ul", { class: "links" }, [...r.other_verdicts.map(other), ...r.edges.slice(0, shown).map(item)]);
    const rest = r.edges.length - shown;
    const more = rest > 0 ? el("button", { class: "more", type: "button", onclick: (e) => {
      list.append(...r.edges.slice(shown).map(item));
      e.target.remove();
    } }, `Show ${rest} more`) : null;
    return el("div", { class: "rule" },
      el("h3", {}, r.title, el("span", {}, `  ${plural(r.edges.length + r.other_verdicts.length, "pair")}`)),
      el("div", {}, el("p", {}, r.meaning),
        r.todo ? el("p", { class: "todo" }, el("b", {}, "What you can do"), r.todo) : null),
      el("div", {}, list, more));
  }));
}

function drawTable() {
  const g = graph(), measured = g.regions.some((r) => r.measured_us !== null);
  const predicted = g.regions.some((r) => r.predicted_us > 0);
  $("launches").hidden = g.regions.length === 0;
  const cost = (r) => (measured ? r.measured_us || 0 : predicted ? r.predicted_us : r.nbytes);
  const most = Math.max(...g.regions.map(cost), 1e-9);
  const header = el("tr", {}, el("th", { scope: "col" }, "Launch"), el("th", { scope: "col", class: "wide" }, "Operations"),
    el("th", { scope: "col" }, "Memory"),
    predicted ? el("th", { scope: "col", class: measured ? "wide" : "" }, "Predicted") : null,
    measured ? [el("th", { scope: "col" }, "Measured"), el("th", { scope: "col", class: "wide" }, "Throughput")] : null,
    el("th", { scope: "col", class: "wide" }, ""));
  const row = (r, k) => el("tr", { class: r.kind },
    el("td", {}, el("button", { type: "button", onclick: () => select("region", k, true) }, r.name)),
    el("td", { class: "wide" }, r.ops.length), el("td", {}, bytes(r.nbytes)),
    predicted ? el("td", { class: measured ? "wide" : "" }, r.predicted_us > 0 ? micros(r.predicted_us) : "–") : null,
    measured ? [el("td", {}, r.measured_us !== null ? micros(r.measured_us) : "–"),
      el("td", { class: "wide" }, r.measured_us > 0 ? throughput(r.nbytes, r.measured_us) : "–")] : null,
    el("td", { class: "share wide" }, el("i", { style: `width:${(92 * cost(r)) / most}%` })));
  $("table").replaceChildren(el("thead", {}, header), el("tbody", {}, g.regions.map(row)));
}

function drawCollectives() {
  const g = graph();
  $("collectives").hidden = g.collectives.length === 0;
  const head = ["Collective", "Group", "Operand", "Result", "Overlapped", "Time", "Line"];
  const wide = (k) => (k === 1 || k === 3 || k === 6 ? "wide" : "");
  const cells = (c) => [c.name, c.group, bytes(c.operand_bytes), bytes(c.result_bytes),
    c.overlapped.length ? el("button", { type: "button", onclick: () => select("region", c.overlapped[0], true) },
      `${c.overlapped.length} ${c.overlapped.length === 1 ? "launch" : "launches"}`) : "nothing",
    c.overlapped.length ? micros(c.overlapped_us) : "–", c.line >= 0 ? g.lines[c.line].place : ""];
  $("collective-table").replaceChildren(
    el("thead", {}, el("tr", {}, head.map((h, k) => el("th", { scope: "col", class: wide(k) }, h)))),
    el("tbody", {}, g.collectives.map((c) => el("tr", {}, cells(c).map((x, k) => el("td", { class: wide(k) }, x))))));
}

function drawStages() {
  const stages = graph().stages, total = stages.reduce((sum, s) => sum + s.ms, 0);
  $("compile").hidden = stages.length === 0;
  const row = (name, ms) => el("div", { class: "stage" }, el("span", {}, name),
    el("i", { style: `width:${(100 * ms) / Math.max(total, 1e-9)}%` }), el("b", {}, `${digits(ms)} ms`));
  $("stages").replaceChildren(...stages.map((s) => row(s.name, s.ms)), row("total", total));
}

function drawTabs() {
  $("tabs").hidden = data.graphs.length < 2;
  $("tabs").replaceChildren(...data.graphs.map((g, k) => el("button", {
    type: "button", role: "tab", id: `tab-${k}`, "aria-selected": String(k === state.graph),
    tabindex: k === state.graph ? 0 : -1, onclick: () => show(k),
  }, g.title)));
}

function drawNotes() {
  $("notes").replaceChildren(...graph().notes.map((n) => el("p", { class: "note" }, n)));
}
