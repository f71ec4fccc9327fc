// All heads at once: points over two columns, or layer by head.

import { finite, type Head, type Num, shown } from "./data";
import { choice, el, mark, svg } from "./dom";
import type { State } from "./state";

const PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a7a7a", "#a08000"];
const H = 340, LEFT = 88, RIGHT = 14, TOP = 20, BOTTOM = 64, MISSING = 22, NARROWEST = 320, WIDEST = 736;

export class Overview {
  readonly root = el("section", { class: "overview", "aria-label": "All heads" });
  private readonly controls = el("div", { class: "controls" });
  private readonly drawing = el("div", { class: "drawing" });
  private readonly legend = el("p", { class: "legend" });
  private drawn = 0;

  constructor(private readonly state: State) {
    this.root.append(this.controls, this.drawing, this.legend);
    this.draw();
    state.listen(changed => {
      const own = ["view", "x", "y", "colour", "filter", "head"] as const;
      if (own.some(key => changed.has(key))) this.draw();
    });
    new ResizeObserver(() => { if (this.width !== this.drawn) this.draw(); }).observe(this.drawing);
  }

  private get columns(): [string, string][] {
    const columns = this.state.doc.models[0].columns;
    return [["layer", "layer"], ["head", "head"], ...columns.map(c => [c.key, c.label] as [string, string])];
  }

  /** Of the drawing, in pixels as they are seen: words keep their size on small screens. */
  private get width(): number {
    return Math.min(WIDEST, Math.max(NARROWEST, this.drawing.clientWidth || WIDEST));
  }

  private value(head: Head, key: string): Num {
    if (key === "layer") return head.layer;
    if (key === "head") return head.head;
    const at = this.state.doc.models[0].columns.findIndex(column => column.key === key);
    return at < 0 ? null : head.values[at];
  }

  private label(key: string): string {
    return this.columns.find(([name]) => name === key)?.[1] ?? key;
  }

  private draw(): void {
    const { view, x, y, colour } = this.state.choices, set = this.state.set.bind(this.state);
    const points = view === "points";
    const focused = this.controls.contains(document.activeElement)
      ? [...this.controls.querySelectorAll("select")].indexOf(document.activeElement as HTMLSelectElement) : -1;
    this.controls.replaceChildren(
      choice("Show", [["points", "heads as points"], ["grid", "layer × head"]], view,
        value => set({ view: value as "points" | "grid" })),
      ...(points ? [
        choice("across", this.columns, x, value => set({ x: value })),
        choice("up", this.columns, y, value => set({ y: value })),
      ] : []),
      choice("colour", [["role", "role"], ["status", "status"], ...this.columns], colour,
        value => set({ colour: value })),
    );
    if (focused >= 0) this.controls.querySelectorAll("select")[focused]?.focus();
    const paint = this.painter();
    this.drawing.replaceChildren(points ? this.points(paint.of) : this.grid(paint.of));
    const { models } = this.state.doc;
    const of = models.length > 1 ? `Heads of ${models[0].name}; the others' are in the tables below. ` : "";
    this.legend.replaceChildren(of, ...paint.legend);
  }

  /** The colour of a head, and what colours mean; filled marks are confirmed, hollow ones are not. */
  private painter(): { of: (head: Head) => string; legend: (Node | string)[] } {
    const { colour } = this.state.choices, heads = this.state.doc.models[0].heads;
    const marks = "● confirmed, ◐ necessary, not specific, or a candidate, ○ rejected or no role; heads at one place stand side by side, each with a line to its place. ";
    if (colour === "role" || colour === "status") {
      const named = (head: Head) => head.roles[0]?.[colour] ?? "none";
      const names = [...new Set(heads.map(named))].sort();
      const of = (head: Head) => {
        const name = named(head);
        return name === "none" ? "var(--soft)" : PALETTE[names.indexOf(name) % PALETTE.length];
      };
      const keys = names.map(name => {
        const head = heads.find(one => named(one) === name)!;
        return el("span", { class: "key" }, el("i", { style: `background:${of(head)}` }), name);
      });
      return { of, legend: [marks, ...keys] };
    }
    const values = heads.map(head => finite(this.value(head, colour))).filter(v => v !== null);
    const most = Math.max(...values.map(Math.abs), 1e-12);
    const of = (head: Head) => {
      const value = finite(this.value(head, colour));
      if (value === null) return "var(--soft)";
      const share = Math.round(15 + 85 * Math.abs(value) / most);
      return `color-mix(in srgb, ${value < 0 ? "#d55e00" : "#0072b2"} ${share}%, var(--paper))`;
    };
    const ends = el("span", { class: "key" }, `${this.label(colour)}: stronger is further from 0 (blue above, orange below); largest ${shown(most)}.`);
    return { of, legend: [marks, ends] };
  }

