// A head's rows as text: at a token, where it attends, or who attends to it.

import { type Doc, finite, type Head, HeadCodes, type Model, type Row, shown } from "./data";
import { el, token } from "./dom";
import type { State } from "./state";

const QUANTILES: [share: number, name: string][] = [
  [1, "strongest"], [0.75, "upper quartile"], [0.5, "median"], [0.25, "lower quartile"], [0, "weakest"],
];
const TOP = 3, WRITTEN = 0.05, LISTED = 5;
export interface Chosen extends Row { name: string; score: number | null }

/** Rows of a head at several quantiles of a score, the strongest few first; prompts always, ahead
 * of all. Rows without the score are left out, unless none has it. */
export function rowsOf(doc: Doc, head: Head, order: string, kind: string): Chosen[] {
  const prompts: Chosen[] = [], scored: Chosen[] = [], rest: Chosen[] = [];
  doc.groups.forEach((group, g) => {
    if (kind && group.kind !== kind) return;
    group.rows.forEach((_, row) => {
      const score = finite(head.groups[g].scores[order]?.[row]);
      const one = { group: g, row, score, name: group.kind === "prompt" ? "your prompt" : "" };
      (group.kind === "prompt" ? prompts : score === null ? rest : scored).push(one);
    });
  });
  scored.sort((a, b) => b.score! - a.score!);
  const last = scored.length - 1, taken = new Map<number, string>();
  for (let i = 0; i < Math.min(TOP, scored.length); i++) taken.set(i, i ? `strongest, no. ${i + 1}` : "strongest");
  for (const [share, name] of QUANTILES) {
    const at = Math.round((1 - share) * last);
    if (last >= 0 && !taken.has(at)) taken.set(at, name);
  }
  const chosen = [...taken].sort(([a], [b]) => a - b).map(([at, name]) => ({ ...scored[at], name }));
  return [...prompts, ...(chosen.length ? chosen : rest.slice(0, TOP))];
}

/** One row under one or several models, side by side; a token chosen in one is chosen in all. */
export class Lines {
  readonly root: HTMLElement;
  private readonly lines: { model: Model; codes: HeadCodes; spans: HTMLElement[] }[] = [];
  private readonly told = el("p", { class: "told", "aria-live": "polite" });
  private pinned: number | null = null;
  private at: number | null = null;

  constructor(
    private readonly state: State, private readonly row: Chosen,
    models: { model: Model; head: Head; codes: HeadCodes }[], score: string,
  ) {
    const { doc } = state, group = doc.groups[row.group], texts = group.rows[row.row];
    const number = row.score === null ? "" : ` · ${score} ${shown(row.score)}`;
    this.root = el("div", { class: "row" },
      el("h4", {}, `${row.name || "row"}${number} `, el("small", {}, `${group.kind} ${row.row + 1}`)));
    const side = el("div", { class: models.length > 1 ? "side" : "" });
    for (const { model, codes } of models) {
      const spans = texts.map((word, i) => el("span", {
        class: "token" + (group.scored[row.row][i] ? "" : " unscored"), "data-i": i,
        onmouseenter: () => this.choose(i), onclick: () => this.pin(i),
      }, token(doc.words[word])));
      const line = el("div", {
        class: "tokens", tabindex: 0, role: "group",
        "aria-label": `${group.kind} ${row.row + 1}${models.length > 1 ? `, ${model.name}` : ""}: ${texts.length} tokens; left and right arrows choose one`,
        onmouseleave: () => this.leave(), onkeydown: event => this.key(event as KeyboardEvent),
      }, ...spans);
      if (models.length > 1) side.append(el("div", {}, el("h5", {}, model.name), line));
      else side.append(line);
      this.lines.push({ model, codes, spans });
    }
    this.root.append(side, this.told);
    this.rest();
  }

  /** Choose a token, as hovering it does. */
  choose(i: number): void {
    this.at = i;
    this.show();
  }

  private leave(): void {
    this.at = this.pinned;
    this.show();
  }

  private pin(i: number): void {
    this.pinned = this.pinned === i ? null : i;
    this.choose(i);
  }

