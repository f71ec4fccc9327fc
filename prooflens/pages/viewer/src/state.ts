// What is looked at, and who wants to know when that changes.

import type { Doc, Head, Model } from "./data";

export type View = "points" | "grid";
export interface Choices {
  head: string; view: View; x: string; y: string; colour: string; filter: string;
  order: string; kind: string; way: "to" | "from"; weigh: "attention" | "value";
}

export class State {
  readonly choices: Choices;
  private readonly listeners: ((changed: Set<keyof Choices>) => void)[] = [];

  constructor(readonly doc: Doc, head: string) {
    const { columns, heads } = doc.models[0];
    const has = (key: string) => columns.some(column => column.key === key);
    const lost = columns.find(column => column.key.startsWith("loss-"))?.key;
    const first = has("after_same") ? "after_same" : columns[0]?.key ?? "layer";
    this.choices = {
      head: this.known(head) ? head : leading(heads).name, view: "points", x: first,
      y: lost ?? columns[1]?.key ?? "layer", colour: "role", filter: "", order: "", kind: "",
      way: "to", weigh: "attention",
    };
  }

  known(head: string): boolean { return this.doc.models[0].heads.some(h => h.name === head); }

  /** The chosen head of a model; undefined where that model has no such head. */
  head(model: Model = this.doc.models[0]): Head | undefined {
    return model.heads.find(head => head.name === this.choices.head);
  }

  listen(listener: (changed: Set<keyof Choices>) => void): void { this.listeners.push(listener); }

  set(changes: Partial<Choices>): void {
    const keys = (Object.keys(changes) as (keyof Choices)[])
      .filter(key => this.choices[key] !== changes[key]);
    if (!keys.length) return;
    Object.assign(this.choices, changes);
    const changed = new Set(keys);
    for (const listener of this.listeners) listener(changed);
  }

  /** Heads of the first model that the filter lets through, in order of layer and head. */
  passing(): Head[] {
    const text = this.choices.filter.toLowerCase();
    return this.doc.models[0].heads.filter(head => !text || said(head).toLowerCase().includes(text));
  }

  /** The next head that the filter lets through, or the one before. */
  step(by: number): void {
    const heads = this.passing();
    if (!heads.length) return;
    const at = heads.findIndex(head => head.name === this.choices.head);
    const next = at < 0 ? 0 : (at + by + heads.length) % heads.length;
    this.set({ head: heads[next].name });
  }
}

/** All that a search looks at. */
function said(head: Head): string {
  return [head.name, ...head.roles.flatMap(role => [role.role, role.status, role.target])].join(" ");
}

/** The head that a page opens with: a confirmed induction head, else any confirmed one, else any
 * with a role. */
function leading(heads: Head[]): Head {
  const sure = heads.filter(head => head.roles.some(role => role.status === "confirmed"));
  const induction = sure.find(head => head.roles.some(role => role.role === "induction"));
  return induction ?? sure[0] ?? heads.find(head => head.roles.length > 0) ?? heads[0];
}
