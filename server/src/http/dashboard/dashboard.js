// The dashboard: polls /api/* every two seconds and shows the replies. docs/admin.md describes them.

import { lineChart } from "./charts.js";
import { bytes, clock, count, duration, micros, percent, rate } from "./format.js";

const EVERY_MS = 2000;
const $ = (id) => document.getElementById(id);

/** Creates an element; attributes that are functions become event listeners. */
function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value == null || value === false) continue;
    if (key === "class") element.className = value;
    else if (typeof value === "function") element.addEventListener(key, value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** A formatted value with its raw number, which a test compares with INFO. */
const raw = (key, value, text, attributes = {}) =>
  h("dd", { "data-value": key, "data-raw": value ?? "", ...attributes }, text);

/** Fills a list with pairs of a term and a `dd`, or the content of one. */
function facts(list, pairs) {
  const items = pairs.filter(Boolean).flatMap(([term, value]) => [
    h("dt", {}, term),
    value instanceof HTMLElement && value.tagName === "DD" ? value : h("dd", {}, value),
  ]);
  list.replaceChildren(...items);
}

class Refused extends Error {}

async function ask(path) {
  const answer = await fetch(path);
  const body = await answer.json();
  if (answer.status === 401 || answer.status === 403) throw new Refused(body.error);
  if (!answer.ok) throw new Error(body.error ?? `${path}: ${answer.status}`);
  return body;
}

// --- overview ---

function showState(status) {
  const role = status.replication.role;
  $("node").textContent = `${location.hostname}:${status.port}, ${role}`;
  document.title = `Tidemark ${location.hostname}:${status.port}`;
  $("state").textContent = status.unready ? "not ready" : "ready";
  $("state").className = `badge ${status.unready ? "bad" : "good"}`;
  $("alert").hidden = !status.unready;
  $("alert").textContent = status.unready ? `Not ready: ${status.unready}` : "";
  $("version").textContent = `Tidemark ${status.version}, up ${duration(status.values.uptime_in_seconds)}`;
}

function showTiles(status, spaces, last) {
  const values = status.values;
  const rows = sum(spaces.counters, "rows") + sum(spaces.counters, "cold_rows");
  const pairs = sum(spaces.existences, "pairs");
  const tile = (name, key, value, text, more) => {
    const figure = raw(key, value, text);
    figure.append(h("small", {}, more));
    return h("div", {}, h("dt", {}, name), figure);
  };
  const tiles = [
    tile("Pages per second", "pages_per_s", last?.pages_per_s, rate(last?.pages_per_s), `p99 ${micros(last?.page_p99_us)}`),
    tile("Writes per second", "writes_per_s", last?.writes_per_s, rate(last?.writes_per_s), `${rate(last?.commands_per_s)} commands/s`),
    tile("Rows", "rows", rows, count(rows), `in ${spaces.counters.length} counter spaces`),
    tile("Flags", "pairs", pairs, count(pairs), `in ${spaces.existences.length} existence spaces`),
    tile("Memory", "used_memory", values.used_memory, bytes(values.used_memory), `limit: ${bytes(values.maxmemory)}`),
    tile("Clients", "connected_clients", values.connected_clients, count(values.connected_clients), `of ${count(values.maxclients)}`),
    tile("Commands", "total_commands_processed", values.total_commands_processed, count(values.total_commands_processed), `${count(values.total_error_replies)} errors`),
  ];
  $("tiles").replaceChildren(...tiles);
}

const sum = (items, key) => items.reduce((all, item) => all + (item[key] ?? 0), 0);

function showCharts(points) {
  lineChart($("rates"), points, [
    { name: "pages", color: "--s1", key: "pages_per_s" },
    { name: "writes", color: "--s2", key: "writes_per_s" },
  ], rate);
  lineChart($("latency"), points, [
    { name: "p50", color: "--s1", key: "page_p50_us" },
    { name: "p99", color: "--s3", key: "page_p99_us" },
    { name: "p99.9", color: "--s2", key: "page_p999_us" },
  ], micros);
}

// --- spaces ---

/** Number of the selected table of each space, or null for the newest. */
const chosen = new Map();

function showSpaces(spaces) {
  const cards = [...spaces.counters.map(counterCard), ...spaces.existences.map((space) => existenceCard(space, spaces.actions))];
  const focused = document.activeElement?.id;
  if (spaces.loading) cards.push(h("p", { class: "note" }, "The server is loading its data."));
  $("space-list").replaceChildren(...cards);
  if (focused?.startsWith("ring-")) $(focused)?.focus({ preventScroll: true });
}

function counterCard(space) {
  const tables = [...space.cold, ...space.tables];
  const share = space.memory_bytes / Math.max(1, space.memory_limit_bytes);
  const list = h("dl", { class: "facts" });
  facts(list, [
    ["Rows in memory", raw(`counter_${space.name}.rows`, space.rows, count(space.rows))],
    space.cold.length ? ["Rows on disk", count(space.cold_rows)] : null,
    ["Memory", raw(`counter_${space.name}.memory_bytes`, space.memory_bytes, `${bytes(space.memory_bytes)} of ${bytes(space.memory_limit_bytes)} (${percent(share)})`)],
    ["Fields", space.fields],
    space.outliers ? ["Outliers, outside the tables", `${count(space.outliers.rows)} rows`] : null,
    ["At the memory limit", space.spills ? "the oldest table moves to disk" : "new rows are rejected"],
  ]);
  return h("article", { class: "card", "data-space": space.name }, h("h3", {}, `${space.name} `, h("small", {}, "counters")), ...ring(space.name, tables), list);
}

function existenceCard(space, actions) {
  const rates = space.false_positives;
  const list = h("dl", { class: "facts" });
  const forecast = space.spills
    ? "never: the oldest table moves to disk"
    : space.recycled_in_s == null
      ? "never without new pairs"
      : `in ${duration(space.recycled_in_s)}, at ${rate(space.pairs_per_s)} pairs per second`;
  const isKept = rates.at_least <= rates.configured;
  facts(list, [
    ["Pairs", raw(`existence_${space.name}.pairs`, space.pairs, count(space.pairs))],
    ["Memory", raw(`existence_${space.name}.memory_bytes`, space.memory_bytes, `${bytes(space.memory_bytes)}; filter limit ${bytes(space.memory_limit_bytes)}`)],
    ["Horizon", raw(`existence_${space.name}.horizon`, space.horizon, space.horizon === "0" ? "0: the flags of all ids are known" : `id ${space.horizon}`)],
    ["Oldest table is recycled", forecast],
    ["Pairs until then", count(space.pairs_until_recycled)],
    ["False positives, configured", raw(`existence_${space.name}.false_positive_rate`, rates.configured, percent(rates.configured))],
    ["False positives, measured", raw(`existence_${space.name}.measured_rate`, rates.measured ?? 0,
      rates.canaries === 0 ? "not measured yet" : `${percent(rates.measured)} (${percent(rates.at_least)} to ${percent(rates.at_most)})`, { class: isKept ? "" : "bad" })],
    ["Canary lookups", count(rates.canaries)],
    space.outliers ? ["Outliers, outside the tables", `${count(space.outliers.pairs)} pairs`] : null,
    ...actions.filter((action) => action.flag === space.name && action.audit).map(auditLine),
  ]);
  return h("article", { class: "card", "data-space": space.name }, h("h3", {}, `${space.name} `, h("small", {}, "flags")), ...ring(space.name, space.tables), list);
}

/** The last complete audit of an action: wrong counters that are not repaired are bad. */
function auditLine({ name, audit }) {
  const ago = duration(Math.max(0, Date.now() / 1000 - audit.ended_s));
  const text = `${count(audit.differing)} of ${count(audit.ids)} counters differ, ${count(audit.repaired)} repaired, ${ago} ago`;
  const isGood = audit.differing === audit.repaired && audit.unreadable === 0;
  return [`Audit of ${name}`, raw(`audit_${name}.differing`, audit.differing, text, { class: isGood ? "" : "bad" })];
}

/** The strip of a space's tables, and a line that describes the selected one. */
function ring(name, tables) {
  const detail = h("p", { class: "detail", "aria-live": "polite" });
  const bars = tables.map((table) => {
    const fill = table.state === "cold" && table.fill == null ? 1 : Math.min(1, table.fill ?? 0);
    const level = h("b");
    level.style.height = `${Math.max(2, fill * 100)}%`;
    return h("i", { class: table.state, title: describe(table) }, level);
  });
  const select = (number) => {
    const at = number == null || number >= tables.length ? tables.length - 1 : Math.max(0, number);
    chosen.set(name, number == null || at === tables.length - 1 ? null : at);
    bars.forEach((bar, i) => bar.classList.toggle("chosen", i === at && tables.length > 1));
    detail.textContent = tables.length
      ? `Table ${at + 1} of ${tables.length}: ${describe(tables[at])}`
      : "No table yet: the first ids create one.";
    strip.setAttribute("aria-valuenow", at + 1);
    strip.setAttribute("aria-valuetext", detail.textContent);
  };
  const strip = h("div", {
    class: "ring", id: `ring-${name}`, tabindex: 0, role: "slider",
    "aria-label": `Tables of ${name}`, "aria-valuemin": 1, "aria-valuemax": Math.max(1, tables.length),
    keydown: (event) => {
      const now = chosen.get(name) ?? tables.length - 1;
      const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: tables.length - 1 }[event.key];
      if (to == null) return;
      event.preventDefault();
      select(Math.min(tables.length - 1, Math.max(0, to)));
    },
  }, ...bars);
  bars.forEach((bar, i) => bar.addEventListener("click", () => select(i)));
  select(chosen.get(name) ?? null);
  return [strip, detail];
}

