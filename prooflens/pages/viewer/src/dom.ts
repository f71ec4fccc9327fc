// Elements from data: text is always text, never markup.

type Child = Node | string;
type Attributes = Record<string, string | number | boolean | ((event: Event) => void)>;
const SVG = "http://www.w3.org/2000/svg";

function filled<E extends Element>(element: E, attributes: Attributes, children: Child[]): E {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false) element.setAttribute(name, String(value));
  }
  element.append(...children);
  return element;
}

export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K, attributes: Attributes = {}, ...children: Child[]
): HTMLElementTagNameMap[K] {
  return filled(document.createElement(tag), attributes, children);
}

export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K, attributes: Attributes = {}, ...children: Child[]
): SVGElementTagNameMap[K] {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** A labelled choice. */
export function choice(
  label: string, options: [value: string, text: string][], chosen: string,
  change: (value: string) => void,
): HTMLLabelElement {
  const select = el("select", { "aria-label": label, onchange: () => change(select.value) });
  for (const [value, text] of options) {
    select.append(el("option", { value, selected: value === chosen }, text));
  }
  return el("label", {}, label + " ", select);
}

/** A token as it is shown: spaces and line breaks can be seen. */
export function token(text: string): string {
  return text === "" ? "∅" : text.replaceAll("\n", "↵").replaceAll("\t", "→").replace(/^ | $/g, "·");
}

/** The mark of a status: full, half or empty. */
export function mark(status: string | undefined): string {
  return status === "confirmed" ? "●" : status === "candidate" || status === "necessary, not specific" ? "◐" : "○";
}
