// Numbers as people read them. Every function takes null for "not known", and says so by a dash.

const NONE = "–";
const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(value) {
  if (value == null) return NONE;
  let power = 0;
  while (Math.abs(value) >= 1024 && power < BYTES.length - 1) {
    value /= 1024;
    power += 1;
  }
  return `${digits(value)} ${BYTES[power]}`;
}

export function count(value) {
  if (value == null) return NONE;
  const size = Math.abs(value);
  if (size >= 1e9) return `${digits(value / 1e9)} G`;
  if (size >= 1e6) return `${digits(value / 1e6)} M`;
  if (size >= 1e4) return `${digits(value / 1e3)} k`;
  return digits(value);
}

export function whole(value) {
  return value == null ? NONE : value.toLocaleString("en-US");
}

export function seconds(value) {
  if (value == null) return NONE;
  if (value === 0) return "0 s";
  if (value < 1e-3) return `${digits(value * 1e6)} µs`;
  if (value < 1) return `${digits(value * 1e3)} ms`;
  return `${digits(value)} s`;
}

export function percent(share) {
  if (share == null) return NONE;
  const value = share * 100;
  if (value === 100 || value === 0) return `${value} %`;
  const places = value > 99 ? 2 : 1;
  return `${value < 100 ? Math.min(value, 99.99).toFixed(places) : value.toFixed(places)} %`; // 100 is all of them
}

export function age(value) {
  if (value == null) return NONE;
  if (value < 59.5) return `${Math.round(value)} s`;
  const minutes = Math.round(value / 60);
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 2880) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.round(minutes / 1440)} days`;
}

export function rate(value) {
  return value == null ? NONE : `${count(value)}/s`;
}

export function byteRate(value) {
  return value == null ? NONE : `${bytes(value)}/s`;
}

function digits(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 0.01) return value.toExponential(0);
  const places = size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 2;
  return value.toLocaleString("en-US", { maximumFractionDigits: places, minimumFractionDigits: 0 });
}
