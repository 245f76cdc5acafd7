"use strict";
(() => {
  const D = JSON.parse(document.getElementById("data").textContent);
  const main = document.getElementById("main");

  // One object per variant; the data is stored by column.
  const V = D.variants.name.map((name, i) => {
    const v = { i };
    for (const column in D.variants) v[column] = D.variants[column][i];
    return v;
  });
  const K = D.kernels;
  const byKey = new Map(V.map((v) => [`${D.archs[v.arch].name}/${v.name}`, v]));
  const built = V.filter((v) => v.built);
  const arch = (v) => D.archs[v.arch].name;
  const kernel = (v) => K[v.kernel];
  const label = (v, axis) => kernel(v).axes[axis].labels[v.labels[axis]];
  const keyOf = (v) => `${arch(v)}/${v.name}`;

  // Elements: h("a", {href: "#"}, "text", child, ...)
  function h(tag, props, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(props || {})) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value === true) element.setAttribute(name, "");
      else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
    }
    element.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
    return element;
  }
  const text = (n) => (Number.isInteger(n) ? n.toLocaleString("en") : n.toLocaleString("en", { maximumFractionDigits: 1 }));
  const mib = (n) => `${(n / 2 ** 20).toFixed(2)} MiB`;
  const kib = (n) => `${(n / 1024).toFixed(1)} KiB`;
  const widths = (counts) => Object.keys(counts).sort((a, b) => b - a).map((w) => `${w}:${counts[w]}`).join(" ");
  const widest = (counts) => Math.max(0, ...Object.keys(counts).map(Number));
  const place = (archName, name) => `#/variant/${encodeURIComponent(archName)}/${encodeURIComponent(name)}`;
  const link = (v) => place(arch(v), v.name);
  const decoded = (part) => { try { return decodeURIComponent(part); } catch { return part; } };
  const query = (values) => "#/variants?" + new URLSearchParams(Object.entries(values).filter(([, x]) => x !== "" && x !== undefined));
  const whole = (check) => check.ok && !check.unchecked.length;
  const card = (title, ...content) => h("section", { class: "card" }, title && h("h2", {}, title), content);
  const tile = (value, what, kind) => h("div", { class: `tile ${kind || ""}` }, h("b", {}, value), h("span", {}, what));

  // The columns of the table: title, how to read, how to show; `wide` ones are left out on a phone.
  const COLUMNS = [
    { id: "name", title: "variant", text: true, get: (v) => v.name },
    { id: "arch", title: "arch", text: true, wide: true, get: (v) => arch(v) },
    { id: "registers", title: "regs", get: (v) => v.registers },
    { id: "spill", title: "spill", wide: true, get: (v) => v.spill_bytes + v.local, show: (v) => (v.spill_bytes + v.local ? h("span", { class: "bad-text" }, text(v.spill_bytes || v.local)) : "0") },
    { id: "occupancy", title: "occ. %", get: (v) => v.occupancy },
    { id: "limited", title: "limited by", text: true, wide: true, get: (v) => v.limited_by },
    { id: "shared", title: "shared", wide: true, get: (v) => v.shared_bytes },
    { id: "warps", title: "warps", wide: true, get: (v) => v.num_warps },
    { id: "loads", title: "loads", wide: true, get: (v) => widest(v.loads), show: (v) => widths(v.loads) },
    { id: "instructions", title: "instr.", wide: true, get: (v) => v.instructions },
    { id: "size", title: "KiB", get: (v) => v.cubin_bytes, show: (v) => (v.cubin_bytes / 1024).toFixed(1) },
  ];

  /* ---- overview ---- */
  function overview() {
    const check = D.verification;
    const spilling = built.filter((v) => v.spill_bytes + v.local).length;
    const cubins = D.archs.reduce((sum, a) => sum + a.cubins, 0);
    const tiles = h("div", { class: "tiles" },
      tile(text(built.length), "variants built"),
      tile(text(cubins), "distinct cubins"),
      tile(mib(D.archs.reduce((sum, a) => sum + a.pack_bytes, 0)), "packs"),
      tile(text(Math.max(0, ...built.map((v) => v.registers))), "most registers"),
      tile(`${text(Math.min(100, ...built.map((v) => v.occupancy)))} %`, "least occupancy"),
      tile(text(spilling), "variants that spill", spilling ? "bad" : "good"),
      check && tile(check.ok ? (whole(check) ? "verified" : "in part") : "not verified", whole(check) ? "every check passed" : "see Checks", check.ok ? (whole(check) ? "good" : "") : "bad"),
      D.diff && tile(text(D.diff.added.length + D.diff.removed.length + D.diff.changed.length + D.diff.cells.length + D.diff.differences.length), "differences from the other build"));
    const archs = card("Architectures", h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, ["arch", "variants", "left out", "cubins", "pack", "driver from", "ELF ABI", "ptxas"].map((t, i) => h("th", { class: i ? "" : "text", scope: "col" }, t)))),
      h("tbody", {}, D.archs.map((a) => h("tr", {}, h("td", { class: "text" }, h("a", { href: query({ arch: a.name }) }, a.name)),
        [text(a.variants), text(a.left_out), text(a.cubins), mib(a.pack_bytes), a.least_driver, a.elf_abi.join(" "), D.toolchain.ptxas[a.name] || ""].map((t) => h("td", {}, t))))))));
    const kernels = card("Kernels", h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, ["kernel", "variants", "registers", "from 0 to 255", "occupancy %", "KiB of code", "what it does"].map((t, i) => h("th", { class: i === 0 || i === 3 || i === 6 ? "text" : "", scope: "col" }, t)))),
      h("tbody", {}, K.map((k, index) => {
        const own = built.filter((v) => v.kernel === index);
        const values = own.map((v) => v.registers);
        const range = (get) => own.length ? `${text(Math.min(...own.map(get)))} - ${text(Math.max(...own.map(get)))}` : "";
        return h("tr", {}, h("td", { class: "text" }, h("a", { href: query({ kernel: k.name }) }, k.name)), h("td", {}, text(own.length)), h("td", {}, range((v) => v.registers)),
          h("td", {}, histogram(values)), h("td", {}, range((v) => v.occupancy)), h("td", {}, text(Math.round(own.reduce((s, v) => s + v.code_bytes, 0) / 1024))),
          h("td", { class: "text wrap quiet-text" }, k.summary));
      })))));
    return [
      h("h1", {}, `Build ${D.build_id.slice(0, 16)}`),
      h("p", { class: "lead" }, `${D.source} · profile ${D.profile} · Triton ${D.toolchain.triton}, ptxas ${[...new Set(Object.values(D.toolchain.ptxas))].join(", ")}`,
        D.toolchain.nvrtc ? `, NVRTC ${D.toolchain.nvrtc}` : ""),
      tiles, heatCard(), kernels, archs,
    ];
  }

  function histogram(values) {
    const bins = new Array(16).fill(0);
    for (const value of values) bins[Math.min(15, Math.floor(value / 16))] += 1;
    const most = Math.max(1, ...bins);
    return h("div", { class: "hist", role: "img", "aria-label": `registers of ${values.length} variants` },
      bins.map((count, bin) => h("i", { style: `height:${(100 * count) / most}%${count ? "" : ";background:var(--line)"}`, title: `${count} variants with ${16 * bin} to ${16 * bin + 15} registers` })));
  }

  /* ---- heat map ---- */
  const METRICS = {
    occupancy: { title: "occupancy %", worst: Math.min, what: "the least", get: (v) => v.occupancy, most: 100 },
    registers: { title: "registers", worst: Math.max, what: "the most", get: (v) => v.registers, most: 255 },
    instructions: { title: "instructions", worst: Math.max, what: "the most", get: (v) => v.instructions },
    size: { title: "cubin KiB", worst: Math.max, what: "the largest", get: (v) => Math.round(v.cubin_bytes / 102.4) / 10 },
  };
  const heat = { kernel: Math.max(0, K.reduce((best, k, i) => (k.variants > K[best].variants ? i : best), 0)), arch: 0, row: "", column: "*", split: "" };
  const forward = K.findIndex((k) => k.name === "forward");
  if (forward >= 0) heat.kernel = forward;

  function heatCard() {
    const holder = h("div", {});
    const draw = () => {
      const k = K[heat.kernel];
      const names = k.axes.map((a) => a.name);
      const bySize = [...k.axes].sort((a, b) => b.labels.length - a.labels.length).map((a) => a.name);
      if (!names.includes(heat.row)) heat.row = bySize[0] || "";
      if (heat.column !== "*" && (!names.includes(heat.column) || heat.column === heat.row)) heat.column = "*";
      if (heat.column === "*") heat.split = "";
      if (heat.split && (!names.includes(heat.split) || heat.split === heat.row || heat.split === heat.column)) heat.split = "";
      const choose = (title, key, options) => h("label", {}, title, h("select", { onchange: (e) => { heat[key] = typeof heat[key] === "number" ? Number(e.target.value) : e.target.value; draw(); holder.querySelector(`[data-key=${key}]`).focus(); }, "data-key": key },
        options.map(([value, shown]) => h("option", { value, selected: String(heat[key]) === String(value) }, shown))));
      const tools = h("div", { class: "tools" },
        choose("kernel", "kernel", K.map((x, i) => [i, x.name])), choose("arch", "arch", D.archs.map((a, i) => [i, a.name])),
        choose("rows", "row", names.map((n) => [n, n])), choose("columns", "column", [["*", "every combination of the others"], ...names.filter((n) => n !== heat.row).map((n) => [n, n])]),
        heat.column === "*" ? null : choose("one map per", "split", [["", "all together"], ...names.filter((n) => n !== heat.row && n !== heat.column).map((n) => [n, n])]));
      const own = built.filter((v) => v.kernel === heat.kernel && v.arch === heat.arch);
      const split = k.axes.findIndex((a) => a.name === heat.split);
      const parts = split < 0 ? [["", own]] : k.axes[split].labels.map((l, i) => [`${heat.split} ${l}`, own.filter((v) => v.labels[split] === i)]);
      const maps = parts.map(([title, members]) => ["occupancy", "registers"].map((metric) =>
        h("div", {}, h("p", { class: "quiet-text" }, `${METRICS[metric].title}${title ? `, ${title}` : ""}: ${METRICS[metric].what} of the variants of a field`, members.length ? ramp(members, metric) : null), heatTable(k, members, metric, split, title))));
      const dense = () => ["occupancy", "registers"].map((metric) => [h("p", { class: "quiet-text", style: "margin:10px 0 4px" }, `${METRICS[metric].title}`, ramp(own, metric), "faint where another combination's variant serves, a dot where there is none"), denseTable(k, own, metric)]);
      if (heat.column === "*" && own.length) return holder.replaceChildren(tools, ...dense().flat());
      holder.replaceChildren(tools, own.length ? h("div", { class: "grid" }, maps) : h("p", {}, "This build has no variant of it on this arch."));
    };
    draw();
    return card("Occupancy and registers over the axes", holder);
  }

  function ramp(members, metric) {
    const values = members.map(METRICS[metric].get);
    return h("span", { style: "white-space:nowrap;padding:0 10px" }, text(Math.min(...values)), h("span", { class: "ramp" }), text(Math.max(...values)));
  }
  const shade = (share) => `background:color-mix(in oklab, var(--heat-high) ${Math.round(6 + 94 * share)}%, var(--heat-low));${share > 0.45 ? "color:var(--on-heat)" : ""}`;

  // A field per cell: rows are one axis, columns all combinations of the others, whose labels head the table.
  function denseTable(k, members, metric) {
    const M = METRICS[metric];
    const values = members.map(M.get);
    const low = Math.min(...values), high = Math.max(...values);
    const rowAxis = k.axes.findIndex((a) => a.name === heat.row);
    const others = k.axes.map((a, i) => i).filter((i) => i !== rowAxis);
    let columns = [[]];
    for (const i of others) columns = columns.flatMap((c) => k.axes[i].labels.map((_, n) => [...c, n]));
    const numbered = V.filter((v) => v.kernel === heat.kernel && v.arch === heat.arch);
    const field = (labels) => {
      const cell = k.axes.reduce((sum, a, i) => sum * a.labels.length + labels[i], 0);
      const v = numbered[k.cells[cell]];
      const named = k.axes.map((a, i) => a.labels[labels[i]]).join(" ");
      if (!v || !v.built) return h("td", {}, h("span", { class: "none", title: `${named}: ${v ? "left out" : k.reasons[cell] || "none"}` }, "·"));
      const value = M.get(v);
      const served = v.cell !== cell;
      return h("td", {}, h("a", { href: link(v), class: served ? "served" : "", title: `${named}: ${M.title} ${text(value)}${served ? `, served by ${v.name}` : ""}`, "aria-label": `${named}: ${text(value)}`, style: shade(high > low ? (value - low) / (high - low) : 0.5) }, columns.length <= 26 ? text(value) : ""));
    };
    const heads = others.map((axis, depth) => {
      const span = others.slice(depth + 1).reduce((product, i) => product * k.axes[i].labels.length, 1);
      const repeats = columns.length / (span * k.axes[axis].labels.length);
      const fits = span >= 3 || columns.length <= 26;
      return fits ? h("tr", {}, h("th", { class: "text" }, ""), Array.from({ length: repeats }, () => k.axes[axis].labels.map((l) => h("th", { colspan: span, scope: "colgroup" }, l)))) : null;
    });
    const rows = rowAxis < 0 ? [["all", null]] : k.axes[rowAxis].labels.map((l, n) => [l, n]);
    return h("div", { class: "scroll" }, h("table", { class: "heat dense", "aria-label": `${M.title} by cell` }, h("thead", {}, heads), h("tbody", {}, rows.map(([l, n]) => h("tr", {}, h("th", { class: "text", scope: "row" }, l), columns.map((c) => {
      const labels = [];
      others.forEach((axis, j) => { labels[axis] = c[j]; });
      if (rowAxis >= 0) labels[rowAxis] = n;
      return field(labels);
    }))))));
  }

  function heatTable(k, members, metric, split, title) {
    const M = METRICS[metric];
    const rowAxis = k.axes.findIndex((a) => a.name === heat.row);
    const columnAxis = k.axes.findIndex((a) => a.name === heat.column);
    const rows = rowAxis < 0 ? ["all"] : k.axes[rowAxis].labels;
    const columns = columnAxis < 0 ? ["all"] : k.axes[columnAxis].labels;
    const values = members.map(M.get);
    const low = Math.min(...values), high = Math.max(...values);
    return h("div", { class: "scroll" }, h("table", { class: "heat" },
      h("thead", {}, h("tr", {}, h("th", { class: "text" }, rowAxis < 0 ? "" : heat.row), columns.map((c) => h("th", { scope: "col" }, c)))),
      h("tbody", {}, rows.map((r, ri) => h("tr", {}, h("th", { class: "text", scope: "row" }, r), columns.map((c, ci) => {
        const inside = members.filter((v) => (rowAxis < 0 || v.labels[rowAxis] === ri) && (columnAxis < 0 || v.labels[columnAxis] === ci));
        if (!inside.length) return h("td", {}, h("span", { class: "none", title: "no variant" }, "·"));
        const value = M.worst(...inside.map(M.get));
        const share = high > low ? (value - low) / (high - low) : 0.5;
        const filter = { kernel: k.name, arch: D.archs[heat.arch].name, sort: metric === "occupancy" ? "occupancy" : "registers" };
        if (rowAxis >= 0) filter[heat.row] = r;
        if (columnAxis >= 0) filter[heat.column] = c;
        if (split >= 0) filter[heat.split] = title.slice(heat.split.length + 1);
        return h("td", {}, h("a", { href: query(filter), title: `${inside.length} variants: ${inside.length > 1 ? `${text(Math.min(...inside.map(M.get)))} to ${text(Math.max(...inside.map(M.get)))}` : inside[0].name}`,
          style: shade(share) }, text(value)));
      }))))));
  }

  /* ---- variants ---- */
  function variantsView(options) {
    const state = { q: "", kernel: "", arch: "", sort: "name", dir: "", spilling: "", ...options };
    const k = K.findIndex((x) => x.name === state.kernel);
    const rowsHolder = { list: [], height: 34 };
    const body = h("tbody", { onkeydown: move });
    const head = h("tr", {});
    const count = h("span", { class: "count", role: "status" });
    const axisTools = h("span", { style: "display:contents" });

    const set = (key, value) => {
      state[key] = value;
      if (key === "kernel") return void (location.hash = query({ q: state.q, kernel: value, arch: state.arch }));
      history.replaceState(null, "", query(state));
      refresh();
    };
    const choose = (title, key, choices) => h("label", {}, title, h("select", { id: `f-${key}`, onchange: (e) => set(key, e.target.value) },
      h("option", { value: "" }, "all"), choices.map((c) => h("option", { value: c, selected: state[key] === c }, c))));
    if (k >= 0) axisTools.append(...K[k].axes.map((a) => choose(a.name, a.name, a.labels)));

    const tools = h("div", { class: "tools" },
      h("label", {}, "search", h("input", { type: "search", id: "f-q", value: state.q, placeholder: "words of the name, in any order", oninput: (e) => set("q", e.target.value) })),
      choose("kernel", "kernel", K.map((x) => x.name)), choose("arch", "arch", D.archs.map((a) => a.name)), axisTools,
      h("label", {}, "spills", h("select", { id: "f-spilling", onchange: (e) => set("spilling", e.target.value) }, h("option", { value: "" }, "all"), h("option", { value: "only", selected: state.spilling === "only" }, "only those"))),
      count);

    function refresh() {
      const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
      rowsHolder.list = built.filter((v) => {
        if (state.kernel && kernel(v).name !== state.kernel) return false;
        if (state.arch && arch(v) !== state.arch) return false;
        if (state.spilling && !(v.spill_bytes + v.local)) return false;
        if (k >= 0 && K[k].axes.some((a, i) => state[a.name] && a.labels[v.labels[i]] !== state[a.name])) return false;
        const name = `${v.name} ${arch(v)}`.toLowerCase();
        return words.every((word) => name.includes(word));
      });
      const column = COLUMNS.find((c) => c.id === state.sort) || COLUMNS[0];
      const sign = (state.dir || (column.text || column.id === "occupancy" ? "up" : "down")) === "up" ? 1 : -1;
      rowsHolder.list.sort((a, b) => {
        const x = column.get(a), y = column.get(b);
        return (x < y ? -sign : x > y ? sign : 0) || (a.name < b.name ? -1 : a.name > b.name ? 1 : a.arch - b.arch);
      });
      count.textContent = `${text(rowsHolder.list.length)} of ${text(built.length)} variants`;
      head.replaceChildren(...COLUMNS.map((c) => {
        const on = c.id === column.id;
        return h("th", { class: `${c.text ? "text" : ""} ${c.wide ? "wide" : ""}`, scope: "col", "aria-sort": on ? (sign > 0 ? "ascending" : "descending") : "none" },
          h("button", { type: "button", "data-sort": c.id, onclick: () => { set("dir", on ? (sign > 0 ? "down" : "up") : "") ; set("sort", c.id); head.querySelector(`[data-sort=${c.id}]`).focus(); } }, c.title, on ? (sign > 0 ? " ▲" : " ▼") : ""));
      }));
      draw(true);
    }

    // Rows outside of the window are one empty row above and one below.
    let drawn = "";
    function draw(force) {
      if (!body.isConnected && !force) return;
      const list = rowsHolder.list;
      const top = body.isConnected ? body.getBoundingClientRect().top : 200;
      const first = Math.max(0, Math.min(list.length, Math.floor(-top / rowsHolder.height) - 12));
      const last = Math.min(list.length, first + Math.ceil(innerHeight / rowsHolder.height) + 24);
      const now = `${first}-${last}`;
      if (!force && now === drawn) return;
      drawn = now;
      const focused = document.activeElement && document.activeElement.closest("tr[data-row]");
      const row = focused && body.contains(focused) ? focused.dataset.row : null;
      const space = (n) => h("tr", { class: "spacer", "aria-hidden": "true" }, h("td", { colspan: COLUMNS.length, style: `height:${n * rowsHolder.height}px` }));
      body.replaceChildren(space(first), ...list.slice(first, last).map((v, i) => h("tr", { "data-row": first + i, "aria-rowindex": first + i + 2 },
        COLUMNS.map((c) => h("td", { class: `${c.text ? "text" : ""} ${c.wide ? "wide" : ""}`, title: c.text ? c.get(v) : null }, c.id === "name" ? h("a", { href: link(v) }, v.name, h("span", { class: "narrow quiet-text" }, `${arch(v)}, limited by ${v.limited_by}`)) : c.show ? c.show(v) : text2(c.get(v)))))), space(list.length - last));
      if (row !== null) { const again = body.querySelector(`tr[data-row="${row}"] a`); if (again) again.focus({ preventScroll: true }); }
      const real = body.querySelector("tr[data-row]");
      if (real && real.offsetHeight && Math.abs(real.offsetHeight - rowsHolder.height) > 0.5) { rowsHolder.height = real.offsetHeight; draw(true); }
    }
    const text2 = (x) => (typeof x === "number" ? text(x) : x);

    function move(event) {
      const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15 }[event.key];
      const row = event.target.closest("tr[data-row]");
      if (!step || !row) return;
      event.preventDefault();
      const next = Math.max(0, Math.min(rowsHolder.list.length - 1, Number(row.dataset.row) + step));
      const y = body.getBoundingClientRect().top + next * rowsHolder.height;
      if (y < 130) scrollBy(0, y - 130);
      else if (y > innerHeight - 60) scrollBy(0, y - innerHeight + 100);
      draw(true);
      const target = body.querySelector(`tr[data-row="${next}"] a`);
      if (target) target.focus({ preventScroll: true });
    }

    onScroll = () => draw(false);
    const view = [h("h1", {}, "Variants"), h("p", { class: "lead" }, "What each costs. Arrow keys move through the rows, Enter opens one."), tools,
      h("section", { class: "card", style: "padding:0;overflow:clip" }, h("table", { class: "rows", "aria-label": "Variants", "aria-rowcount": built.length + 1 },
        h("colgroup", {}, COLUMNS.map((c) => h("col", { class: `${c.id} ${c.wide ? "wide" : ""}` }))),
        h("thead", {}, head), body))];
    afterRender = () => { refresh(); };
    return view;
  }

  /* ---- one variant ---- */
  function variantView(key) {
    const v = byKey.get(key);
    if (!v) return [h("h1", {}, "No such variant"), h("p", {}, key, " is not in this build. ", h("a", { href: "#/variants" }, "All variants"))];
    const k = kernel(v);
    const a = D.archs[v.arch];
    const facts = (rows) => h("dl", {}, rows.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
    const others = D.archs.map((x) => byKey.get(`${x.name}/${v.name}`)).filter((x) => x && x.i !== v.i && x.built);
    const near = k.axes.map((axis, i) => [axis.name, V.filter((o) => o.kernel === v.kernel && o.arch === v.arch && o.i !== v.i && o.labels.every((x, j) => j === i || x === v.labels[j]))]).filter(([, list]) => list.length);
    const change = D.diff && D.diff.changed.find((c) => c.name === v.name && c.arch === arch(v));
    const top = [
      h("p", { class: "quiet-text" }, h("a", { href: query({ kernel: k.name, arch: a.name }) }, `${k.name} on ${a.name}`)),
      h("h1", { class: "mono" }, v.name),
      h("p", { class: "lead" }, k.axes.map((axis, i) => [h("span", { class: "pill", title: axis.doc }, `${axis.name} ${axis.labels[v.labels[i]]}`), " "]), h("span", { class: "pill quiet" }, a.name), " ",
        others.map((o) => [h("a", { class: "pill", href: link(o) }, `on ${arch(o)}`), " "])),
    ];
    if (!v.built) return [...top, card("Left out", h("p", {}, `The profile ${D.profile} does not build it: asking for it is an error that says so.`)), neighbours(near)];
    const used = Object.entries(v.budget).map(([name, limit]) => {
      const value = { registers: v.registers, spill_bytes: v.spill_bytes, stack_bytes: v.stack_bytes, shared_bytes: v.dynamic_bytes, cubin_bytes: v.cubin_bytes, occupancy_percent: v.occupancy, fences: v.fences, ordered: v.ordered }[name];
      const least = ["occupancy_percent", "fences", "ordered"].includes(name);
      return [name.replace("_", " "), h("div", {}, `${text(value)}, ${least ? "at least" : "at most"} ${text(limit)}`, limit ? meter(value / limit, least ? value < limit : value > limit) : null)];
    });
    const bars = (counts) => {
      const total = Math.max(1, ...Object.values(counts));
      const keys = Object.keys(counts).sort((x, y) => y - x);
      return keys.length ? keys.map((w) => [`${w} bytes`, h("div", { style: "display:flex;gap:10px;align-items:center" }, h("span", { style: "min-width:3em" }, text(counts[w])), h("div", { style: "flex:1" }, meter(counts[w] / total, false)))]) : [["none", ""]];
    };
    return [
      ...top,
      change && card("Since the other build", changes(change)),
      h("div", { class: "tiles" }, tile(text(v.registers), "registers a thread"), tile(`${text(v.occupancy)} %`, `occupancy: ${text(v.warps)} of ${a.limits.warps} warps`),
        tile(text(v.spill_bytes), "bytes spilled", v.spill_bytes ? "bad" : "good"), tile(text(v.shared_bytes), "bytes of shared memory"), tile(text(v.instructions), "instructions"), tile(kib(v.cubin_bytes), "cubin")),
      h("div", { class: "masonry" },
        card("Occupancy", facts([["limited by", v.limited_by], ["blocks", `${v.blocks} of ${a.limits.blocks} on a multiprocessor`], ["warps of a block", text(v.num_warps)], ["share", meter(v.occupancy / 100, false)],
          ["registers", `${text(v.registers)} a thread, ${v.maxnreg ? `at most ${v.maxnreg}` : "no limit set"}`], ["shared memory", `${text(v.shared_bytes - v.dynamic_bytes)} bytes static, ${text(v.dynamic_bytes)} dynamic`], ["named barriers", text(v.barriers)]])),
        card("Global loads", facts(bars(v.loads)), v.row_loads.length ? h("p", { class: "quiet-text", style: "margin:8px 0 0" }, v.row_loads.map((r) => `The build demands at least ${r.min_count} of ${r.bytes} bytes${r.forbid_narrow ? ", and none of 1 or 2 bytes" : ""}. `)) : null),
        card("Global stores", facts(bars(v.stores))),
        card("Machine code", facts([["64-bit floats", text(v.fp64)], ["local memory", `${text(v.local)} loads and stores`], ["shared memory", `${text(v.shared_accesses)} loads and stores`], ["atomics", text(v.atomics)], ["fences", text(v.fences)],
          ["ordered accesses", text(v.ordered)], ["barriers", text(v.bar)], ["tensor cores", text(v.tensor)], ["calls", text(v.calls)], ["code", kib(v.code_bytes)]])),
        card("Compiled with", facts([...Object.entries(v.constants).map(([n, x]) => [n, x === "" ? "(none)" : String(x)]), ["num_warps", v.num_warps], ["num_stages", v.num_stages], ["fp fusion", v.enable_fp_fusion ? "on" : "off"],
          [k.language === "cuda" ? "NVRTC" : "Triton", k.language === "cuda" ? D.toolchain.nvrtc : D.toolchain.triton], ["ptxas", D.toolchain.ptxas[a.name]]])),
        card("Budget", used.length ? facts(used) : h("p", {}, "none")),
        card("Identity", facts([["cubin", h("code", {}, v.sha256)], ["source", h("code", { title: "the kernel and all that it imports" }, k.source_sha256)], ["in", `${a.pack}, number ${v.blob}`], ["entry", h("code", {}, v.entry)], ["cell", text(v.cell)],
          v.serves.length ? ["also serves", v.serves.map((cell) => h("div", {}, cellText(k, cell)))] : null])),
        neighbours(near)),
      D.sass[key] ? card("SASS", h("pre", { tabindex: "0", "aria-label": "machine code" }, colour(D.sass[key]))) : null,
      card("Parameters", h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["name", "type", "offset", "bytes", "meaning"].map((t, i) => h("th", { class: i === 2 || i === 3 ? "" : "text", scope: "col" }, t)))),
        h("tbody", {}, k.params.map((p) => h("tr", {}, h("td", { class: "text mono" }, p.name), h("td", { class: "text mono" }, p.type.replace(/\{(\w+)\}/g, (m, n) => { const i = k.axes.findIndex((x) => x.name === n); return i < 0 ? m : k.axes[i].values[v.labels[i]]; })),
          h("td", {}, p.offset), h("td", {}, p.size), h("td", { class: "text wrap quiet-text" }, p.doc))))))),
    ];
  }
  const meter = (share, bad) => h("div", { class: `meter ${bad ? "bad" : ""}`, role: "img", "aria-label": `${Math.round(100 * share)} %` }, h("i", { style: `width:${Math.max(0, Math.min(100, 100 * share))}%` }));
  function neighbours(near) {
    return card("One axis away", near.length ? h("dl", {}, near.map(([axis, list]) => [h("dt", {}, axis), h("dd", {}, list.map((o) => {
      const i = kernel(o).axes.findIndex((x) => x.name === axis);
      return [h("a", { href: link(o), title: o.name }, label(o, i)), o.built ? h("span", { class: "quiet-text" }, ` ${o.registers} regs, ${text(o.occupancy)} %`) : h("span", { class: "quiet-text" }, " left out"), h("br")];
    }))])) : h("p", {}, "none"));
  }
  function cellText(k, cell) {
    const values = [];
    for (let i = k.axes.length - 1; i >= 0; i--) { const n = k.axes[i].labels.length; values.unshift(k.axes[i].labels[cell % n]); cell = Math.floor(cell / n); }
    return values.join(" ");
  }
  // Wide accesses stand out, and what hurts: local memory and calls.
  function colour(listing) {
    return listing.split("\n").map((line) => {
      const kind = /\b(LDL|STL|CALL)\b/.test(line) ? "hurt" : /\b(LDG|STG)\S*\.(128|256)\b/.test(line) ? "hot" : null;
      return kind ? [h("span", { class: kind }, line), "\n"] : `${line}\n`;
    });
  }

  /* ---- coverage ---- */
  function coverageView() {
    const legend = h("p", { class: "legend" }, [["own", "a variant of its own"], ["served", "served by another cell's variant"], ["refused", "no operator asks for it, with a reason"], ["left", `left out by the profile ${D.profile}`]].map(([c, t]) => h("span", {}, h("i", { class: c }), t)));
    const proof = D.verification && D.verification.checks.filter((c) => ["cells", "reachable", "library"].includes(c.name));
    const cards = [...K].sort((a, b) => b.cells.length - a.cells.length).map((k) => {
      const counts = { own: 0, served: 0, refused: 0, left: 0 };
      const first = D.archs.findIndex((a, i) => V.some((v) => v.kernel === K.indexOf(k) && v.arch === i));
      const variants = V.filter((v) => v.kernel === K.indexOf(k) && v.arch === first);
      const squares = k.cells.map((number, cell) => {
        const v = variants[number];
        const kind = !v ? "refused" : !v.built ? "left" : v.cell === cell ? "own" : "served";
        counts[kind] += 1;
        return h("i", { class: kind, title: `${cellText(k, cell)}: ${kind === "refused" ? k.reasons[cell] || "no reason" : kind === "served" ? `served by ${v.name}` : kind === "left" ? "left out" : v.name}` });
      });
      const reasons = [...new Set(Object.values(k.reasons))];
      return h("section", { class: "card", style: k.cells.length > 90 ? "grid-column:1/-1" : null }, h("h2", {}, k.name, " ", h("span", { class: "quiet-text", style: "font-weight:400" }, k.axes.map((a) => `${a.name} (${a.labels.length})`).join(" × ") || "no axes")),
        h("p", { style: "margin:0" }, [`${text(k.cells.length)} combination${k.cells.length === 1 ? "" : "s"}: ${text(counts.own)} with own code`, counts.served && `${text(counts.served)} served by one of those`, counts.refused && `${text(counts.refused)} refused`, counts.left && `${text(counts.left)} left out`].filter(Boolean).join(", ")),
        h("div", { class: "cells", role: "img", "aria-label": `${k.cells.length} cells` }, squares),
        reasons.length ? h("details", {}, h("summary", {}, `${reasons.length === 1 ? "the reason" : `${reasons.length} reasons`} for what is refused`), h("ul", {}, reasons.map((r) => h("li", {}, r, h("span", { class: "quiet-text" }, ` (${text(Object.values(k.reasons).filter((x) => x === r).length)} cells)`))))) : null);
    });
    return [h("h1", {}, "Coverage"), h("p", { class: "lead" }, "Every combination of axis values is a cell. A call's cell is computed from its arguments, never searched: each has exactly one variant, or a reason why no operator can ask for it."),
      legend, proof && card("The proof", proof.map(checkLine)), h("div", { class: "grid" }, cards)];
  }

  /* ---- checks ---- */
  const checkLine = (c) => h("div", { class: "check", style: "padding:7px 0;border-top:1px solid var(--line)" },
    h("span", { class: `pill ${c.status === "passed" ? "good" : c.status === "failed" ? "bad" : "quiet"}` }, c.status), " ", h("b", {}, c.name), " ", c.title, " ",
    c.checked ? h("span", { class: "quiet-text" }, `${text(c.checked)} looked at. `) : null, c.note ? h("span", { class: "quiet-text" }, c.note) : null,
    c.findings.length ? h("ul", {}, c.findings.slice(0, 50).map((f) => h("li", {}, h("code", {}, f.subject), ": ", f.message)), c.findings.length > 50 ? h("li", {}, `and ${c.findings.length - 50} more`) : null) : null);
  function checksView() {
    const check = D.verification;
    if (!check) return [h("h1", {}, "Checks"), h("p", {}, "This report was made without them.")];
    return [h("h1", {}, check.ok ? (whole(check) ? "It is what was built" : "Nothing wrong was found") : "Something is wrong"), h("p", { class: "lead" }, check.verdict), h("p", { class: "lead" }, check.source, check.sha256 ? [" · SHA-256 ", h("code", {}, check.sha256)] : null), card(null, check.checks.map(checkLine))];
  }

  /* ---- diff ---- */
  function changes(c) {
    const titles = Object.fromEntries(D.metrics.map((m) => [m.name, m]));
    return [c.changes.map((x) => h("span", { class: `change ${x.intolerable ? "intolerable" : x.worse ? "worse" : titles[x.metric].worse ? "" : "neutral"}` }, `${titles[x.metric].title} ${text(x.before)} → ${text(x.after)}`)),
      Object.entries(c.settings).map(([name, [b, a]]) => h("span", { class: "change neutral" }, `${name} ${b} → ${a}`)),
      !c.changes.length && !Object.keys(c.settings).length ? h("span", { class: "change neutral" }, "other bytes, the same numbers") : null];
  }
  function diffView(options) {
    const d = D.diff;
    if (!d) return [h("h1", {}, "Diff"), h("p", {}, "This report shows one build. ", h("code", {}, "tbe-aot report NEW --against OLD"), " compares two.")];
    const state = { q: "", only: "", kernel: "", ...options };
    const holder = h("tbody", {});
    const count = h("span", { class: "count", role: "status" });
    const refresh = () => {
      const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
      const list = d.changed.filter((c) => (!state.kernel || c.kernel === state.kernel) && (!state.only || (state.only === "worse" ? c.changes.some((x) => x.worse) : c.changes.some((x) => x.intolerable))) && words.every((w) => `${c.name} ${c.arch}`.toLowerCase().includes(w)));
      count.textContent = `${text(list.length)} of ${text(d.changed.length)} changed variants`;
      holder.replaceChildren(...list.slice(0, 500).map((c) => h("tr", {}, h("td", { class: "text" }, h("a", { href: place(c.arch, c.name) }, c.name)), h("td", { class: "text" }, c.arch), h("td", { class: "text wrap" }, changes(c)))),
        ...(list.length > 500 ? [h("tr", {}, h("td", { class: "text", colspan: 3 }, `and ${list.length - 500} more: filter them`))] : []));
    };
    const names = (title, list) => list.length ? card(`${title}: ${text(list.length)}`, h("details", { open: list.length < 12 }, h("summary", {}, "names"), h("ul", { class: "plain mono" }, list.map((n) => h("li", {}, byKey.has(`${n.arch}/${n.name}`) ? h("a", { href: place(n.arch, n.name) }, n.name) : n.name, ` ${n.arch}`))))) : null;
    const table = (title, heads, rows) => rows.length ? card(`${title}: ${text(rows.length)}`, h("details", { open: rows.length < 12 }, h("summary", {}, "list"), h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, heads.map((t) => h("th", { class: "text", scope: "col" }, t)))),
      h("tbody", {}, rows.slice(0, 500).map(([bad, ...cells]) => h("tr", {}, cells.map((c) => h("td", { class: bad ? "text bad-text" : "text" }, c)))),
        rows.length > 500 ? h("tr", {}, h("td", { class: "text", colspan: heads.length }, `and ${rows.length - 500} more: tbe-aot diff lists them`)) : null))))) : null;
    const worse = d.changed.filter((c) => c.changes.some((x) => x.intolerable)).length;
    const set = (key) => (e) => { state[key] = e.target.value; refresh(); };
    afterRender = refresh;
    return [h("h1", {}, "What changed"), h("p", { class: "lead" }, `${d.before} (${d.before_build_id.slice(0, 12)}) → ${d.after} (${d.after_build_id.slice(0, 12)})`),
      h("div", { class: "tiles" }, tile(text(d.added.length), "added"), tile(text(d.removed.length), "removed"), tile(text(d.changed.length), "changed"), tile(text(worse), "worse beyond the tolerance", worse ? "bad" : "good"), tile(text(d.unchanged), "unchanged"),
        Object.entries(d.pack_bytes).map(([a, [b, n]]) => tile(`${n >= b ? "+" : "−"}${(Math.abs(n - b) / 1024).toFixed(0)} KiB`, `pack of ${a}`))),
      Object.keys(d.toolchain).length ? card("Tools", h("dl", {}, Object.entries(d.toolchain).map(([n, [b, a]]) => [h("dt", {}, n), h("dd", {}, `${b} → ${a}`)]))) : null,
      h("div", { class: "tools" }, h("label", {}, "search", h("input", { type: "search", value: state.q, oninput: set("q") })),
        h("label", {}, "kernel", h("select", { onchange: set("kernel") }, h("option", { value: "" }, "all"), K.map((k) => h("option", { value: k.name, selected: state.kernel === k.name }, k.name)))),
        h("label", {}, "show", h("select", { id: "f-only", onchange: set("only") }, h("option", { value: "" }, "all"), h("option", { value: "worse" }, "worse"), h("option", { value: "intolerable" }, "worse beyond the tolerance"))), count),
      card(null, h("div", { class: "scroll" }, h("table", { class: "changed" }, h("thead", {}, h("tr", {}, ["variant", "arch", "before → after, what got worst first"].map((t) => h("th", { class: "text", scope: "col" }, t)))), holder))),
      names("Added", d.added), names("Removed", d.removed),
      table("Cells that lead elsewhere", ["kernel", "arch", "before", "after", "cells"], d.cells.map((c) => [c.lost, c.kernel, c.arch, c.before, c.after, text(c.cells.length)])),
      table("Other differences", ["of", "what", "before", "after"], d.differences.map((x) => [x.worse, x.subject, x.what, x.before ?? "none", x.after ?? "none"]))];
  }

  /* ---- routes ---- */
  const VIEWS = { overview: ["Overview", overview], variants: ["Variants", variantsView], coverage: ["Coverage", coverageView], checks: ["Checks", checksView], diff: ["Diff", diffView] };
  let onScroll = () => {};
  let afterRender = () => {};
  let before = null;
  function render() {
    const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
    const [name, ...rest] = path.split("/");
    onScroll = () => {};
    afterRender = () => {};
    let content, current = name;
    if (name === "variant") { content = variantView(rest.map(decoded).join("/")); current = "variants"; }
    else { if (!VIEWS[name]) current = "overview"; content = VIEWS[current][1](Object.fromEntries(new URLSearchParams(search || ""))); }
    main.replaceChildren(...content.flat(Infinity).filter(Boolean));
    document.getElementById("nav").replaceChildren(...Object.entries(VIEWS).filter(([id]) => id !== "diff" || D.diff).map(([id, [title]]) => h("a", { href: `#/${id}`, "aria-current": id === current ? "page" : null }, title)));
    document.title = `${name === "variant" ? rest.map(decoded).join(" ") : VIEWS[current][0]} · tbe-aot ${D.build_id.slice(0, 8)}`;
    scrollTo(0, 0);
    afterRender();
    if (before !== null) main.focus({ preventScroll: true });
    before = location.hash;
  }
  addEventListener("hashchange", render);
  addEventListener("scroll", () => onScroll(), { passive: true });
  addEventListener("resize", () => onScroll());

  const root = document.documentElement;
  const themes = ["", "light", "dark"];
  const button = document.getElementById("theme");
  const apply = (theme) => { if (theme) root.dataset.theme = theme; else delete root.dataset.theme; button.textContent = { "": "Theme: system", light: "Theme: light", dark: "Theme: dark" }[theme]; };
  let theme = "";
  try { theme = localStorage.getItem("tbe-aot-theme") || ""; } catch { /* a file may have no storage */ }
  apply(themes.includes(theme) ? theme : "");
  button.addEventListener("click", () => {
    theme = themes[(themes.indexOf(root.dataset.theme || "") + 1) % 3];
    apply(theme);
    try { localStorage.setItem("tbe-aot-theme", theme); } catch { /* as above */ }
  });
  document.getElementById("footer").append(`Build ${D.build_id}. Made by tbe-aot report from the build's manifest; occupancy is theoretical.`);
  render();
})();
