// Lines over time or size, drawn by uPlot, with a legend that has the latest values. A chart is made
// anew when its lines or the colours change, else it is given new points.

import { h, setText } from "./dom.js";

const HEIGHT = 190;
const COLOURS = 8;

const charts = new Set();

export function colour(index) {
  return style(`--c${(index % COLOURS) + 1}`);
}

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function repaint() {
  for (const chart of charts) chart.repaint();
}

export class Chart {
  // format: of values; range(min, max): of the axis; x: {log, format} for an axis that is no time
  constructor({ format, range = fromZero, x = null, nothing = "Nothing to show yet." }) {
    this.format = format;
    this.range = range;
    this.x = x;
    this.host = h("div", { className: "chart" });
    this.legend = h("div", { className: "legend" });
    this.empty = h("p", { className: "empty", textContent: nothing });
    this.element = h("div", {}, this.empty, this.host, this.legend);
    this.plot = null;
    this.shape = "";
    this.points = [];
    this.lines = [];
    this.mark = null;
    this.colours = new Map(); // by name: a line keeps its colour when others come and go
    new ResizeObserver(() => this.resize()).observe(this.host);
    charts.add(this);
  }

  // xs: of all points; lines: [{name, values, label?, right?, dash?}]; mark: {at, text} on the x axis
  set(xs, lines, mark = null) {
    const some = lines.length > 0 && xs.length > 1;
    this.empty.hidden = some;
    this.host.hidden = this.legend.hidden = !some;
    if (!some) return;
    this.points = [xs, ...lines.map((line) => line.values)];
    this.lines = lines;
    this.mark = mark;
    this.giveColours(lines.map((line) => line.name));
    const shape = lines.map((line) => line.name).join("\n");
    if (shape !== this.shape || !this.plot) this.make(shape);
    else this.plot.setData(this.points);
    this.writeLegend();
  }

  giveColours(names) {
    for (const name of this.colours.keys()) {
      if (!names.includes(name)) this.colours.delete(name);
    }
    for (const name of names.filter((one) => !this.colours.has(one))) {
      const taken = [...this.colours.values()];
      this.colours.set(name, [...names.keys()].find((index) => !taken.includes(index)));
    }
  }

  // What is shown in the place of a chart that has no lines.
  say(nothing) {
    setText(this.empty, nothing);
  }

  repaint() {
    if (!this.plot) return;
    this.make(this.shape);
    this.writeLegend();
  }

  writeLegend() {
    this.lines.forEach((line, i) => setText(this.values[i], line.label ?? this.format(latest(line))));
  }

  make(shape) {
    this.plot?.destroy();
    this.shape = shape;
    const [muted, grid] = [style("--muted"), style("--grid")];
    const font = '11px system-ui, "DejaVu Sans", sans-serif';
    const axis = { stroke: muted, font, grid: { stroke: grid, width: 1 }, ticks: { show: false } };
    this.plot = new uPlot(
      {
        width: Math.max(200, this.host.clientWidth),
        height: HEIGHT,
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
        scales: {
          x: this.x ? { time: false, distr: this.x.log ? 3 : 1, log: 2 } : { time: true },
          y: { range: (_, low, high) => this.range(low, high) },
        },
        axes: [
          this.x
            ? { ...axis, space: 70, values: (_, ticks) => ticks.map((v) => (v == null ? "" : this.x.format(v))) }
            : { ...axis, space: 80 },
          { ...axis, size: 64, gap: 6, values: (_, ticks) => ticks.map((v) => this.format(v)) },
        ],
        series: [
          {},
          ...this.lines.map((line) => ({
            label: line.name,
            stroke: this.colourOf(line),
            width: 1.6,
            dash: line.dash,
            points: { show: false },
            spanGaps: Boolean(this.x),
          })),
        ],
        hooks: { draw: [(plot) => this.drawMark(plot)], setCursor: [(plot) => this.point(plot)] },
      },
      this.points,
      this.host,
    );
    this.values = this.lines.map(() => h("b"));
    this.legend.replaceChildren(
      ...this.lines.map((line, i) => {
        const swatch = h("span", { className: "swatch" });
        swatch.style.background = this.colourOf(line);
        const name = h("span", { className: "name", textContent: line.name, title: line.name });
        return h("span", { className: "key" }, swatch, name, this.values[i]);
      }),
    );
  }

  colourOf(line) {
    return colour(this.colours.get(line.name));
  }

  // While the pointer is on the chart, the legend has the values below it.
  point(plot) {
    const at = plot.cursor.idx;
    this.lines.forEach((line, i) => {
      const value = at == null ? (line.label ?? this.format(latest(line))) : this.format(line.values[at]);
      setText(this.values[i], value);
    });
  }

  drawMark(plot) {
    if (!this.mark) return;
    const x = plot.valToPos(this.mark.at, "x", true);
    const { left, top, width, height } = plot.bbox;
    if (x < left || x > left + width) return;
    const { ctx } = plot;
    const scale = devicePixelRatio || 1;
    ctx.save();
    ctx.strokeStyle = style("--text");
    ctx.setLineDash([4 * scale, 4 * scale]);
    ctx.lineWidth = scale;
    ctx.beginPath();
    ctx.moveTo(x, top);
    ctx.lineTo(x, top + height);
    ctx.stroke();
    ctx.fillStyle = style("--text");
    ctx.font = `${11 * scale}px system-ui, "DejaVu Sans", sans-serif`;
    const toRight = x < left + width * 0.7;
    ctx.textAlign = toRight ? "left" : "right";
    ctx.fillText(this.mark.text, x + (toRight ? 6 : -6) * scale, top + 12 * scale);
    ctx.restore();
  }

  resize() {
    const width = this.host.clientWidth;
    if (this.plot && width && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
  }
}

function latest(line) {
  return line.values.findLast((value) => value != null) ?? null;
}

function fromZero(low, high) {
  return [0, high > 0 ? high * 1.08 : 1];
}

export function shares(low, high) {
  if (low == null) return [0, 1];
  const bottom = low > 0.9 ? 0.9 : low > 0.5 ? 0.5 : 0;
  return [bottom, high > 1 ? high : 1];
}

// A line of the last values, without axes.
export function sparkline(values) {
  const known = values.filter((value) => value != null);
  const high = Math.max(...known, 0) || 1;
  const step = 100 / Math.max(values.length - 1, 1);
  const spots = values
    .map((value, i) => (value == null ? null : `${(i * step).toFixed(1)} ${(20 - (17 * value) / high).toFixed(1)}`))
    .filter(Boolean);
  if (spots.length < 2) return ["", ""];
  const line = `M${spots.join("L")}`;
  const [first, last] = [spots[0].split(" ")[0], spots.at(-1).split(" ")[0]];
  return [line, `${line}L${last} 22L${first} 22Z`];
}
