// Search: ops by name, type or operator, lines by place or text, boxes by name, reasons by rule.

const query = $("query"), hits = $("hits");
let found = [], chosen = 0;

function lookUp(text) {
  const words = text.toLowerCase().split(/\s+/).filter((w) => w);
  const g = graph(), all = [];
  const offer = (what, kind, id, label, where, more = "") => {
    const hay = `${label} ${where} ${more}`.toLowerCase();
    if (words.every((w) => hay.includes(w))) all.push({ what, kind, id, label, where });
  };
  g.lines.forEach((l, k) => offer("line", "line", k, l.code || l.place, l.place, l.file));
  g.ops.forEach((o, k) => offer(o.region < 0 ? "view" : "op", "op", k, o.name + (o.shape ? ` ${o.shape}` : ""),
    o.line >= 0 ? `${o.values.join(", ")} · ${g.lines[o.line].place}` : o.values.join(", "), `${o.target} ${o.type}`));
  g.regions.forEach((r, k) => offer(kinds[r.kind].split(" ")[0], "region", k, r.name, `${plural(r.ops.length, "operation")}, ${bytes(r.nbytes)}`, r.executor));
  g.ports.forEach((p, k) => offer(p.output ? "output" : "input", "port", k, p.name, p.type));
  g.edges.forEach((e, k) => offer(e.fused ? "fused" : "not fused", "edge", k, pair(e), e.fused ? e.title : e.rule, e.title));
  return all;
}

function search() {
  const text = query.value.trim();
  scene.querySelectorAll(".found").forEach((n) => n.classList.remove("found"));
  found = text ? lookUp(text) : [];
  chosen = 0;
  for (const h of found) if (h.kind === "op" && drawn.op[h.id]) drawn.op[h.id].classList.add("found");
  hits.hidden = !text;
  query.setAttribute("aria-expanded", String(Boolean(text)));
  hits.replaceChildren(...found.slice(0, 40).map((h, k) => el("li", {
    role: "option", id: `hit-${k}`, "aria-selected": String(k === chosen), onclick: () => choose(k),
  }, el("span", { class: "what" }, h.what), el("span", {}, h.label, el("span", { class: "where" }, h.where)))));
  if (text && !found.length) hits.append(el("li", { class: "none" }, `Nothing here is called “${text}”.`));
  point();
}

function point() {
  hits.querySelectorAll("[role=option]").forEach((n, k) => n.setAttribute("aria-selected", String(k === chosen)));
  const now = $(`hit-${chosen}`);
  if (now) { now.scrollIntoView({ block: "nearest" }); query.setAttribute("aria-activedescendant", now.id); }
  else query.removeAttribute("aria-activedescendant");
}

function choose(k) {
  const hit = found[k];
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
  const last = Math.min(found.length, 40) - 1;
  if (e.key === "ArrowDown") chosen = Math.min(last, chosen + 1);
  else if (e.key === "ArrowUp") chosen = Math.max(0, chosen - 1);
  else if (e.key === "Enter") return choose(chosen);
  else if (e.key === "Escape") return closeHits();
  else return;
  e.preventDefault();
  point();
});
document.addEventListener("click", (e) => { if (!e.target.closest(".search")) closeHits(); });
document.addEventListener("keydown", (e) => {
  if (e.key === "/" && !["INPUT", "TEXTAREA"].includes(document.activeElement.tagName)) {
    e.preventDefault();
    query.focus();
  }
});
