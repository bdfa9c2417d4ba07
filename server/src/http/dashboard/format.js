// Formats of numbers. Each function takes a number, or null for a missing value.

const none = "–";

/** A count, with thousands separators. */
export const count = (n) => (n == null ? none : Math.round(n).toLocaleString("en-US"));

/** A rate, with one decimal below 100. */
export const rate = (n) =>
  n == null ? none : n >= 100 || n === 0 ? count(n) : n.toLocaleString("en-US", { maximumFractionDigits: 1 });

/** Bytes in binary units. */
export function bytes(n) {
  if (n == null) return none;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; Math.abs(n) >= 1024 && unit < units.length - 1; unit++) n /= 1024;
  return `${unit === 0 || n >= 100 ? Math.round(n) : n.toFixed(n >= 10 ? 1 : 2)} ${units[unit]}`;
}

/** Microseconds. */
export function micros(us) {
  if (us == null) return none;
  if (us < 1000) return `${us < 10 ? us.toFixed(1) : Math.round(us)} µs`;
  return us < 1e6 ? `${(us / 1e3).toFixed(us < 1e4 ? 1 : 0)} ms` : `${(us / 1e6).toFixed(1)} s`;
}

/** Seconds as the two largest units. */
export function duration(s) {
  if (s == null) return none;
  if (s > 0 && s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 60) return `${Math.round(s)} s`;
  const parts = [[86400 * 365, "y"], [86400, "d"], [3600, "h"], [60, "min"]];
  const at = parts.findIndex(([length]) => s >= length);
  const [length, name] = parts[at];
  const whole = Math.floor(s / length);
  const next = parts[at + 1] ?? [1, "s"];
  const rest = Math.floor((s % length) / next[0]);
  return `${whole.toLocaleString("en-US")} ${name}${rest && whole < 100 ? ` ${rest} ${next[1]}` : ""}`;
}

/** A fraction as a percentage. */
export const percent = (share) =>
  share == null ? none : `${(share * 100).toLocaleString("en-US", { maximumSignificantDigits: 3 })} %`;

/** A time of day, from milliseconds since 1970. */
export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");
