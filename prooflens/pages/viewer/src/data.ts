// The page's data (docs/formats.md) and how a head's bytes are read.

export type Num = number | "inf" | "-inf" | null;
/** What a code of one byte stands for: low + code * step, off by at most error. */
export type Scale = [low: number, step: number, error: number];

export interface Test {
  name: string; kind: string; passes: boolean;
  score: Num; floor: Num; q: Num; low: Num; high: Num;
}
export interface Role {
  role: string; target: string; status: string; short: string; sure: string;
  strength: Num; effect: Num; q: Num; tests: Test[];
}
export interface HeadGroup {
  pattern: Scale; written: Scale | null; effect: Scale | null;
  scores: Record<string, Num[]>; lags: Num[];
}
export interface Head {
  name: string; layer: number; head: number; roles: Role[]; values: Num[]; order: string;
  groups: HeadGroup[];
}
export interface Column { key: string; label: string; about: string }
export type Raising = Record<string, [word: number, size: Num][][]>;
export interface Model {
  name: string; causal: boolean; error: number; columns: Column[]; lags: number[][];
  effects: ({ how: string; unit: string } | null)[]; heads: Head[]; notes: string[];
  raised: { tokens: number[]; up: Raising; down: Raising } | null;
}
export interface Group {
  kind: string; about: string; length: number; rows: number[][]; scored: number[][];
}
export interface Doc {
  format: { name: string; version: number };
  title: string; words: string[]; groups: Group[]; models: Model[];
}
/** The bytes of a model's head, by the model's number and the head's name. */
export type Bytes = (model: number, head: string) => Uint8Array;

/** One row of one kind. */
export interface Row { group: number; row: number }

/** A head's attention, norms and effects on rows, read from its bytes. */
export class HeadCodes {
  private readonly starts: { pattern: number; written: number; effect: number }[] = [];

  constructor(
    private readonly doc: Doc, private readonly model: Model, private readonly head: Head,
    private readonly bytes: Uint8Array,
  ) {
    let at = 0;
    doc.groups.forEach((group, g) => {
      const rows = group.rows.length, own = head.groups[g];
      const start = { pattern: at, written: -1, effect: -1 };
      at += rows * this.square(group.length);
      if (own.written) { start.written = at; at += rows * group.length; }
      if (own.effect) { start.effect = at; at += rows * group.length; }
      this.starts.push(start);
    });
  }

  /** Attention of a query to a key; 0 for keys that a causal head does not see. */
  attention({ group, row }: Row, query: number, key: number): number {
    if (this.model.causal && key > query) return 0;
    const n = this.doc.groups[group].length;
    const inside = this.model.causal ? query * (query + 1) / 2 + key : query * n + key;
    const at = this.starts[group].pattern + row * this.square(n) + inside;
    return this.value(this.head.groups[group].pattern, at);
  }

  /** How large what is read from a key would be; null where that is not known. */
  written({ group, row }: Row, key: number): number | null {
    return this.byPosition(group, row, key, this.head.groups[group].written, "written");
  }

  /** Rise of the loss at a position without the head; null where that is not known. */
  effect({ group, row }: Row, position: number): number | null {
    return this.byPosition(group, row, position, this.head.groups[group].effect, "effect");
  }

  private byPosition(
    group: number, row: number, at: number, scale: Scale | null, what: "written" | "effect",
  ): number | null {
    if (!scale) return null;
    return this.value(scale, this.starts[group][what] + row * this.doc.groups[group].length + at);
  }

  private square(n: number): number { return this.model.causal ? n * (n + 1) / 2 : n * n; }

  private value([low, step]: Scale, at: number): number { return low + this.bytes[at] * step; }
}

/** Bytes of a base64 text. */
export function decoded(text: string): Uint8Array {
  const raw = atob(text.trim()), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

/** A number to read: two or three digits; a dash for what was not measured. */
export function shown(value: Num | undefined): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value === "inf" ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e4)) return value.toExponential(1).replaceAll("-", "−");
  if (size !== 0 && size < 0.1) return value.toPrecision(2).replace("-", "−");
  return (size >= 100 ? value.toFixed(0) : value.toFixed(size >= 10 ? 1 : 2)).replace("-", "−");
}

/** A number that can be drawn; null for what was not measured or is infinite. */
export function finite(value: Num | undefined): number | null {
  return typeof value === "number" ? value : null;
}