  private key(event: KeyboardEvent): void {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") { this.pinned = this.at = null; this.show(); }
    if (!by) return;
    event.preventDefault();
    const n = this.lines[0].spans.length;
    this.pinned = this.at === null ? (by > 0 ? 0 : n - 1) : Math.min(n - 1, Math.max(0, this.at + by));
    this.choose(this.pinned);
  }

  /** Draw again, after another way of looking was chosen. */
  show(): void {
    if (this.at === null) this.rest();
    else this.lit(this.at);
  }

  /** At a token: the weight of every other one. */
  private lit(at: number): void {
    const { way, weigh } = this.state.choices, { doc } = this.state;
    const texts = doc.groups[this.row.group].rows[this.row.row];
    const said: string[] = [];
    for (const { model, codes, spans } of this.lines) {
      const weights = this.weights(codes, at, spans.length);
      const most = weigh === "attention" ? 1 : Math.max(...weights.map(Math.abs), 1e-12);
      spans.forEach((span, i) => paint(span, weights[i], most, i === at, weigh === "attention" ? WRITTEN : WRITTEN * most));
      const top = weights.map((w, i) => [w, i] as const).sort((a, b) => Math.abs(b[0]) - Math.abs(a[0]))
        .slice(0, LISTED).filter(([w]) => w !== 0);
      const list = top.map(([w, i]) => `${i} “${token(doc.words[texts[i]])}” ${shown(w)}`).join(", ");
      const verb = way === "to" ? "attends to" : "is attended to by";
      const lost = codes.effect(this.row, at), unit = model.effects[this.row.group]?.unit;
      const rise = lost === null || !doc.groups[this.row.group].scored[this.row.row][at] ? ""
        : ` Without the head the loss here ${lost < 0 ? "falls" : "rises"} by ${shown(Math.abs(lost))} (${unit}).`;
      said.push(`${this.lines.length > 1 ? model.name + ": " : ""}Token ${at} “${token(doc.words[texts[at]])}” ${verb} ${list || "nothing"}.${rise}`);
    }
    this.told.textContent = said.join(" ");
  }

  private weights(codes: HeadCodes, at: number, n: number): number[] {
    const { way, weigh } = this.state.choices;
    return Array.from({ length: n }, (_, i) => {
      const weight = way === "to" ? codes.attention(this.row, at, i) : codes.attention(this.row, i, at);
      const key = way === "to" ? i : at;
      return weigh === "value" ? weight * (codes.written(this.row, key) ?? 0) : weight;
    });
  }

  /** At no token: what is lost at each without the head, where that is known. */
  private rest(): void {
    const { doc } = this.state, scored = doc.groups[this.row.group].scored[this.row.row];
    const every = this.lines.map(({ codes, spans }) =>
      spans.map((_, i) => scored[i] ? codes.effect(this.row, i) : null));
    const most = Math.max(...every.flat().map(v => Math.abs(v ?? 0)), 1e-12);
    this.lines.forEach(({ spans }, line) => spans.forEach((span, i) => {
      span.classList.remove("at");
      const value = every[line][i];
      span.classList.toggle("lost", value !== null);
      span.style.setProperty("--w", String(value === null ? 0 : Math.abs(value) / most));
      span.dataset.sign = value !== null && value < 0 ? "below" : "above";
      span.dataset.w = "";
      span.title = value === null ? "" : `loss without the head: ${shown(value)}`;
    }));
    const known = every.flat().some(v => v !== null);
    const how = this.lines[0].model.effects[this.row.group]?.how === "zero" ? "zero stands in for it" : "its mean stands in for it";
    this.told.textContent = known ? `Bars: change of the loss without the head (${how}), at most ${shown(most)} here; green where it rises, orange where it falls.` : "";
  }
}

function paint(span: HTMLElement, weight: number, most: number, at: boolean, least: number): void {
  span.classList.remove("lost");
  span.classList.toggle("at", at);
  span.style.setProperty("--w", String(Math.min(1, Math.abs(weight) / most)));
  span.dataset.sign = weight < 0 ? "below" : "above";
  span.dataset.w = Math.abs(weight) >= least ? shown(weight) : "";
  span.dataset.weight = String(weight);
  span.title = shown(weight);
}