function describe(table) {
  const last = BigInt(table.last) === 2n ** 64n - 1n ? "open" : table.last;
  const size = table.rows != null ? `${count(table.rows)} rows` : `${count(table.pairs)} pairs`;
  const fill = table.fill == null ? "" : `, ${percent(table.fill)} full`;
  const more = [
    table.late ? `, ${count(table.late)} late pairs` : "",
    table.extensions ? `, ${table.extensions} extra filters` : "",
    table.draining_rows ? `, ${count(table.draining_rows)} rows still to move here` : "",
  ].join("");
  return `${table.state}, ids ${table.low} to ${last}, ${size}${fill}, ${bytes(table.bytes)}${more}`;
}

// --- memory ---

const PARTS = [
  ["tidemark_memory_part_bytes{part=\"counter_tables\"}", "counter tables", "--s1"],
  ["tidemark_memory_part_bytes{part=\"existence_tables\"}", "flag tables", "--s4"],
  ["mem_tokens", "tokens", "--s9"],
  ["cold_cache_bytes", "cold row cache", "--s3"],
  ["cold_index_bytes", "cold file indexes", "--s7"],
  ["mem_clients_normal", "clients", "--s2"],
  ["mem_tracking_table", "tracking table", "--s5"],
  ["mem_aof_buffer", "log queue", "--s8"],
];

