// All that the page knows, in one object, and how it is kept in the browser.
//
// A conversation is a tree of messages, so that an edited message or another answer leaves the old ones reachable:
// `nodes` holds them in the order of their making, each with the index of its parent (-1: the beginning), and
// `chosen[parent]` is the child that is shown.

const PREFIX = "martlet.conversation.";
const SETTINGS = "martlet.settings";
const KEY = "martlet.key";
const FORMAT = "martlet-conversations";

export const state = {
  /** By id; newest last. */
  conversations: new Map(),
  /** The conversation that is shown; it is kept from its first message on. */
  current: undefined,
  settings: {},
  models: [],
  /** Answers that are coming, by the id of their conversation. */
  runs: new Map(),
  /** For servers that ask for one; forgotten with the tab. */
  key: "",
  /** The message that is being edited. */
  editing: undefined,
  /** Images that the next message takes along, as data URLs. */
  images: [],
};

export const DEFAULTS = {
  theme: "auto",
  model: "",
  system: "",
  thinking: true,
  effort: "",
  temperature: "",
  top_p: "",
  top_k: "",
  min_p: "",
  presence_penalty: "",
  repetition_penalty: "",
  max_tokens: "",
  seed: "",
  tools: "",
};

// ---- conversations ----

export function newConversation() {
  const now = Date.now();
  // Random enough for one browser; crypto.randomUUID needs a secure context.
  const id = now.toString(36) + Math.random().toString(36).slice(2, 10);
  return { id, title: "", system: state.settings.system, created: now, updated: now, nodes: [], chosen: {} };
}

/** Adds a message under `parent`, shows it, and gives its index. */
export function addNode(conversation, parent, node) {
  const index = conversation.nodes.push({ role: "user", content: "", ...node, parent, at: Date.now() }) - 1;
  conversation.chosen[parent] = index;
  if (!conversation.title && node.role === "user") conversation.title = titleOf(node.content);
  state.conversations.set(conversation.id, conversation);
  return index;
}

const titleOf = (text) => text.trim().split("\n")[0].slice(0, 80) || "Image";

/** The indices of the messages that are shown, from the first on. */
export function shownPath(conversation) {
  const path = [];
  for (let at = conversation.chosen[-1]; at !== undefined; at = conversation.chosen[at]) path.push(at);
  return path;
}

/** From the first message to `index`, whichever is shown. */
export function pathTo(conversation, index) {
  const path = [];
  for (let at = index; at >= 0; at = conversation.nodes[at].parent) path.unshift(at);
  return path;
}

/** The messages that stand at the same place as `index`, itself among them. */
export function siblings(conversation, index) {
  const { parent } = conversation.nodes[index];
  return conversation.nodes.flatMap((node, i) => (node.parent === parent ? [i] : []));
}

// ---- what comes from outside: the browser's storage, which other versions wrote, and imported files ----

const text = (value, otherwise = "") => (typeof value === "string" ? value : otherwise);
const number = (value) => (Number.isFinite(value) ? value : undefined);
const list = (value) => (Array.isArray(value) ? value : []);

function readNode(value, index) {
  const node = {
    role: ["user", "assistant", "tool"].includes(value?.role) ? value.role : "user",
    content: text(value?.content),
    parent: Number.isInteger(value?.parent) && value.parent >= -1 && value.parent < index ? value.parent : index - 1,
    at: number(value?.at) ?? 0,
  };
  if (node.role === "user") node.images = list(value?.images).filter(isImage);
  if (node.role === "tool") node.call = text(value?.call);
  if (node.role === "assistant") {
    node.reasoning = text(value?.reasoning);
    node.calls = list(value?.calls).map((call) => ({
      id: text(call?.id),
      name: text(call?.name),
      arguments: text(call?.arguments),
    }));
    for (const name of ["finish", "error", "model"]) if (value?.[name]) node[name] = text(value[name]);
    const { prompt, cached, generated, reasoning } = value?.usage ?? {};
    if (Number.isFinite(generated))
      node.usage = { prompt: number(prompt), cached: number(cached), generated, reasoning: number(reasoning) };
    const { first, thinking, writing } = value?.seconds ?? {};
    node.seconds = { first: number(first), thinking: number(thinking), writing: number(writing) };
  }
  return node;
}

