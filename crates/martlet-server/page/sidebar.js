// The conversations that the browser keeps: open, rename, delete, export, import.

import { byId, el, iconButton } from "./dom.js";
import { exported, forget, imported, save, state } from "./state.js";

/** `actions`: open(conversation), say(text, undo). */
export function showSidebar(actions) {
  const items = [...state.conversations.values()].sort((a, b) => b.updated - a.updated).map((c) => item(c, actions));
  const list = byId("conversations");
  const focused = list.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
  list.replaceChildren(...items);
  if (focused) list.querySelector(`[data-focus="${focused}"]`)?.focus();
  byId("no-conversations").hidden = items.length > 0;
  byId("export").disabled = items.length === 0;
}

function item(conversation, actions) {
  const here = conversation === state.current;
  const { id, title } = conversation;
  const open = el(
    "button",
    {
      type: "button",
      class: "open",
      "aria-current": here && "page",
      title,
      "data-focus": `open-${id}`,
      onclick: () => actions.open(conversation),
    },
    title,
  );
  if (state.runs.has(id)) open.append(el("span", { class: "dot", role: "img", "aria-label": "being answered" }));
  const rename = iconButton("edit", `Rename ${title}`, () => renamed(conversation, actions), {
    "data-focus": `rename-${id}`,
  });
  const remove = iconButton("trash", `Delete ${title}`, () => removed(conversation, actions), {
    "data-focus": `delete-${id}`,
  });
  return el("li", { class: here ? "here" : "" }, open, rename, remove);
}

function renamed(conversation, actions) {
  const title = prompt("Name of the conversation", conversation.title)?.trim();
  if (!title) return;
  conversation.title = title.slice(0, 200);
  save(conversation);
  showSidebar(actions);
}

/** At once, with a way back: that is quicker than a question, and as safe. */
function removed(conversation, actions) {
  state.runs.get(conversation.id)?.abort.abort();
  forget(conversation);
  if (conversation === state.current) actions.open(undefined);
  else showSidebar(actions);
  actions.say(`Deleted “${conversation.title}”.`, () => {
    state.conversations.set(conversation.id, conversation);
    save(conversation);
    actions.open(conversation);
  });
}

export function exportAll() {
  const url = URL.createObjectURL(
    new Blob([exported([...state.conversations.values()])], { type: "application/json" }),
  );
  el("a", { href: url, download: `martlet-conversations-${new Date().toISOString().slice(0, 10)}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

export async function importFile(file, actions) {
  try {
    const { fresh, known, lost } = imported(await file.text());
    const kept = fresh.map(save).every(Boolean);
    showSidebar(actions);
    const notes = [
      `Imported ${fresh.length}`,
      known && `${known} were here already`,
      lost && `${lost} could not be read`,
      !kept && "the browser's storage is full, so they last only until the page is closed",
    ];
    actions.say(`${notes.filter(Boolean).join(", ")}.`);
  } catch (e) {
    actions.say(e.message);
  }
}
