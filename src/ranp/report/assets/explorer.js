"use strict";
/* The slider: shows a row of a table that was made in Python; nothing of the method is computed here. */
(() => {
  const source = document.getElementById("page-data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const FULL = 65535; // a cost of the full network, as packed

  const unpack = (packed) => {
    const bytes = Uint8Array.from(atob(packed.base64), (c) => c.charCodeAt(0));
    return packed.dtype === "u2" ? new Uint16Array(bytes.buffer) : new Uint32Array(bytes.buffer);
  };
  const { sparsities, methods } = data;
  for (const method of Object.values(methods)) {
    for (const key of ["kept", "flops", "parameters", "activations"]) method[key] = unpack(method[key]);
  }
  const nearest = (value) =>
    sparsities.reduce((best, s, i) => (Math.abs(s - value) < Math.abs(sparsities[best] - value) ? i : best), 0);

  const $ = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  // toFixed rounds the number itself, as Python does; Intl.NumberFormat its shortest decimals. Of
  // two that are equally near, toFixed takes the larger, Python the even one: 62.5 is 62.
  const rounded = (value, digits) => {
    const larger = value.toFixed(digits);
    const isTie = /^50*$/.test(value.toFixed(digits + 25).split(".")[1].slice(digits));
    return isTie && larger.at(-1) % 2 ? (larger - 10 ** -digits).toFixed(digits) : larger;
  };
  const form = (value, digits) => {
    const [whole, fraction] = rounded(value, digits).split(".");
    const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ",");
    return fraction ? `${grouped}.${fraction}` : grouped;
  };
  // Only what changes is written: layout is most of the work of a move.
  const write = (node, text) => {
    if (node.textContent !== text) node.textContent = text;
  };

  const panel = $("#explorer");
  const range = $("#sparsity");
  const exact = $("#sparsity-exact");
  const live = all("[data-live]").map((node) => ({
    node,
    digits: Number(node.dataset.digits),
    full: Number(node.dataset.full),
    share: node.parentElement.querySelector(".share"),
  }));
  const charts = all("table[data-chart]").map((table) => ({
    key: table.dataset.chart,
    largest: Number(table.dataset.largest),
    digits: Number(table.dataset.digits),
    rows: all("tbody tr", table).map((row) => ({
      row,
      bar: $(".kept", row),
      after: $(".after", row),
      left: $(".left", row),
      before: Number(row.dataset.before),
    })),
  }));
  const boxes = all("#picture .block").map((box) => ({
    box,
    kept: $(".kept", box),
    label: $(".after", box),
    width: Number($(".full", box).getAttribute("width")),
    neurons: Number(box.dataset.neurons),
  }));
  const listed = all("#picture-numbers .after");
  const stages = all("[data-stage]").map((head) => ({
    head,
    name: head.dataset.stage,
    threshold: $(".threshold", head),
    veils: all(`.veil[data-of="${CSS.escape(head.dataset.stage)}"]`),
    lines: all(`.cut[data-of="${CSS.escape(head.dataset.stage)}"]`),
  }));

  const planned = methods[data.plan.method] && data.plan.sparsity !== null;
  let name = planned ? data.plan.method : Object.keys(methods)[0];
  let at = nearest(planned ? data.plan.sparsity : 0);
  const start = [name, at];

  function show() {
    const began = performance.now();
    const method = methods[name];
    const empty = method.empty[at];
    panel.classList.toggle("infeasible", empty !== null);
    range.value = sparsities[at];
    range.setAttribute("aria-valuetext", `${form(100 * sparsities[at], 2)} %`);
    if (document.activeElement !== exact) exact.value = Number((100 * sparsities[at]).toFixed(2));
    $("#feasible-range").style.width = `${100 * method.max_sparsity}%`;
    write($("#feasible-label"), `${form(100 * method.max_sparsity, 1)} %`);
    write($("#verdict"), empty ? `Not possible: ${data.layers[empty[0]]} would be empty${empty[1] > 1 ? `, and ${empty[1] - 1} more` : ""}.` : "");
    live.forEach(({ node, digits, full, share }, i) => {
      const value = method.totals[at][i];
      write(node, empty ? "–" : form(value, digits));
      node.dataset.value = empty ? "" : value;
      write(share, empty ? "" : `${form((100 * value) / full, 1)} %`);
    });
    showLayers(method);
    for (const { head, name: stage, threshold, veils, lines } of stages) {
      const { cuts, thresholds } = data.stages[stage];
      head.classList.toggle("chosen", stage === name);
      write(threshold, thresholds[at]);
      for (const veil of veils) veil.setAttribute("width", cuts[at]);
      for (const line of lines) {
        line.setAttribute("x1", cuts[at]);
        line.setAttribute("x2", cuts[at]);
      }
    }
    $("#reset").disabled = name === start[0] && at === start[1];
    panel.dataset.milliseconds = performance.now() - began;
  }

  function showLayers(method) {
    const row = (key) => {
      const columns = method[key].length / sparsities.length;
      return method[key].subarray(at * columns, (at + 1) * columns);
    };
    const kept = row("kept");
    for (const { key, largest, digits, rows } of charts) {
      const packed = key === "neurons" ? kept : row(key);
      rows.forEach(({ row: line, bar, after, left, before }, i) => {
        const value = key === "neurons" ? kept[i] : (before * packed[i]) / FULL;
        bar.setAttribute("width", (100 * value) / largest);
        write(after, form(value, digits));
        write(left, before ? `${form((100 * value) / before, 0)} %` : "");
        line.classList.toggle("empty", kept[i] === 0);
      });
    }
    boxes.forEach(({ box, kept: bar, label, width, neurons }, i) => {
      bar.setAttribute("width", (width * kept[i]) / neurons);
      write(label, form(kept[i], 0));
      box.classList.toggle("empty", kept[i] === 0);
    });
    if (listed.length === kept.length) listed.forEach((cell, i) => write(cell, form(kept[i], 0)));
  }

  let pending = 0;
  const move = (sparsity) => {
    at = nearest(sparsity);
    cancelAnimationFrame(pending);
    pending = requestAnimationFrame(show);
  };
  range.addEventListener("input", () => move(Number(range.value)));
  exact.addEventListener("input", () => {
    if (Number.isFinite(exact.valueAsNumber)) move(exact.valueAsNumber / 100);
  });
  exact.addEventListener("change", () => {
    exact.blur();
    show();
  });
  const choices = all('input[name="method"]');
  const choose = (chosen) => {
    name = chosen;
    for (const choice of choices) choice.checked = choice.value === name;
    move(sparsities[at]);
  };
  for (const choice of choices) choice.addEventListener("change", () => choose(choice.value));
  $("#reset").addEventListener("click", () => {
    choose(start[0]);
    move(sparsities[start[1]]);
    show();
  });
  if (planned) {
    choose(name);
    show();
  }
})();
