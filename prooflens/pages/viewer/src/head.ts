// The page of one head: what it does, with evidence; where it looks; what it writes; its rows.

import { type Bytes, finite, type Head, HeadCodes, type Model, type Num, type Role, shown } from "./data";
import { choice, el, mark, svg, token } from "./dom";
import { Lines, rowsOf } from "./rows";
import type { State } from "./state";

/** What a head's rows are ordered by, in words. */
const ORDERS: Record<string, string> = {
  effect: "rise of the loss without it", previous: "share on the previous token", own: "share on its own token",
  first: "share on the first token", same: "share on the same token", after_same: "share after the same token (induction)",
};

export class HeadPage {
  readonly root = el("section", { class: "head", "aria-label": "One head" });

  private lines: Lines[] = [];

  constructor(private readonly state: State, private readonly bytes: Bytes) {
    this.draw();
    state.listen(changed => {
      if (changed.has("head") || changed.has("order") || changed.has("kind")) this.draw();
      else for (const line of this.lines) line.show();
    });
  }

  private draw(): void {
    const { doc } = this.state, head = this.state.head()!;
    const several = doc.models.length > 1;
    const found = doc.models.map((model, number) => ({ model, number, head: this.state.head(model) }));
    this.root.replaceChildren(
      el("h2", { tabindex: -1 }, head.name),
      ...found.map(({ model, head: own }) => el("div", { class: "sentences" },
        ...(several ? [el("h3", {}, model.name)] : []), ...(own ? sentences(own) : [el("p", {}, "This model has no such head.")]))),
      this.rows(found),
      el("div", { class: "facts" },
        ...found.flatMap(({ model, head: own }) => own ? [numbers(model, own, several), ...this.lags(model, own, several)] : [])),
      ...found.flatMap(({ model, head: own }) => own && model.raised ? [raised(doc.words, model, own, several)] : []),
    );
  }

  private rows(found: { model: Model; number: number; head: Head | undefined }[]): HTMLElement {
    const { doc, choices } = this.state, head = this.state.head()!, set = this.state.set.bind(this.state);
    const known = Object.keys(ORDERS).filter(key => head.groups.some(group => key in group.scores));
    const order = known.includes(choices.order) ? choices.order : known.includes(head.order) ? head.order : known[0] ?? "";
    const kinds = [...new Set(doc.groups.map(group => group.kind))];
    const models = found.flatMap(({ model, number, head: own }) =>
      own ? [{ model, head: own, codes: new HeadCodes(doc, model, own, this.bytes(number, own.name)) }] : []);
    const weighed = models.every(({ head: own }) => own.groups.every(group => group.written));
    this.lines = rowsOf(doc, head, order, choices.kind)
      .map(row => new Lines(this.state, row, models, ORDERS[order] ?? ""));
    return el("div", { class: "rows" },
      el("h3", {}, "On rows"),
      el("p", { class: "soft" }, `Choose a token (hover, tap, or arrows) to see the attention. Attention is kept in a byte a number: it is off by ${(models[0]?.model.error ?? 0).toPrecision(2)} at most.`),
      el("div", { class: "controls" },
        choice("At a token", [["to", "where it attends"], ["from", "who attends to it"]], choices.way, v => set({ way: v as "to" | "from" })),
        ...(weighed ? [choice("by", [["attention", "attention"], ["value", "attention × size of value"]], choices.weigh, v => set({ weigh: v as "attention" | "value" }))] : []),
        choice("ordered by", known.map(key => [key, ORDERS[key]]), order, v => set({ order: v })),
        ...(kinds.length > 1 ? [choice("rows", [["", "all kinds"], ...kinds.map(k => [k, k] as [string, string])], choices.kind, v => set({ kind: v }))] : []),
      ),
      ...this.lines.map(line => line.root));
  }

  private lags(model: Model, head: Head, several: boolean): HTMLElement[] {
    const { doc } = this.state, drawn: HTMLElement[] = [];
    head.groups.forEach((group, g) => {
      if (doc.groups[g].kind === "prompt" || (this.state.choices.kind && doc.groups[g].kind !== this.state.choices.kind)) return;
      drawn.push(lagFigure(model.lags[g], group.lags, `${doc.groups[g].kind}${several ? `, ${model.name}` : ""}`));
    });
    return drawn;
  }
}

function sentences(head: Head): HTMLElement[] {
  if (!head.roles.length) return [el("p", {}, `${head.name} has no role: none was found above its null and floor.`)];
  return head.roles.flatMap(role => [
    el("p", {},
      el("strong", { class: role.status }, `${mark(role.status)} ${role.role}${role.target ? ` of ${role.target}` : ""}, ${role.status}`),
      ` (${odds(role.q)}): ${role.short}. `, el("em", {}, "Is it sure?"), ` ${role.sure}`),
    ...(role.tests.length ? [tests(role)] : []),
  ]);
}