  private points(colour: (head: Head) => string): Node {
    const { x, y, head: chosen } = this.state.choices, heads = this.state.doc.models[0].heads;
    const passing = new Set(this.state.passing()), W = this.drawn = this.width;
    const across = scale(heads.map(head => this.value(head, x)), LEFT + MISSING, W - RIGHT);
    const up = scale(heads.map(head => this.value(head, y)), H - BOTTOM - MISSING, TOP);
    const lacking = heads.filter(h => finite(this.value(h, x)) === null || finite(this.value(h, y)) === null);
    const words = `Heads as points: ${this.label(y)} against ${this.label(x)}. ` +
      `${this.state.choices.head} has ${shown(this.value(this.state.head()!, x))} and ${shown(this.value(this.state.head()!, y))}. ` +
      (lacking.length ? `${lacking.length} without a number stand on the axis.` : "");
    const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": words });
    for (const at of across.ticks) {
      const px = across.at(at);
      picture.append(svg("line", { x1: px, x2: px, y1: TOP, y2: H - BOTTOM, class: "rule" }),
        svg("text", { x: px, y: H - BOTTOM + 16, "text-anchor": "middle" }, shown(at)));
    }
    for (const at of up.ticks) {
      const py = up.at(at);
      picture.append(svg("line", { x1: LEFT, x2: W - RIGHT, y1: py, y2: py, class: "rule" }),
        svg("text", { x: LEFT - 6, y: py + 4, "text-anchor": "end" }, shown(at)));
    }
    picture.append(
      svg("text", { x: (LEFT + W) / 2, y: H - 22, "text-anchor": "middle", class: "axis" }, this.label(x)),
      svg("text", { x: 14, y: (H - BOTTOM) / 2, class: "axis", "text-anchor": "middle",
        transform: `rotate(-90 14 ${(H - BOTTOM) / 2})` }, this.label(y)),
    );
    if (lacking.length) {
      picture.append(svg("text", { x: LEFT, y: H - 4 }, "× not measured or infinite"));
    }
    const order = [...heads].sort((a, b) => Number(a.name === chosen) - Number(b.name === chosen));
    const named = heads.filter(h => h.name === chosen || h.roles.length && heads.length < 40);
    const true_ = heads.map((head): [number, number] => {
      const vx = finite(this.value(head, x)), vy = finite(this.value(head, y));
      return [vx === null ? LEFT : across.at(vx), vy === null ? H - BOTTOM : up.at(vy)];
    });
    const places = apart(true_);
    const at = (head: Head) => places[heads.indexOf(head)];
    const names = placed(heads, named, chosen, at, W);
    for (const head of order) {
      const vx = finite(this.value(head, x)), vy = finite(this.value(head, y));
      const [px, py] = at(head);
      const text = `${head.name}: ${shown(this.value(head, x))}, ${shown(this.value(head, y))}`;
      const status = head.roles[0]?.status, size = head.name === chosen ? 7 : 5;
      const point = svg("g", {
        class: "point" + (head.name === chosen ? " chosen" : "") + (passing.has(head) ? "" : " faded"),
        "data-head": head.name, onclick: () => this.state.set({ head: head.name }),
      });
      if (vx === null || vy === null) {
        point.append(svg("text", { x: px, y: py + 4, "text-anchor": "middle", fill: colour(head) }, "×"));
      } else {
        const fill = status === "confirmed" ? colour(head) : "var(--paper)";
        point.append(svg("circle", { cx: px, cy: py, r: size, style: `fill:${fill};stroke:${colour(head)}` }));
        if (mark(status) === "◐") {
          point.append(svg("path", { d: `M${px} ${py - size}a${size} ${size} 0 0 0 0 ${2 * size}z`, style: `fill:${colour(head)}` }));
        }
      }
      const [tx, ty] = true_[heads.indexOf(head)];
      if (Math.hypot(px - tx, py - ty) > 1) {
        point.prepend(svg("line", { x1: px, y1: py, x2: tx, y2: ty, class: "leader" }));
      }
      const name = names.get(head);
      if (name) {
        point.append(svg("text", { x: name[0], y: name[1], "text-anchor": "middle" }, head.name));
        point.prepend(svg("line", { x1: px, y1: py, x2: name[0], y2: name[1] - 4, class: "leader" }));
      }
      point.append(svg("title", {}, text));
      picture.append(point);
    }
    return picture;
  }

