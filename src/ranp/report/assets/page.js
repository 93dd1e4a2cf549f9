"use strict";
/* What every page has: light and dark, tables to copy, tables to sort. */
(() => {
  const root = document.documentElement;
  root.classList.add("js");

  const stored = (() => {
    try {
      return localStorage.getItem("ranp-theme");
    } catch {
      return null; // a browser that stores nothing for local files
    }
  })();
  if (stored) root.dataset.theme = stored;

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.id === "theme") switchTheme();
    if (button.classList.contains("copy")) copyTable(button);
    if (button.classList.contains("sort")) sortTable(button.closest("th"));
  });

  function switchTheme() {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try {
      localStorage.setItem("ranp-theme", root.dataset.theme);
    } catch {
      /* then for this visit only */
    }
  }

  async function copyTable(button) {
    const table = document.getElementById(button.dataset.table);
    const text = [...table.rows]
      .map((row) => [...row.cells].filter((c) => !c.matches(".drawn")))
      .map((cells) => cells.map((cell) => cell.innerText.trim()).join("\t"))
      .join("\n");
    const word = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      const selection = getSelection();
      selection.removeAllRanges();
      const range = document.createRange();
      range.selectNode(table);
      selection.addRange(range);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = word), 1500);
  }

  function sortTable(head) {
    const body = head.closest("table").tBodies[0];
    const column = head.cellIndex;
    const rising = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", rising ? "ascending" : "descending");
    const key = (row) => row.cells[column].dataset.value ?? row.cells[column].innerText;
    const compare = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === "" || y === "") return (x === "") - (y === ""); // what is missing comes last
      const difference = Number(x) - Number(y);
      const order = Number.isNaN(difference) ? x.localeCompare(y, undefined, { numeric: true }) : difference;
      return rising ? order : -order;
    };
    body.append(...[...body.rows].sort(compare));
  }
})();
