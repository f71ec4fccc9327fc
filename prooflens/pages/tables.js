for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => head.querySelector("button")?.addEventListener("click", () => {
    const keyed = [...body.rows].map(row => [row.cells[column].dataset.key, row]);
    const numbers = keyed.every(([key]) => key === "" || !Number.isNaN(Number(key)));
    const before = head.getAttribute("aria-sort");
    const down = before === "none" ? numbers : before === "ascending";
    for (const other of heads) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const order = (a, b) => numbers ? Number(a) - Number(b) : a.localeCompare(b, undefined, { numeric: true });
    keyed.sort(([a], [b]) =>
      a === "" || b === "" ? (a === "") - (b === "") : down ? order(b, a) : order(a, b));
    body.append(...keyed.map(([, row]) => row));
  }));
}
for (const form of document.querySelectorAll("form.filter")) {
  const rows = [...form.closest(".tabled").querySelector("table").tBodies[0].rows];
  const count = form.querySelector("output"), selects = [...form.querySelectorAll("select")];
  const show = () => {
    const text = form.elements.text.value.toLowerCase();
    for (const row of rows) {
      row.hidden = !row.textContent.toLowerCase().includes(text)
        || selects.some(select => select.value && row.dataset[select.name] !== select.value);
    }
    count.textContent = `${rows.filter(row => !row.hidden).length} of ${rows.length}`;
  };
  form.addEventListener("input", show);
  form.addEventListener("submit", event => event.preventDefault());
  show();
}
const unfold = () => {
  const section = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const details = section?.closest("details") ?? section?.querySelector(":scope > details.folded");
  if (details) details.open = true;
};
addEventListener("hashchange", unfold);
unfold();
const folded = [...document.querySelectorAll("details")];
addEventListener("beforeprint", () => {
  for (const details of folded) details.dataset.open = details.open, details.open = true;
});
addEventListener("afterprint", () => {
  for (const details of folded) details.open = details.dataset.open === "true";
});
