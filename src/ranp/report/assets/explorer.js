"use strict";
/* The slider: chooses neurons and counts costs in the page, exactly as the library does. */
(() => {
  const source = document.getElementById("page-data");
  if (!source) return;
  const data = JSON.parse(source.textContent);

  /* ---- Unpacking ---- */

  const unpack = (packed) => {
    const bytes = Uint8Array.from(atob(packed.base64), (c) => c.charCodeAt(0));
    return packed.dtype === "u2" ? new Uint16Array(bytes.buffer) : new Uint32Array(bytes.buffer);
  };
  const expand = (runs, rise) => {
    const values = new Int32Array(runs.reduce((sum, run) => sum + run[1], 0));
    let at = 0;
    for (const [value, length] of runs) {
      for (let i = 0; i < length; i++) values[at++] = value + rise * i;
    }
    return values;
  };

  const classOf = expand(data.explorer.classes, 1); // of every neuron
  const removable = expand(data.explorer.removable, 0); // of every class
  const bundleOf = expand(data.explorer.bundle_of, 0); // of every class
  const atomOf = expand(data.model.atoms, 0); // of every class
  const atoms = atomOf.reduce((most, atom) => Math.max(most, atom), 0) + 1;
  const total = classOf.length;
  const layers = [];
  for (const { neurons } of data.layers) {
    const start = layers.length ? layers[layers.length - 1].end : 0;
    layers.push({ start, end: start + neurons, size: neurons });
  }
  const methods = {};
  for (const [name, packed] of Object.entries(data.explorer.methods)) {
    const method = (methods[name] = { ...packed });
    for (const key of ["order", "removed", "class_order"]) {
      if (packed[key]) method[key] = unpack(packed[key]);
    }
    if (packed.levels) method.levels = { ...packed.levels, ranked: unpack(packed.levels.packed) };
    if (data.explorer.floor) method.byLayer = ordersByLayer(method.order);
  }
  // For each bundle and each layer that has a say in it, the layer's neurons that are in it.
  const votes = data.explorer.voters.map((voters, bundle) =>
    voters.map((number) => {
      const { start, end } = layers[number];
      const members = [];
      for (let u = start; u < end; u++) if (bundleOf[classOf[u]] === bundle) members.push(u);
      members.single = new Set(members.map((u) => classOf[u])).size === members.length;
      return members;
    })
  );

  function ordersByLayer(order) {
    const layerOf = new Int32Array(total);
    layers.forEach(({ start, end }, number) => layerOf.fill(number, start, end));
    const result = layers.map(() => []);
    for (const u of order) result[layerOf[u]].push(u);
    return result;
  }

  /* ---- Choosing (ranp.pruning.select, ranp.pruning.coupling) ---- */

  function prefix(method, sparsity) {
    const k = Math.trunc(total * (1 - sparsity));
    const tie = method.ties.find(([start, end]) => start < k && k <= end);
    return tie ? tie[1] : k;
  }

  function retain(method, sparsity) {
    const retained = new Uint8Array(total);
    if (method.selection === "random") {
      retained.fill(1);
      const removed = Math.trunc(total * sparsity);
      for (let i = 0; i < removed; i++) retained[method.removed[i]] = 0;
    } else if (method.selection === "layerwise") {
      for (const { start, size } of layers) {
        const k = Math.ceil(size * (1 - sparsity));
        for (let i = 0; i < k; i++) retained[method.order[start + i]] = 1;
      }
    } else {
      const k = prefix(method, sparsity);
      for (let i = 0; i < k; i++) retained[method.order[i]] = 1;
    }
    return retained;
  }

  function choose(method, sparsity) {
    const retained = retain(method, sparsity);
    const alive = Uint8Array.from(removable, (can) => 1 - can);
    for (const voters of votes) {
      let best = new Set();
      for (const members of voters) {
        const choice = classesFilled(members, retained);
        if (choice.size > best.size) best = choice;
      }
      for (const cls of best) alive[cls] = 1;
    }
    if (data.explorer.floor) keepFloor(method, alive);
    if (data.explorer.multiple > 1) fillMultiples(method, alive);
    return alive;
  }

  function classesFilled(members, retained) {
    const filled = new Set();
    if (members.single) {
      for (const u of members) if (retained[u]) filled.add(classOf[u]);
      return filled;
    }
    const cells = new Map(); // class -> [neurons, retained ones]
    let held = 0;
    for (const u of members) {
      const cell = cells.get(classOf[u]) ?? [0, 0];
      cells.set(classOf[u], [cell[0] + 1, cell[1] + retained[u]]);
      held += retained[u];
    }
    const fullest = [...cells].sort(([a, [n, h]], [b, [m, i]]) => i / m - h / n || a - b);
    let room = 0;
    for (const [cls, [neurons]] of fullest) {
      if (room >= held) break;
      filled.add(cls);
      room += neurons;
    }
    return filled;
  }

  function keepFloor(method, alive) {
    layers.forEach(({ size }, number) => {
      const dead = method.byLayer[number].filter((u) => !alive[classOf[u]]);
      const missing = Math.max(0, data.explorer.floor - (size - dead.length));
      for (const u of dead.slice(0, missing)) alive[classOf[u]] = 1;
    });
  }

  function fillMultiples(method, alive) {
    const multiple = data.explorer.multiple;
    const dead = votes.map(() => []);
    const sizes = votes.map(() => 0);
    for (const cls of method.class_order) {
      sizes[bundleOf[cls]]++;
      if (!alive[cls]) dead[bundleOf[cls]].push(cls);
    }
    dead.forEach((classes, bundle) => {
      const missing = (multiple - ((sizes[bundle] - classes.length) % multiple)) % multiple;
      for (const cls of classes.slice(0, missing)) alive[cls] = 1;
    });
  }

  /* ---- Counting (ranp.resources.counting, the paper's convention) ---- */

  function count(alive) {
    const living = new Int32Array(atoms);
    for (let cls = 0; cls < alive.length; cls++) living[atomOf[cls]] += alive[cls];
    const dims = data.model.dims.map((dim) =>
      dim.reduce((sum, [atom, times]) => sum + times * living[atom], 0)
    );
    const elements = (extent) => extent.dims.reduce((size, dim) => size * dims[dim], extent.size);
    const rows = {};
    for (const key of ["flops", "activations", "parameters"]) rows[key] = new Float64Array(data.rows);
    for (const call of data.model.calls) {
      const out = elements(call);
      rows.activations[call.row] += out;
      rows.flops[call.row] += operations(call, out, elements);
    }
    for (const tensor of data.model.tensors) rows.parameters[tensor.row] += elements(tensor);
    return { kept: data.model.neurons.map((dim) => dims[dim]), rows };
  }

  function operations(call, out, elements) {
    switch (call.op) {
      case "conv": {
        const inputs = elements(call.inputs);
        const perGroup = call.groups ? Math.floor(inputs / call.groups) : 1;
        return out * (perGroup * call.kernel + call.bias);
      }
      case "linear":
        return out * (2 * elements(call.inputs) - 1 + call.bias);
      case "adaptive":
        return out * (Math.floor(elements(call.inputs) / Math.max(out, 1)) + 1);
      case "softmax":
        return call.batch * (3 * elements(call.channels) - 1);
      default:
        return out * call.cost;
    }
  }

  const sum = (values) => values.reduce((a, b) => a + b, 0);

  function evaluate(name, sparsity) {
    const { kept, rows } = count(choose(methods[name], sparsity));
    return {
      kept,
      rows,
      empty: kept.flatMap((left, number) => (left ? [] : [data.layers[number].name])),
      totals: {
        gflops: sum(rows.flops) / 1e9,
        param_mb: (sum(rows.parameters) * 4) / 2 ** 20,
        memory_mb: (sum(rows.activations) * 4) / 2 ** 20,
        neurons: sum(kept),
      },
    };
  }

  /* ---- The page ---- */

  const $ = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  // toFixed rounds the number itself, as Python does; Intl.NumberFormat its shortest decimals.
  const form = (value, digits) => {
    const [whole, fraction] = value.toFixed(digits).split(".");
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
    key: node.dataset.live,
    digits: Number(node.dataset.digits),
    full: Number(node.dataset.full),
    share: node.parentElement.querySelector(".share"),
  }));
  const charts = all("table[data-chart]").map((table) => ({
    key: table.dataset.chart,
    scale: Number(table.dataset.scale),
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
  const blocks = all("#picture .block").map((block) => ({
    block,
    kept: $(".kept", block),
    label: $(".after", block),
    width: Number($(".full", block).getAttribute("width")),
  }));
  const listed = all("#picture-numbers .after");
  const stages = all("[data-stage]").map((head) => ({
    head,
    method: methods[head.dataset.stage],
    name: head.dataset.stage,
    low: Math.log(head.dataset.low),
    high: Math.log(head.dataset.high),
    threshold: $(".threshold", head),
    veils: all(`.veil[data-of="${CSS.escape(head.dataset.stage)}"]`),
    lines: all(`.cut[data-of="${CSS.escape(head.dataset.stage)}"]`),
  }));

  let method = methods[data.plan.method] ? data.plan.method : Object.keys(methods)[0];
  let sparsity = data.plan.sparsity;

  function show() {
    const began = performance.now();
    const found = evaluate(method, sparsity);
    const feasible = found.empty.length === 0;
    const most = methods[method].max_sparsity;
    panel.classList.toggle("infeasible", !feasible);
    range.value = sparsity;
    range.setAttribute("aria-valuetext", `${form(100 * sparsity, 2)} %`);
    if (document.activeElement !== exact) exact.value = Number((100 * sparsity).toFixed(4));
    $("#feasible-range").style.width = `${100 * most}%`;
    $("#feasible-label").textContent = `${form(100 * most, 1)} %`;
    $("#verdict").textContent = feasible
      ? ""
      : `Not possible: ${found.empty[0]} would be empty` +
        (found.empty.length > 1 ? `, and ${found.empty.length - 1} more.` : ".");
    for (const { node, key, digits, full, share } of live) {
      const value = found.totals[key];
      write(node, feasible ? form(value, digits) : "–");
      node.dataset.value = feasible ? value : "";
      write(share, feasible ? `${form((100 * value) / full, 1)} %` : "");
    }
    showLayers(found);
    showThresholds();
    $("#reset").disabled = method === data.plan.method && sparsity === data.plan.sparsity;
    panel.dataset.milliseconds = performance.now() - began;
  }

  function showLayers({ kept, rows }) {
    for (const chart of charts) {
      chart.rows.forEach((parts, number) => {
        const value =
          chart.key === "neurons"
            ? kept[number]
            : chart.scale * data.layers[number].rows.reduce((s, r) => s + rows[chart.key][r], 0);
        parts.bar.setAttribute("width", (100 * value) / chart.largest);
        write(parts.after, form(value, chart.digits));
        write(parts.left, parts.before ? `${form((100 * value) / parts.before, 0)} %` : "");
        parts.row.classList.toggle("empty", kept[number] === 0);
      });
    }
    blocks.forEach(({ block, kept: bar, label, width }, number) => {
      bar.setAttribute("width", (width * kept[number]) / layers[number].size);
      write(label, form(kept[number], 0));
      block.classList.toggle("empty", kept[number] === 0);
    });
    listed.forEach((cell, number) => write(cell, form(kept[number], 0)));
  }

  function showThresholds() {
    for (const { head, method: ranking, name, low, high, threshold, veils, lines } of stages) {
      const k = prefix(ranking, sparsity);
      const { levels } = ranking;
      const share = k ? levels.ranked[k - 1] / 65535 : 1;
      const value = 10 ** (levels.low + share * (levels.high - levels.low));
      const cut = high > low ? 1000 * within((Math.log(value) - low) / (high - low)) : 0;
      head.classList.toggle("chosen", name === method);
      write(threshold, k ? `${Number(value.toPrecision(3))}` : "none");
      for (const veil of veils) veil.setAttribute("width", cut);
      for (const line of lines) {
        line.setAttribute("x1", cut);
        line.setAttribute("x2", cut);
      }
    }
  }

  const within = (value) => Math.min(Math.max(value, 0), 1);
  let pending = 0;
  const later = () => {
    cancelAnimationFrame(pending);
    pending = requestAnimationFrame(show);
  };

  range.addEventListener("input", () => {
    sparsity = within(Math.round(1000 * range.value) / 1000);
    later();
  });
  exact.addEventListener("input", () => {
    if (exact.value === "" || !Number.isFinite(exact.valueAsNumber)) return;
    // Through text, so that 78.24 % is the same number as 0.7824 in Python.
    sparsity = within(Number((exact.valueAsNumber / 100).toFixed(6)));
    later();
  });
  exact.addEventListener("change", show);
  for (const choice of all('input[name="method"]')) {
    choice.checked = choice.value === method;
    choice.addEventListener("change", () => {
      method = choice.value;
      later();
    });
  }
  $("#reset").addEventListener("click", () => {
    if (methods[data.plan.method]) method = data.plan.method;
    sparsity = data.plan.sparsity;
    for (const choice of all('input[name="method"]')) choice.checked = choice.value === method;
    show();
  });
  if (methods[data.plan.method]) show();
})();
