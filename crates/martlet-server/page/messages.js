// The conversation that is shown: one article for each message. An article is made anew only when something about it
// changed, so that folded parts, selections and the focus stay where they are.

import { copyButton, el, icon, iconButton } from "./dom.js";
import { showMarkdown } from "./markdown.js";
import { finishLine, progressLine, seconds, usageLine } from "./run.js";
import { shownPath, siblings, state } from "./state.js";

const WHO = { user: "You", assistant: "Model", tool: "Tool result" };

/** Articles by message, with what they were made of. */
let shown = new Map();
let shownConversation;

/**
 * Shows the current conversation in `parent`. `actions`: edit, saveEdit, cancelEdit, regenerate, choose, sendResults,
 * each called with the index of a message.
 */
export function showMessages(parent, actions) {
  const { current } = state;
  if (current !== shownConversation) shown = new Map();
  shownConversation = current;
  const focused = parent.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
  const path = shownPath(current);
  const fresh = new Map();
  for (const [place, index] of path.entries()) {
    const last = place === path.length - 1;
    const made = madeOf(index, last);
    const old = shown.get(index);
    fresh.set(
      index,
      old?.made === made ? old : { made, article: unfolded(article(index, last, actions), old?.article) },
    );
  }
  shown = fresh;
  // Those that stay are not moved: moving takes the focus and folds nothing back.
  const wanted = [...fresh.values()].map((entry) => entry.article);
  [...parent.children].filter((child) => !wanted.includes(child)).forEach((child) => child.remove());
  wanted.forEach((node, i) => parent.children[i] !== node && parent.insertBefore(node, parent.children[i] ?? null));
  // While an answer comes there is nothing to branch from yet.
  const busy = state.runs.has(current.id);
  for (const button of parent.querySelectorAll(".acts")) button.disabled = busy || button.dataset.never === "true";
  if (focused) parent.querySelector(`[data-focus="${focused}"]`)?.focus();
}

/** What somebody unfolded stays so when the answer is whole. */
function unfolded(made, before) {
  const thinking = made.querySelector(":scope > .thinking");
  if (thinking) thinking.open = Boolean(before?.querySelector(":scope > .thinking")?.open);
  return made;
}

/** Shows more of an answer that is coming, and gives the elements of its text. */
export function showProgress(run) {
  const entry = run.conversation === state.current && shown.get(run.index);
  return entry ? fillAnswer(entry.article, run.node, run) : [];
}

function madeOf(index, last) {
  const { current, editing, runs } = state;
  const { calls, error, finish, content } = current.nodes[index];
  const running = runs.get(current.id)?.index === index;
  const asks = last && calls?.length > 0;
  return JSON.stringify([asks, running, editing === index, siblings(current, index), error, finish, content.length]);
}

function article(index, last, actions) {
  const { current, editing, runs } = state;
  const node = current.nodes[index];
  const run = runs.get(current.id)?.index === index ? runs.get(current.id) : undefined;
  const head = el(
    "h2",
    { class: "who", id: `who-${index}` },
    (node.role === "assistant" && node.model) || WHO[node.role],
  );
  const out = el(
    "article",
    { class: `message ${node.role}`, "aria-labelledby": `who-${index}`, "data-index": String(index) },
    head,
  );
  if (editing === index) {
    out.append(editor(index, node, actions));
    return out;
  }
  if (node.role === "assistant") {
    out.append(...answerParts());
    fillAnswer(out, node, run);
    if (last && !run && node.calls.length > 0) out.append(resultsForm(index, node, actions));
  } else {
    if (node.images?.length) out.append(el("div", { class: "images" }, ...node.images.map(picture)));
    out.append(el("div", { class: "text" }, node.content));
  }
  if (!run) out.append(foot(index, node, actions));
  return out;
}

// ---- answers ----

function answerParts() {
  const thinking = el(
    "details",
    { class: "thinking", hidden: true },
    el("summary", {}, icon("think"), el("span")),
    el("div", { class: "markdown" }),
  );
  return [
    thinking,
    el("p", { class: "waiting", hidden: true }),
    el("div", { class: "markdown body" }),
    el("div", { class: "calls" }),
    el("p", { class: "note", hidden: true }),
    el("p", { class: "usage", hidden: true }),
  ];
}