function showMemory(status, spaces) {
  const values = status.values;
  const parts = PARTS.map(([key, name, color]) => ({ key, name, color, size: values[key] ?? 0 }));
  const accounted = sum(parts, "size");
  const resident = values.used_memory_rss;
  const other = Math.max(0, resident - accounted);
  const whole = Math.max(resident, accounted, 1);
  const legend = [...parts.filter((part) => part.size > 0), { name: "program, allocator and other", color: "--line", size: other }];
  const limited = h("p", {}, `Used memory: ${bytes(values.used_memory)} of ${bytes(values.maxmemory)} (server.memory)`);
  // Counts only data in memory, so that both sums cover the same data.
  const rows = sum(spaces.counters, "rows");
  const pairs = spaces.existences.flatMap((space) => space.tables).filter((t) => t.state !== "cold").reduce((all, t) => all + t.pairs, 0);
  const { row_bytes, pair_bytes, source } = status.redis;
  const inRedis = rows * row_bytes + pairs * pair_bytes;
  const ours = sum(spaces.counters, "memory_bytes") + sum(spaces.existences, "memory_bytes");
  const most = Math.max(inRedis, ours, 1);
  const outcome = ours <= inRedis
    ? `take ${(inRedis / Math.max(1, ours)).toFixed(1)} times as much memory in Redis`
    : "take less memory in Redis, because the newest tables here are nearly empty";
  const comparison = rows + pairs === 0
    ? [h("p", {}, "Comparison with Redis: no data yet.")]
    : [
        h("p", {}, `Comparison with Redis: ${count(rows)} rows at ${row_bytes} bytes as a hash, and ${count(pairs)} flags at ${pair_bytes.toFixed(1)} bytes as a set member, ${outcome}.`),
        bar([{ size: ours, color: "--s1" }], most), h("p", { class: "note" }, `Tidemark: ${bytes(ours)}`),
        bar([{ size: inRedis, color: "--s2" }], most),
        h("p", { class: "note" }, `Redis: ${bytes(inRedis)}, estimated from measured bytes per row and flag (${source})`),
      ];
  $("memory-bars").replaceChildren(h("div", { class: "bars" },
    h("p", {}, `Resident memory: ${bytes(resident)}`), bar(legend, whole),
    h("p", {}, ...legend.map((part) => key(part))),
    limited, bar([{ size: values.used_memory, color: "--s1" }], values.maxmemory), ...comparison));
}