export const isImage = (value) =>
  typeof value === "string" && /^data:image\/(?:png|jpeg|webp);base64,[A-Za-z0-9+/=]+$/.test(value);

/** A conversation made of what should be one; undefined if it is none. */
function readConversation(value) {
  if (typeof value?.id !== "string" || !Array.isArray(value.nodes) || value.nodes.length === 0) return undefined;
  const nodes = value.nodes.map(readNode);
  const chosen = {};
  // The last child is shown where nothing else is said.
  nodes.forEach((node, index) => (chosen[node.parent] = index));
  for (const [parent, child] of Object.entries(value.chosen ?? {})) {
    if (nodes[child] && String(nodes[child].parent) === parent) chosen[parent] = child;
  }
  const created = number(value.created) ?? Date.now();
  const title = text(value.title).slice(0, 200) || titleOf(nodes[0].content);
  return {
    id: value.id.slice(0, 64),
    title,
    system: text(value.system),
    created,
    updated: number(value.updated) ?? created,
    nodes,
    chosen,
  };
}

function readSettings(value) {
  const settings = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) {
    if (typeof value?.[name] === typeof DEFAULTS[name]) settings[name] = value[name];
  }
  return settings;
}

// ---- keeping ----

/** The browser may forbid storage; then everything works until the page is closed. */
function storage(use, otherwise) {
  try {
    return use(localStorage);
  } catch {
    return otherwise;
  }
}

function parsed(json) {
  try {
    return JSON.parse(json);
  } catch {
    return undefined;
  }
}

export function load() {
  state.settings = readSettings(storage((s) => parsed(s.getItem(SETTINGS))));
  const names = storage((s) => Object.keys(s).filter((name) => name.startsWith(PREFIX)), []);
  const found = names.map((name) => readConversation(storage((s) => parsed(s.getItem(name))))).filter(Boolean);
  found.sort((a, b) => a.updated - b.updated).forEach((c) => state.conversations.set(c.id, c));
  state.key = storage(() => sessionStorage.getItem(KEY)) ?? "";
  state.current = newConversation();
}

/** Whether it could be kept. */
export function save(conversation) {
  if (!state.conversations.has(conversation.id)) return true;
  return storage((s) => (s.setItem(PREFIX + conversation.id, JSON.stringify(conversation)), true), false);
}

export function forget(conversation) {
  state.conversations.delete(conversation.id);
  storage((s) => s.removeItem(PREFIX + conversation.id));
}

export function saveSettings() {
  storage((s) => s.setItem(SETTINGS, JSON.stringify(state.settings)));
}

export function saveKey(key) {
  state.key = key;
  storage(() => sessionStorage.setItem(KEY, key));
}

/** Another tab wrote. Gives the conversation's id, or undefined if it was something else. */
export function takeOver({ key, newValue }) {
  if (!key?.startsWith(PREFIX)) return undefined;
  const id = key.slice(PREFIX.length);
  const conversation = newValue === null ? undefined : readConversation(parsed(newValue));
  if (state.runs.has(id)) return undefined;
  if (conversation) state.conversations.set(id, conversation);
  else state.conversations.delete(id);
  return id;
}

export function exported(conversations) {
  return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
}

/** Adds the conversations of a file, and gives them; what is known already stays as it is. */
export function imported(json) {
  const value = parsed(json);
  if (value?.format !== FORMAT) throw new Error("This file holds no conversations of martlet.");
  const found = list(value.conversations).map(readConversation).filter(Boolean);
  const fresh = found.filter((c) => !state.conversations.has(c.id));
  fresh.forEach((c) => state.conversations.set(c.id, c));
  return { fresh, known: found.length - fresh.length, lost: list(value.conversations).length - found.length };
}
