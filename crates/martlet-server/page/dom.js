// The only way in which the page makes elements: by name, with text as text. Nothing here or elsewhere reads HTML from a
// string, so whatever a model writes stays text.

/** An element. Properties that begin with "on" are listeners, false and undefined ones are left out. */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== undefined && child !== null && child !== false));
  return node;
}

/** Drawn with strokes on a field of 24 by 24, so that they take the colour of the text beside them. */
const ICONS = {
  attach: "M4 18V6a2 2 0 0 1 2-2h12a2 2 0 0 1 2 2v12a2 2 0 0 1-2 2H6a2 2 0 0 1-2-2zM4 16l5-5 4 4 3-3 4 4M15.5 8.5h.01",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  down: "M12 5v14M6 13l6 6 6-6",
  edit: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
  left: "M15 5l-7 7 7 7",
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  redo: "M19 12a7 7 0 1 1-2-5l2 2M19 4v5h-5",
  right: "M9 5l7 7-7 7",
  send: "M12 20V5M6 11l6-6 6 6",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4",
  stop: "M7 7h10v10H7z",
  theme: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
  think:
    "M12 3l1.6 5.4L19 10l-5.4 1.6L12 17l-1.6-5.4L5 10l5.4-1.6zM18 16l.7 2.3L21 19l-2.3.7L18 22l-.7-2.3L15 19l2.3-.7z",
  tool: "M9 4H8a2 2 0 0 0-2 2v4l-2 2 2 2v4a2 2 0 0 0 2 2h1M15 4h1a2 2 0 0 1 2 2v4l2 2-2 2v4a2 2 0 0 1-2 2h-1",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
};

const SVG = "http://www.w3.org/2000/svg";

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const path = document.createElementNS(SVG, "path");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", `icon icon-${name}`);
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** A button with a picture; `label` is its name for everybody who does not see it, and its tooltip. */
export function iconButton(name, label, onclick, properties = {}) {
  return el(
    "button",
    { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...properties },
    icon(name),
  );
}

export const byId = (id) => document.getElementById(id);

/** Puts text on the clipboard, also where the page is not in a secure context (http on a local network). */
export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = el("textarea", { class: "visually-hidden", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** A button that copies what `text()` gives, and says so. */
export function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    try {
      await copy(text());
      button.classList.add("done");
      button.setAttribute("aria-label", "Copied");
    } catch {
      button.setAttribute("aria-label", "The browser does not allow copying");
    }
    setTimeout(() => {
      button.classList.remove("done");
      button.setAttribute("aria-label", label);
    }, 1500);
  });
  return button;
}