function bar(parts, whole) {
  const track = h("div", { class: "track", "aria-hidden": "true" });
  for (const { size, color } of parts) {
    const part = h("i");
    part.style.width = `${(size / Math.max(1, whole)) * 100}%`;
    part.style.background = `var(${color})`;
    track.append(part);
  }
  return track;
}

function key({ name, color, size }) {
  const swatch = h("i", { class: "swatch" });
  swatch.style.background = `var(${color})`;
  return h("span", { class: "key" }, swatch, `${name} ${bytes(size)}`);
}

// --- log and disk ---

function showDurability(status, last) {
  const v = status.values;
  const is = (good, text) => h("dd", { class: good ? "good" : "bad" }, text);
  facts($("log"), [
    ["Writes", is(!status.log.refusal, status.log.refusal ?? "accepted")],
    ["fsync", status.log.fsync],
    ["Written", raw("log_written_offset", v.log_written_offset, bytes(v.log_written_offset))],
    ["Not synced yet", bytes(v.log_written_offset - v.log_synced_offset)],
    ["Queued for the log", bytes(v.log_queue_bytes)],
    ["fsyncs", raw("log_syncs", v.log_syncs, count(v.log_syncs))],
    ["Mean fsync", v.log_sync_usec ? micros(v.log_sync_usec / v.log_syncs) : "–"],
    ["Longest fsync", v.log_slowest_sync_usec ? micros(v.log_slowest_sync_usec) : "–"],
    ["Failed commits", raw("log_failed_rounds", v.log_failed_rounds, count(v.log_failed_rounds), { class: v.log_failed_rounds ? "bad" : "" })],
  ]);
  const age = Date.now() / 1000 - v.rdb_last_save_time;
  facts($("snapshot"), [
    ["State", is(!status.snapshot.error, status.snapshot.error ?? (v.rdb_bgsave_in_progress ? "in progress" : "ok"))],
    ["Last success", v.snapshot_bytes_written ? `${duration(Math.max(0, age))} ago` : "none since the server started"],
    ["Changes since then", raw("rdb_changes_since_last_save", v.rdb_changes_since_last_save, count(v.rdb_changes_since_last_save))],
    ["Duration", duration(v.rdb_last_bgsave_time_sec)],
    ["Size", bytes(v.snapshot_bytes_written)],
  ]);
  const asked = v.cold_cache_hits + v.cold_cache_misses;
  facts($("cold"), [
    ["Spills", is(!status.cold.error, status.cold.error ?? "ok")],
    ["Files", raw("cold_files", v.cold_files, `${count(v.cold_files)}, ${bytes(v.cold_file_bytes)}`)],
    ["Rows, pairs", `${count(v.cold_rows)}, ${count(v.cold_pairs)}`],
    ["Reads", raw("cold_reads", v.cold_reads, `${count(v.cold_reads)} blocks, ${rate(last?.cold_reads_per_s)} per second`)],
    ["Cache hits", asked ? `${percent(v.cold_cache_hits / asked)} of ${count(asked)}` : "–"],
    ["Cache", `${bytes(v.cold_cache_bytes)} of ${bytes(v.cold_cache_limit_bytes)}`],
    ["Waiting for a merge", `${count(v.merge_backlog_rows)} rows`],
    v.cold_read_errors || v.cold_corrupt_blocks ? ["Read errors, corrupt blocks", is(false, `${count(v.cold_read_errors)}, ${count(v.cold_corrupt_blocks)}`)] : null,
  ]);
}