  private grid(colour: (head: Head) => string): Node {
    const heads = this.state.doc.models[0].heads, passing = new Set(this.state.passing());
    const layers = [...new Set(heads.map(head => head.layer))].sort((a, b) => a - b);
    const numbers = [...new Set(heads.map(head => head.head))].sort((a, b) => a - b);
    const key = this.state.choices.colour;
    const table = el("table", { class: "grid" },
      el("caption", {}, "Layer (down, layer 0 on top) × head (across)."),
      el("thead", {}, el("tr", {}, el("td"), ...numbers.map(n => el("th", { scope: "col" }, String(n))))));
    const body = el("tbody");
    for (const layer of layers) {
      const line = el("tr", {}, el("th", { scope: "row" }, `L${layer}`));
      for (const number of numbers) {
        const head = heads.find(one => one.layer === layer && one.head === number);
        if (!head) { line.append(el("td")); continue; }
        const status = head.roles[0]?.status;
        const told = key === "role" || key === "status" ? head.roles[0]?.[key] ?? "none" : shown(this.value(head, key));
        line.append(el("td", {}, el("button", {
          type: "button", "data-head": head.name, title: `${head.name}: ${told}`, style: `--c:${colour(head)}`,
          "aria-label": `${head.name}, ${told}`, "aria-pressed": String(head.name === this.state.choices.head),
          class: passing.has(head) ? "" : "faded", onclick: () => this.state.set({ head: head.name }),
        }, mark(status))));
      }
      body.append(line);
    }
    table.append(body);
    return el("div", { class: "scroll" }, table);
  }
}

/** A linear scale with a few round ticks; infinite and missing values do not stretch it. */
function scale(values: Num[], from: number, to: number): { at: (v: number) => number; ticks: number[] } {
  const known = values.map(finite).filter(v => v !== null);
  let low = Math.min(...known, 0), high = Math.max(...known, 0); // 0 is on the axis, so that small differences look small
  if (!known.length) { low = 0; high = 1; }
  if (low === high) { low -= 0.5; high += 0.5; }
  high += 0.04 * (high - low);
  const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= rough)!;
  const ticks: number[] = [];
  for (let t = Math.ceil(low / step) * step; t <= high + step / 1e6; t += step) ticks.push(Math.abs(t) < step / 1e6 ? 0 : t);
  return { at: v => from + (v - low) / (high - low) * (to - from), ticks };
}

/** The points, of which those that would lie on others are moved beside them, where there is room. */
function apart(points: [number, number][]): [number, number][] {
  const found: [number, number][] = [], clear = 10;
  if (points.length > 200) return points;
  const free = (x: number, y: number) => found.every(([u, v]) => Math.hypot(u - x, v - y) >= clear);
  for (const [x, y] of points) {
    let place: [number, number] = [x, y];
    for (let ring = 0; ring < 4 && !free(...place); ring++) {
      const turns = Array.from({ length: 6 * ring }, (_, k) => 2 * Math.PI * k / (6 * ring));
      place = turns.map(turn => [x + clear * ring * Math.cos(turn), y + clear * ring * Math.sin(turn)] as [number, number])
        .find(one => free(...one)) ?? place;
    }
    found.push(place);
  }
  return found;
}

/** Where each head's name stands beside its point; names that would lie on others, or on points, are left out, the chosen head's last. */
function placed(heads: Head[], named: Head[], chosen: string, at: (head: Head) => [number, number], width: number): Map<Head, [number, number]> {
  const rank = (head: Head) => head.name === chosen ? 0 : head.roles[0]?.status === "confirmed" ? 1 : 2;
  const found = new Map<Head, [number, number]>(), wide = 40, high = 13;
  const points = heads.map(at);
  for (const head of [...named].sort((a, b) => rank(a) - rank(b))) {
    const [px, py] = at(head);
    const free = [[27, -6], [-27, -6], [27, 15], [-27, 15], [0, -11], [0, 21]].map(([dx, dy]) => [px + dx, py + dy] as [number, number])
      .filter(([x, y]) => x > LEFT + wide / 2 && x < width - wide / 2 && [...found.values()].every(([u, v]) => Math.abs(u - x) >= wide || Math.abs(v - y) >= high));
    const clear = free.find(([x, y]) => points.every(([u, v]) => Math.abs(u - x) >= wide / 2 + 4 || Math.abs(v - y + 4) >= high / 2 + 4));
    const place = clear ?? (head.name === chosen ? free[0] : undefined);
    if (place) found.set(head, place);
  }
  return found;
}
