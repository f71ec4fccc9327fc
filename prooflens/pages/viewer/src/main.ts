// Opens the page: from the scripts that hold its data, or as a widget of a notebook.

import { type Bytes, decoded, type Doc } from "./data";
import { el } from "./dom";
import { HeadPage } from "./head";
import { Overview } from "./overview";
import { State } from "./state";

function mount(root: HTMLElement, doc: Doc, bytes: Bytes, head: string): State {
  const kept = new Map<string, Uint8Array>();
  const read: Bytes = (model, name) => {
    const key = `${model}:${name}`;
    if (!kept.has(key)) kept.set(key, bytes(model, name));
    return kept.get(key)!;
  };
  const state = new State(doc, head);
  const search = el("input", { type: "search", placeholder: "head, role or status", oninput: () => state.set({ filter: search.value }) });
  const count = el("output", { "aria-live": "polite" });
  const told = () => { count.textContent = `${state.passing().length} of ${doc.models[0].heads.length} heads`; };
  state.listen(told);
  told();
  const move = (by: number) => () => state.step(by);
  const bar = el("div", { class: "controls search" },
    el("label", {}, "Find ", search), count,
    el("button", { type: "button", onclick: move(-1) }, "previous head (k)"),
    el("button", { type: "button", onclick: move(1) }, "next head (j)"));
  root.classList.add("heads");
  root.replaceChildren(bar, new Overview(state).root, new HeadPage(state, read).root);
  root.addEventListener("keydown", event => keys(event, state, search));
  return state;
}

function keys(event: KeyboardEvent, state: State, search: HTMLInputElement): void {
  const target = event.target as HTMLElement;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (target === search && event.key === "Enter") { state.step(state.passing().includes(state.head()!) ? 0 : 1); search.blur(); }
  if (target === search && event.key === "Escape") search.blur();
  if (target.matches?.("input, textarea, select")) return;
  if (event.key === "j") state.step(1);
  else if (event.key === "k") state.step(-1);
  else if (event.key === "/") search.focus();
  else return;
  event.preventDefault();
}

/** In a page of its own: the chosen head is the address' fragment, and keys work everywhere. */
function open(root: HTMLElement, data: HTMLElement): void {
  const doc: Doc = JSON.parse(data.textContent ?? "");
  const bytes: Bytes = (model, head) => decoded(document.getElementById(`bytes-${model}-${head}`)?.textContent ?? "");
  const state = mount(root, doc, bytes, location.hash.slice(1));
  state.listen(changed => { if (changed.has("head")) history.replaceState(null, "", "#" + state.choices.head); });
  addEventListener("hashchange", () => {
    const head = location.hash.slice(1);
    if (state.known(head)) state.set({ head });
  });
  const search = root.querySelector<HTMLInputElement>("input[type=search]")!;
  document.addEventListener("keydown", event => {
    if (!root.contains(event.target as Node)) keys(event, state, search);
  });
}

const data = globalThis.document?.getElementById("view-data");
if (data) open(document.getElementById("view")!, data);

/** The part of a widget's model that is used. */
interface Shared {
  get(name: string): any;
  set(name: string, value: unknown): void;
  save_changes(): void;
  on(event: string, listener: () => void): void;
}

/** In a notebook: the chosen head is shared with Python. */
function render({ model, el: root }: { model: Shared; el: HTMLElement }): void {
  const doc: Doc = JSON.parse(model.get("document"));
  const bytes: Bytes = (number, head) => {
    const view: DataView = model.get("codes")[`${number}-${head}`];
    return new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  };
  const view = el("div"), findings: string[] = model.get("findings");
  root.append(el("ol", { class: "prooflens-findings" }, ...findings.map(said => el("li", {}, said))), view);
  const state = mount(view, doc, bytes, model.get("head"));
  if (state.choices.head !== model.get("head")) { model.set("head", state.choices.head); model.save_changes(); }
  state.listen(changed => {
    if (changed.has("head")) { model.set("head", state.choices.head); model.save_changes(); }
  });
  model.on("change:head", () => { if (state.known(model.get("head"))) state.set({ head: model.get("head") }); });
}

export default { render };