function showBackups(status) {
  const v = status.values;
  const b = status.backup;
  const part = v.backup_bytes_expected ? ` of ${bytes(v.backup_bytes_expected)}` : "";
  const state = b.error ?? (b.running_s != null ? `running for ${duration(b.running_s)}` : b.last ? (b.last === "ok" ? "ok" : "stopped") : "none yet");
  const kept = { off: "off", ok: `up to ${bytes(v.backup_log_offset)}`, err: b.log_error };
  facts($("backup"), [
    ["State", h("dd", { class: b.error ? "bad" : b.last ? "good" : "" }, state)],
    ["Last success", raw("backup_last_time", v.backup_last_time, v.backup_last_time ? `${duration(Math.max(0, Date.now() / 1000 - v.backup_last_time))} ago` : "–")],
    b.running_s == null && b.last_took_s != null ? ["Duration", duration(b.last_took_s)] : null,
    ["Copied or linked", raw("backup_bytes_done", v.backup_bytes_done, `${bytes(v.backup_bytes_done)}${part}`)],
    ["Copied", raw("backup_bytes_copied", v.backup_bytes_copied, bytes(v.backup_bytes_copied))],
    ["Log archive", h("dd", { class: b.log_error ? "bad" : "" }, kept[b.log])],
  ]);
}

// --- replication ---

function showReplication(status) {
  const replication = status.replication;
  const node = (title, isMe, pairs) => {
    const list = h("dl", { class: "facts" });
    facts(list, pairs);
    return h("div", { class: `node${isMe ? " me" : ""}` }, h("h3", {}, title), list);
  };
  const lag = (value) => h("dd", { class: value > 1 << 20 ? "bad" : "" }, bytes(value));
  const own = node(`This node, ${replication.role}`, true, [
    ["Position", raw("master_repl_offset", replication.position, count(replication.position))],
    ["Term", count(replication.term)],
    replication.failover === "no-failover" ? null : ["Failover", replication.failover],
    replication.fenced ? ["Fenced", h("dd", { class: "bad" }, "rejects writes")] : null,
  ]);
  const boxes = [];
  if (replication.master) {
    const m = replication.master;
    boxes.push(node(`Master ${m.address}`, false, [
      ["Link", h("dd", { class: m.state === "connected" ? "good" : "bad" }, m.state)],
      ["Lag", lag(m.lag_bytes)],
      ["Last message", h("dd", { class: m.heard_s > 10 ? "bad" : "" }, `${duration(m.heard_s)} ago`)],
      m.error && m.state !== "connected" ? ["Last error", m.error] : null,
    ]), h("span", { class: "arrow", "aria-hidden": "true" }, "→"));
  }
  boxes.push(own);
  replication.replicas.forEach((r, i) => {
    if (i === 0) boxes.push(h("span", { class: "arrow", "aria-hidden": "true" }, "→"));
    boxes.push(node(`Replica ${r.address}`, false, [
      ["State", h("dd", { class: r.state === "online" ? "good" : "bad" }, r.state)],
      ["Lag", lag(r.lag_bytes)],
      ["Last message", h("dd", { class: r.heard_s > 10 ? "bad" : "" }, `${duration(r.heard_s)} ago`)],
    ]));
  });
  if (!replication.master && replication.replicas.length === 0) boxes.push(h("p", { class: "note" }, "This node has no replicas."));
  $("topology").replaceChildren(...boxes);
}

// --- sections that may need a login: requested once, then only on demand ---

const locked = new Set();

async function showGuarded(path, box, render) {
  if (locked.has(path)) return;
  try {
    const body = await ask(path);
    const at = box.scrollTop;
    box.replaceChildren(render(body));
    box.scrollTop = at;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    locked.add(path);
    const again = h("button", { type: "button", click: () => { locked.delete(path); showGuarded(path, box, render); } }, "Log in");
    box.replaceChildren(h("p", {}, `Login required: ${error.message}. `, again));
  }
}

function table(heads, rows, empty) {
  if (rows.length === 0) return h("p", { class: "note" }, empty);
  const head = h("tr", {}, ...heads.map(([name, kind]) => h("th", { scope: "col", class: kind }, name)));
  const body = rows.map((cells) => h("tr", {}, ...cells.map((cell, i) => h("td", { class: heads[i][1] }, cell))));
  return h("table", {}, h("thead", {}, head), h("tbody", {}, ...body));
}

const slowTable = (body) =>
  table([["time", ""], ["duration", "num"], ["command", "args"], ["client", ""]],
    body.entries.map((e) => [clock(e.at_s * 1000), micros(e.took_us), e.args.join(" "), e.name ? `${e.client} ${e.name}` : e.client]),
    body.slower_than_us < 0 ? "The slow log is disabled (slowlog_slower_than = off)." : `No command took ${micros(body.slower_than_us)} or more.`);