function fillAnswer(out, node, run) {
  const [thinking, waiting, body, calls, note, usage] = ["thinking", "waiting", "body", "calls", "note", "usage"].map(
    (name) => out.querySelector(`:scope > .${name}`),
  );
  out.setAttribute("aria-busy", String(Boolean(run && !run.done)));
  thinking.hidden = !node.reasoning.trim();
  if (!thinking.hidden) {
    const now = run && !run.done && !node.content && node.calls.length === 0;
    thinking.classList.toggle("now", Boolean(now));
    setText(thinking.querySelector("summary span"), thinkingLine(node, now));
    showMarkdown(node.reasoning.trim(), thinking.lastElementChild);
  }
  const silent = run && !run.done && !node.content && !node.reasoning && node.calls.length === 0;
  show(waiting, silent && progressLine(run));
  showCalls(calls, node.calls);
  show(note, !run || run.done ? (node.error ?? finishLine(node)) : undefined);
  note.classList.toggle("error", Boolean(node.error));
  show(usage, usageLine(node));
  return showMarkdown(node.content.trim(), body);
}

function thinkingLine(node, now) {
  const took = node.seconds?.thinking;
  const time = !(took >= 0.05) ? "" : ` ${now ? "" : "for "}${seconds(took)}`;
  return now ? `Thinking${time}` : `Thought${time}`;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function show(node, text) {
  node.hidden = !text;
  setText(node, text || "");
}

function showCalls(parent, calls) {
  calls.forEach((call, i) => {
    const card = parent.children[i] ?? parent.appendChild(callCard());
    setText(card.querySelector("code"), call.name);
    setText(card.querySelector("pre"), pretty(call.arguments));
  });
}

function callCard() {
  const name = el("p", { class: "call-name" }, icon("tool"), el("span", {}, "Calls "), el("code"));
  return el(
    "section",
    { class: "call", "aria-label": "Tool call" },
    name,
    el("pre", { tabindex: "0", "aria-label": "Arguments" }),
  );
}

/** Arguments in lines once they are whole; as they come before that. */
function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

/** The page runs no tools; a person may say what they gave. */
function resultsForm(index, node, actions) {
  const fields = node.calls.map((call, i) => {
    const field = el("textarea", { rows: "2", "data-focus": `result-${index}-${i}` });
    return { field, label: el("label", {}, `Result of ${call.name}`, field) };
  });
  const send = el("button", { type: "submit", class: "button" }, fields.length > 1 ? "Send results" : "Send result");
  const form = el("form", { class: "results" }, ...fields.map((f) => f.label), send);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    actions.sendResults(
      index,
      fields.map((f) => f.field.value),
    );
  });
  return form;
}

// ---- what can be done with a message ----

function foot(index, node, actions) {
  const all = siblings(state.current, index);
  const out = el("div", { class: "foot" });
  if (all.length > 1) out.append(branches(index, all, actions));
  const act = (name, label, action) =>
    iconButton(name, label, () => action(index), { class: "icon-button acts", "data-focus": `${name}-${index}` });
  out.append(copyButton("Copy message", () => node.content));
  if (node.role !== "tool") out.append(act("edit", "Edit, as another branch", actions.edit));
  if (node.role === "assistant") out.append(act("redo", "Another answer", actions.regenerate));
  return out;
}

function branches(index, all, actions) {
  const place = all.indexOf(index);
  const step = (name, label, to) =>
    iconButton(name, label, () => actions.choose(all[to]), {
      // Named by the place in the conversation, so that the focus stays when the message there is another one.
      "data-focus": `${name}-of-${state.current.nodes[index].parent}`,
      class: "icon-button acts",
      "data-never": String(all[to] === undefined),
    });
  const where = el("span", { "aria-label": `Branch ${place + 1} of ${all.length}` }, `${place + 1}/${all.length}`);
  return el(
    "span",
    { class: "branches", role: "group", "aria-label": "Branches" },
    step("left", "Previous branch", place - 1),
    where,
    step("right", "Next branch", place + 1),
  );
}

function editor(index, node, actions) {
  const field = el("textarea", {
    "aria-label": "Edited message",
    rows: String(Math.min(node.content.split("\n").length + 1, 16)),
    "data-focus": `editor-${index}`,
  });
  field.value = node.content;
  const save = el("button", { type: "submit", class: "button primary" }, node.role === "user" ? "Send" : "Keep");
  const cancel = el("button", { type: "button", class: "button", onclick: () => actions.cancelEdit(index) }, "Cancel");
  const form = el("form", { class: "editor" }, field, el("div", { class: "row" }, save, cancel));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    actions.saveEdit(index, field.value);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") actions.cancelEdit(index);
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    event.stopPropagation();
  });
  queueMicrotask(() => {
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  });
  return form;
}

/** Drawn on a canvas: the page's policy forbids images by address, data: among them. */
export function picture(url) {
  const canvas = el("canvas", { role: "img", "aria-label": "Image" });
  const [head, data] = url.split(",");
  const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
  createImageBitmap(new Blob([bytes], { type: head.slice(5, head.indexOf(";")) })).then(
    (bitmap) => {
      [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
      canvas.getContext("2d").drawImage(bitmap, 0, 0);
    },
    () => canvas.replaceWith("(an image that can not be read)"),
  );
  return canvas;
}