/** Every test that a role rests on, with what was asked. */
function tests(role: Role): HTMLElement {
  const names = ["test", "of", "measured", "asked", "95 % interval", "q", "passes"];
  const cell = (at: number, text: string, kind = "number") => el("td", { class: kind, "data-name": names[at] }, text);
  const body = el("tbody", {}, ...role.tests.map(test => el("tr", {},
    cell(0, test.name, "long"), cell(1, test.kind, "short"), cell(2, shown(test.score)), cell(3, shown(test.floor)),
    cell(4, finite(test.low) === null ? "" : `${shown(test.low)} to ${shown(test.high)}`), cell(5, odds(test.q).replace("q ", "")),
    cell(6, test.passes ? "yes" : "no", test.passes ? "yes" : "no"))));
  return el("details", { class: "tests" },
    el("summary", {}, `All ${role.tests.length} tests of ${role.role}`),
    el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, ...names.map(name => el("th", { scope: "col" }, name)))), body)));
}

/** The false-discovery rate as it is read: below 1e-10 it is a tail that nobody measured. */
function odds(q: Num): string {
  const value = finite(q);
  return value === null ? "no q" : value < 1e-10 ? "q < 1e−10" : `q ${shown(value)}`;
}

function numbers(model: Model, head: Head, several: boolean): HTMLElement {
  const body = el("tbody");
  model.columns.forEach((column, at) => {
    const ranked = model.heads.map(one => finite(one.values[at])).filter(v => v !== null).sort((a, b) => b - a);
    const own = finite(head.values[at]), rank = own === null ? "" : `${ranked.indexOf(own) + 1} of ${ranked.length}`;
    body.append(el("tr", { title: column.about }, el("th", { scope: "row" }, column.label),
      el("td", { class: "number" }, shown(head.values[at])), el("td", { class: "number soft" }, rank)));
  });
  return el("table", { class: "numbers" },
    el("caption", {}, `Its numbers, and their rank among all heads${several ? ` of ${model.name}` : ""}`),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "measured"), el("th", { scope: "col" }, "value"), el("th", { scope: "col" }, "rank"))), body);
}

function lagFigure(lags: number[], values: Num[], name: string): HTMLElement {
  const known = values.map((value, i) => [finite(value), lags[i]] as const).filter(([v]) => v !== null) as [number, number][];
  const most = Math.max(...known.map(([v]) => Math.abs(v)), 1e-12);
  const top = [...known].sort((a, b) => b[0] - a[0]).slice(0, 3).map(([v, lag]) => `lag ${lag} ${shown(v)}`).join(", ");
  const words = `Attention by lag, ${name}: most at ${top || "no lag"}.`;
  const w = 300, h = 110, wide = w / Math.max(lags.length, 1);
  const picture = svg("svg", { viewBox: `0 0 ${w} ${h + 18}`, role: "img", "aria-label": words });
  values.forEach((value, i) => {
    const v = finite(value), x = i * wide;
    if (v === null) picture.append(svg("text", { x: x + wide / 2, y: h, "text-anchor": "middle" }, "×"));
    else picture.append(svg("rect", { x: x + 0.5, width: Math.max(1, wide - 1), y: h - Math.max(0, v) / most * (h - 14), height: Math.abs(v) / most * (h - 14), class: "bar" },
      svg("title", {}, `lag ${lags[i]}: ${shown(v)}`)));
  });
  for (const i of [0, Math.floor(lags.length / 2), lags.length - 1]) {
    picture.append(svg("text", { x: i * wide + wide / 2, y: h + 13, "text-anchor": i ? (i === lags.length - 1 ? "end" : "middle") : "start" }, String(lags[i])));
  }
  picture.append(svg("text", { x: 2, y: 10 }, shown(most)));
  return el("figure", { class: "lags" }, picture, el("figcaption", {}, `${words} Across: lag in tokens; up: mean share.`));
}

function raised(words: string[], model: Model, head: Head, several: boolean): HTMLElement {
  const { tokens, up, down } = model.raised!;
  const listed = (pairs: [number, Num][]) => pairs.map(([word, size]) => `${token(words[word])} ${shown(size)}`).join(", ");
  const body = el("tbody", {}, ...tokens.map((word, i) => el("tr", {},
    el("th", { scope: "row" }, token(words[word])),
    el("td", {}, listed(up[head.name]?.[i] ?? [])), el("td", {}, listed(down[head.name]?.[i] ?? [])))));
  const first = tokens.length ? `Attending to “${token(words[tokens[0]])}” raises ${listed((up[head.name]?.[0] ?? []).slice(0, 3))}.` : "";
  return el("details", { class: "raised" },
    el("summary", {}, `What it writes (OV)${several ? `, ${model.name}` : ""}: which tokens it raises and lowers. ${first}`),
    el("div", { class: "scroll" }, el("table", {},
      el("caption", {}, "From weights alone: logits, without the scales of norms, of a bare token's embedding; behind layer 0 a key holds more than that."),
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "attends to"), el("th", { scope: "col" }, "raises"), el("th", { scope: "col" }, "lowers"))), body)));
}