const clientTable = (body) =>
  table([["id", "num"], ["address", ""], ["name", ""], ["user", ""], ["kind", ""], ["age", ""], ["idle", ""], ["last command", ""], ["buffers", "num"]],
    body.clients.map((c) => [c.id, c.address, c.name || c.library || "–", c.user, c.blocked ? `${c.kind}, blocked` : c.kind, duration(c.age_s), duration(c.idle_s), c.last_command, bytes(c.buffer_bytes)]),
    "No clients are connected.");

// --- page inspector ---

const ORIGINS = {
  bits: "the bits of its row", aux: "the aux dictionary: the value needs more bits", extend: "the extend dictionary: the table had no free slot",
  outlier: "the exact list of outlier ids", cold: "a file on disk", none: "no row: 0",
  filter: "a Bloom filter in memory",
  unset: "the exact list of unset flags", horizon: "nothing: the id is below the horizon",
};
const WORDS = { bits: "bits", aux: "overflow", extend: "extend", outlier: "outlier", cold: "cold file", none: "no row", filter: "filter", unset: "unset", horizon: "below horizon" };

const origin = (from) => h("span", { class: `from ${from}`, title: ORIGINS[from] }, WORDS[from] ?? from);

function showPage(page) {
  const posts = page.rows.map((row) => {
    const counters = row.counters.map((value, i) => h("div", {}, h("dt", {}, page.columns[i]),
      h("dd", { "data-cell": `${row.id} ${page.columns[i]}`, "data-raw": value.value, "data-from": value.from }, BigInt(value.value).toLocaleString("en")), origin(value.from)));
    const flags = row.flags.map((flag, i) => {
      const text = flag.value == null ? "unknown" : flag.value ? "✓ yes" : "no";
      return h("div", {}, h("dt", {}, page.flags[i]),
        h("dd", { "data-cell": `${row.id} ${page.flags[i]}`, "data-raw": flag.value ?? "", "data-from": flag.from }, text), origin(flag.from));
    });
    return h("article", { class: "card post" }, h("h3", {}, `Post ${row.id}`),
      row.error ? h("p", { class: "alert" }, row.error) : null, h("dl", { class: "values" }, ...counters, ...flags));
  });
  const used = new Set(page.rows.flatMap((row) => [...row.counters, ...row.flags].map((value) => value.from)));
  const legend = [...used].map((from) => h("span", { class: "key" }, origin(from), ORIGINS[from]));
  $("page").replaceChildren(h("p", { class: "note" }, ...legend), h("div", { class: "posts" }, ...posts));
}

$("inspect").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("inspect-error").hidden = true;
  try {
    const query = new URLSearchParams({ view: $("view").value, viewer: $("viewer").value.trim(), ids: $("ids").value });
    showPage(await ask(`/api/page?${query}`));
  } catch (error) {
    $("page").replaceChildren();
    $("inspect-error").textContent = error.message;
    $("inspect-error").hidden = false;
  }
});

function offerViews(spaces) {
  const names = spaces.views.map((view) => view.name);
  if ([...$("view").options].map((option) => option.value).join() === names.join()) return;
  $("view").replaceChildren(...names.map((name) => h("option", { value: name }, name)));
}

// --- polling ---

let paused = false;
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", paused);
  $("pause").textContent = paused ? "Resume" : "Pause";
  if (!paused) round();
});

async function show() {
  const [status, spaces, history] = await Promise.all(["/api/status", "/api/spaces", "/api/history"].map(ask));
  const last = history.samples.at(-1);
  showState(status);
  showTiles(status, spaces, last);
  showCharts(history.samples);
  showSpaces(spaces);
  showMemory(status, spaces);
  showDurability(status, last);
  showBackups(status);
  showReplication(status);
  offerViews(spaces);
  await showGuarded("/api/slowlog", $("slow"), slowTable);
  await showGuarded("/api/clients", $("client-list"), clientTable);
  document.body.dataset.rounds = Number(document.body.dataset.rounds ?? 0) + 1;
}

let timer;
async function round() {
  clearTimeout(timer);
  try {
    if (!document.hidden) await show();
  } catch (error) {
    $("state").textContent = "no reply";
    $("state").className = "badge bad";
    $("alert").textContent = `No reply from the server: ${error.message}. The values shown are the last ones received.`;
    $("alert").hidden = false;
  }
  if (!paused) timer = setTimeout(round, EVERY_MS);
}
document.addEventListener("visibilitychange", () => !document.hidden && !paused && round());
round();
