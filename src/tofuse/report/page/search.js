// Search over ops, source lines, regions, inputs, outputs and verdicts.

const query = $("query"), hits = $("hits");
let matches = [], chosen = 0;

function findMatches(text) {
  const words = text.toLowerCase().split(/\s+/).filter((w) => w);
  const g = graph(), all = [];
  const addIfMatching = (what, kind, id, label, where, more = "") => {
    const searched = `${label} ${where} ${more}`.toLowerCase();
    if (words.every((w) => searched.includes(w))) all.push({ what, kind, id, label, where });
  };
  g.lines.forEach((l, k) => addIfMatching("line", "line", k, l.code || l.place, l.place, l.file));
  g.ops.forEach((o, k) => addIfMatching(o.region < 0 ? "view" : "op", "op", k, o.name + (o.shape ? ` ${o.shape}` : ""),
    o.line >= 0 ? `${o.values.join(", ")} · ${g.lines[o.line].place}` : o.values.join(", "), `${o.target} ${o.type}`));
  g.regions.forEach((r, k) => addIfMatching(kinds[r.kind].split(" ")[0], "region", k, r.name, `${plural(r.ops.length, "operation")}, ${bytes(r.nbytes)}`, r.executor));
  g.ports.forEach((p, k) => addIfMatching(p.output ? "output" : "input", "port", k, p.name, p.type));
  g.edges.forEach((e, k) => addIfMatching(e.fused ? "fused" : "not fused", "edge", k, pair(e), e.fused ? e.title : e.rule, e.title));
  return all;
}

function search() {
  const text = query.value.trim();
  scene.querySelectorAll(".found").forEach((n) => n.classList.remove("found"));
  matches = text ? findMatches(text) : [];
  chosen = 0;
  for (const h of matches) if (h.kind === "op" && drawn.op[h.id]) drawn.op[h.id].classList.add("found");
  hits.hidden = !text;
  query.setAttribute("aria-expanded", String(Boolean(text)));
  hits.replaceChildren(...matches.slice(0, 40).map((h, k) => el("li", {
    role: "option", id: `hit-${k}`, "aria-selected": String(k === chosen), onclick: () => choose(k),
  }, el("span", { class: "what" }, h.what), el("span", {}, h.label, el("span", { class: "where" }, h.where)))));
  if (text && !matches.length) hits.append(el("li", { class: "none" }, `No matches for “${text}”.`));
  highlightChosen();
}

function highlightChosen() {
  hits.querySelectorAll("[role=option]").forEach((n, k) => n.setAttribute("aria-selected", String(k === chosen)));
  const now = $(`hit-${chosen}`);
  if (now) { now.scrollIntoView({ block: "nearest" }); query.setAttribute("aria-activedescendant", now.id); }
  else query.removeAttribute("aria-activedescendant");
}

function choose(k) {
  const hit = matches[k];
  if (!hit) return;
  closeHits();
  select(hit.kind, hit.id);
}

function closeHits() {
  hits.hidden = true;
  query.setAttribute("aria-expanded", "false");
}

query.addEventListener("input", search);
query.addEventListener("focus", () => query.value.trim() && search());
query.addEventListener("keydown", (e) => {
  const last = Math.min(matches.length, 40) - 1;
  if (e.key === "ArrowDown") chosen = Math.min(last, chosen + 1);
  else if (e.key === "ArrowUp") chosen = Math.max(0, chosen - 1);
  else if (e.key === "Enter") return choose(chosen);
  else if (e.key === "Escape") return closeHits();
  else return;
  e.preventDefault();
  highlightChosen();
});
document.addEventListener("click", (e) => { if (!e.target.closest(".search")) closeHits(); });
document.addEventListener("keydown", (e) => {
  if (e.key === "/" && !["INPUT", "TEXTAREA"].includes(document.activeElement.tagName)) {
    e.preventDefault();
    query.focus();
  }
});
