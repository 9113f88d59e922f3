// Entry point: draw the page, and select the item that the address names as #graph.kind.number.

/** Show compiled graph number `k`. */
function show(k, kind = "", id = -1, jump = false) {
  state.graph = k;
  drawTabs();
  drawNotes();
  drawGraph();
  drawRules();
  drawTable();
  drawCollectives();
  drawStages();
  drawMemory();
  drawRoofline();
  if (graph().regions.length) fit(false);
  select(kind, id, jump);
}

$("tabs").addEventListener("keydown", (e) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
  if (!step) return;
  show((state.graph + step + data.graphs.length) % data.graphs.length);
  $(`tab-${state.graph}`).focus();
});

let width = 0;
addEventListener("resize", () => {
  if (innerWidth === width || !data.graphs.length) return; // phone toolbars change only the height
  width = innerWidth;
  drawMemory();
  drawRoofline();
});
addEventListener("keydown", (e) => {
  if (e.key === "Escape" && $("panel").classList.contains("open") && document.activeElement !== query) select("", -1);
});

document.body.id = "top";
drawComparison();
if (data.graphs.length) {
  const [, k, kind, id] = location.hash.match(/^#(\d+)\.(op|edge|region|line|port)\.(\d+)$/) || [];
  const lists = { op: "ops", edge: "edges", region: "regions", line: "lines", port: "ports" };
  const known = kind && data.graphs[k] && data.graphs[k][lists[kind]][id];
  width = innerWidth;
  show(known ? Number(k) : 0, known ? kind : "", known ? Number(id) : -1, Boolean(known));
} else {
  for (const s of document.querySelectorAll("main > section")) s.hidden = true;
}
