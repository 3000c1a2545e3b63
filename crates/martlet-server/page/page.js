// The page: it ties the parts together, and has the composer, the shortcuts and the flow of an answer.

import { models } from "./client.js";
import { byId, el, icon, iconButton } from "./dom.js";
import { picture, showMessages, showProgress } from "./messages.js";
import { canSee, canThink, currentModel, run } from "./run.js";
import { askForKey, nextTheme, openSettings, setUpSettings, showTheme } from "./settings.js";
import { exportAll, importFile, showSidebar } from "./sidebar.js";
import {
  addNode,
  forget,
  load,
  newConversation,
  save,
  saveSettings,
  shownPath,
  siblings,
  state,
  takeOver,
} from "./state.js";

/** Longer sides are scaled down before they are sent. */
const LONGEST_SIDE = 2048;
const MOST_IMAGES = 8;
/** Milliseconds between two saves of an answer that is coming. */
const SAVE_EVERY = 2000;

// ---- showing ----

const sidebarActions = { open: openConversation, say };
const messageActions = { edit, saveEdit, cancelEdit, regenerate, choose, sendResults };

function show() {
  const { current } = state;
  const empty = current.nodes.length === 0;
  document.title = current.title ? `${current.title} · martlet` : "martlet";
  byId("welcome").hidden = !empty;
  byId("title").textContent = current.title || "New conversation";
  if (document.activeElement !== byId("system")) byId("system").value = current.system;
  showSystem();
  showMessages(byId("messages"), messageActions);
  showSidebar(sidebarActions);
  showComposer();
}

function showSystem() {
  const words = state.current.system.trim().replace(/\s+/g, " ");
  byId("system-state").textContent = words ? `: ${words.length > 80 ? `${words.slice(0, 80)}…` : words}` : "";
}

function showComposer() {
  const model = currentModel();
  const running = state.runs.has(state.current.id);
  const { thinking } = state.settings;
  byId("send").hidden = running;
  byId("stop").hidden = !running;
  byId("attach").hidden = !canSee(model);
  byId("thinking").hidden = !canThink(model);
  byId("thinking").setAttribute("aria-pressed", String(thinking));
  byId("pictures").replaceChildren(...state.images.map(pictureChip));
  byId("model").replaceChildren(
    ...state.models.map((m) => el("option", { value: m.id, selected: m === model }, m.display_name ?? m.id)),
  );
  byId("model").disabled = state.models.length < 2;
}

function pictureChip(url, i) {
  const remove = iconButton("close", `Remove image ${i + 1}`, () => {
    state.images.splice(i, 1);
    showComposer();
    byId("message").focus();
  });
  return el("li", {}, picture(url), remove);
}

/** A note that stays until the next one, or until it is closed. */
function say(text, undo) {
  const close = () => byId("notice").replaceChildren();
  const parts = [el("span", {}, text)];
  if (undo) {
    const back = () => {
      close();
      undo();
    };
    parts.push(el("button", { type: "button", class: "button", onclick: back }, "Undo"));
  }
  byId("notice").replaceChildren(
    el("div", { class: "notice" }, ...parts, iconButton("close", "Close this note", close)),
  );
}

// ---- for screen readers: an answer is spoken block by block as its blocks are finished ----

function speak(text) {
  const spoken = byId("spoken");
  spoken.append(el("p", {}, text));
  while (spoken.children.length > 20) spoken.firstElementChild.remove();
}

function speakBlocks(now, blocks, upTo) {
  now.spoken ??= 0;
  for (; now.spoken < upTo; now.spoken += 1) speak(blocks[now.spoken].textContent);
}

// ---- scrolling: the view follows the answer unless somebody scrolled up ----

let follows = true;
let lastTop = 0;

/** Pixels below what is seen. */
function below() {
  const { scrollHeight, scrollTop, clientHeight } = byId("scroll");
  return scrollHeight - scrollTop - clientHeight;
}

const atEnd = () => below() < 40;

/** The first pixel upwards is meant, even near the end: otherwise the answer would pull against the reader. */
function scrolled() {
  const { scrollTop } = byId("scroll");
  if (scrollTop < lastTop && below() > 1) follows = false;
  else if (atEnd()) follows = true;
  lastTop = scrollTop;
  byId("to-end").hidden = atEnd();
}

function toEnd() {
  follows = true;
  byId("scroll").scrollTop = byId("scroll").scrollHeight;
  byId("to-end").hidden = true;
}

// ---- answers ----

async function answerTo(conversation, parent) {
  if (state.runs.has(conversation.id)) return;
  follows = true;
  speak("The model is answering.");
  let saved = 0;
  let frame;
  const now = await run(conversation, parent, (it) => {
    if (Date.now() - saved > SAVE_EVERY) {
      saved = Date.now();
      keep(conversation);
    }
    // The first and the last state are shown at once; between them a picture every frame is enough.
    if (it.done || (!it.node.usage && !it.progress)) {
      cancelAnimationFrame(frame);
      frame = undefined;
      show();
      paint(it);
    } else {
      frame ??= requestAnimationFrame(() => {
        frame = undefined;
        paint(it);
      });
    }
  });
  keep(conversation);
  if (now.status === 401) askForKey(now.node.error, connect);
}

function paint(now) {
  const blocks = showProgress(now);
  if (now.conversation !== state.current) return;
  speakBlocks(now, blocks, now.done ? blocks.length : blocks.length - 1);
  if (now.done) speak(now.node.error ?? "The answer is complete.");
  if (follows) toEnd();
  else byId("to-end").hidden = atEnd();
}

function keep(conversation) {
  if (!save(conversation)) {
    say(
      "The browser keeps no more: its storage is full or not allowed. Export conversations, then delete some; until then new messages last only until the page is closed.",
    );
  }
}

const lastShown = () => shownPath(state.current).at(-1) ?? -1;

function send() {
  const { current } = state;
  const content = byId("message").value;
  if ((!content.trim() && state.images.length === 0) || state.runs.has(current.id)) return;
  const index = addNode(current, lastShown(), { role: "user", content, images: state.images });
  state.images = [];
  byId("message").value = "";
  grow();
  answerTo(current, index);
  byId("message").focus();
}

function stop() {
  state.runs.get(state.current.id)?.abort.abort();
  byId("message").focus();
}

function sendResults(index, results) {
  const { current } = state;
  let parent = index;
  results.forEach((content, i) => {
    parent = addNode(current, parent, { role: "tool", content, call: current.nodes[index].calls[i].id });
  });
  answerTo(current, parent);
  byId("message").focus();
}

// ---- branches ----

function regenerate(index) {
  answerTo(state.current, state.current.nodes[index].parent);
}

function edit(index) {
  state.editing = index;
  show();
}

function cancelEdit(index) {
  state.editing = undefined;
  show();
  document.querySelector(`[data-focus="edit-${index}"]`)?.focus();
}

function saveEdit(index, content) {
  const { current } = state;
  const { parent, role, images } = current.nodes[index];
  state.editing = undefined;
  // An answer that a person wrote has no tokens and no seconds.
  const made = addNode(
    current,
    parent,
    role === "user" ? { role, content, images } : { role, content, reasoning: "", calls: [], seconds: {} },
  );
  keep(current);
  if (role === "user") answerTo(current, made);
  else show();
  byId("message").focus();
}

function choose(index) {
  const { current } = state;
  current.chosen[current.nodes[index].parent] = index;
  keep(current);
  show();
  speak(`Branch ${siblings(current, index).indexOf(index) + 1}`);
}

// ---- conversations ----

function openConversation(conversation) {
  state.current = conversation ?? newConversation();
  state.editing = undefined;
  closeMenu();
  show();
  toEnd();
  byId("message").focus();
}

/** On narrow pages the conversations lie over the rest, which then is out of reach. */
function showMenu(open) {
  document.body.classList.toggle("menu-open", open);
  byId("menu").setAttribute("aria-expanded", String(open));
  byId("main").inert = open;
  if (open) byId("new").focus();
}

const closeMenu = () => showMenu(false);

// ---- the composer ----

function grow() {
  const field = byId("message");
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight, window.innerHeight * 0.4)}px`;
}

async function addImages(files) {
  const images = files.filter((file) => file.type.startsWith("image/"));
  if (images.length === 0) return;
  if (!canSee(currentModel())) return say("This model does not see images.");
  for (const file of images.slice(0, MOST_IMAGES - state.images.length)) {
    try {
      state.images.push(await readImage(file));
    } catch {
      say(`${file.name || "The image"} can not be read as an image.`);
    }
  }
  showComposer();
}

/** As a data URL of at most LONGEST_SIDE pixels a side. */
async function readImage(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = el("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  // Photographs would be several times as large as PNG; drawings and screenshots stay exact.
  return file.type === "image/jpeg" ? canvas.toDataURL("image/jpeg", 0.9) : canvas.toDataURL("image/png");
}

function setUpComposer() {
  const field = byId("message");
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  field.addEventListener("input", grow);
  field.addEventListener("keydown", (event) => {
    // On a phone Enter is the only way to a new line. Enter also ends the choice of a word in input methods.
    const phone = matchMedia("(pointer: coarse)").matches;
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !phone) {
      event.preventDefault();
      send();
    }
    if (event.key === "ArrowUp" && field.value === "") editLast(event);
  });
  field.addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files];
    if (files.length > 0) event.preventDefault();
    addImages(files);
  });
  byId("scroll").addEventListener("dragover", (event) => event.preventDefault());
  byId("scroll").addEventListener("drop", (event) => {
    event.preventDefault();
    addImages([...event.dataTransfer.files]);
  });
  byId("attach").addEventListener("click", () => byId("image-file").click());
  byId("image-file").addEventListener("change", (event) => {
    addImages([...event.target.files]);
    event.target.value = "";
  });
  byId("stop").addEventListener("click", stop);
  byId("thinking").addEventListener("click", () => {
    state.settings.thinking = !state.settings.thinking;
    saveSettings();
    showComposer();
  });
}

function editLast(event) {
  const last = shownPath(state.current).findLast((index) => state.current.nodes[index].role === "user");
  if (last === undefined || state.runs.has(state.current.id)) return;
  event.preventDefault();
  edit(last);
}

// ---- everything else on the page ----

function setUpPage() {
  for (const place of document.querySelectorAll("[data-icon]")) place.prepend(icon(place.dataset.icon));
  const click = (id, action) => byId(id).addEventListener("click", action);
  click("new", () => openConversation(undefined));
  click("menu", () => showMenu(true));
  click("backdrop", closeMenu);
  click("to-end", toEnd);
  click("theme", nextTheme);
  click("open-settings", openSettings);
  click("open-shortcuts", () => byId("shortcuts").showModal());
  click("export", exportAll);
  click("import", () => byId("import-file").click());
  click("delete-all", deleteAll);
  byId("import-file").addEventListener("change", (event) => {
    if (event.target.files[0]) importFile(event.target.files[0], sidebarActions);
    event.target.value = "";
  });
  byId("system").addEventListener("input", (event) => {
    state.current.system = event.target.value;
    showSystem();
    save(state.current);
  });
  byId("model").addEventListener("change", (event) => {
    state.settings.model = event.target.value;
    saveSettings();
    showComposer();
  });
  byId("scroll").addEventListener("scroll", scrolled);
  matchMedia("(max-width: 760px)").addEventListener("change", closeMenu);
  addEventListener("pagehide", () => state.runs.forEach((now) => save(now.conversation)));
  addEventListener("storage", (event) => {
    const id = takeOver(event);
    if (!id) return;
    if (id === state.current.id) state.current = state.conversations.get(id) ?? newConversation();
    if (state.editing === undefined) show();
  });
}

function deleteAll() {
  if (!confirm("Delete all conversations that this browser keeps? Export them first if they matter.")) return;
  state.runs.forEach((now) => now.abort.abort());
  [...state.conversations.values()].forEach(forget);
  byId("settings").close();
  openConversation(undefined);
}

/** With Ctrl, or Command on a Mac, so that no plain letter does anything. */
function setUpShortcuts() {
  addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]")) return;
    const control = event.ctrlKey || event.metaKey;
    if (event.key === "Escape") {
      if (document.body.classList.contains("menu-open")) {
        closeMenu();
        byId("menu").focus();
      } else {
        stop();
      }
    } else if (control && event.key === "/") {
      byId("shortcuts").showModal();
    } else if (control && event.key === ",") {
      openSettings();
    } else if (control && event.shiftKey && event.key.toLowerCase() === "o") {
      openConversation(undefined);
    } else if (control && event.shiftKey && event.key.toLowerCase() === "l") {
      byId("message").focus();
    } else {
      return;
    }
    event.preventDefault();
  });
}

/** Learns what the server runs. */
async function connect() {
  try {
    state.models = await models(state.key);
    byId("notice").replaceChildren();
    showComposer();
  } catch (e) {
    if (e.status === 401) return askForKey(state.key ? e.message : "This server asks for an API key.", connect);
    say(e.message, undefined);
    byId("notice").firstElementChild.append(
      el("button", { type: "button", class: "button", onclick: connect }, "Try again"),
    );
  }
}

load();
showTheme();
setUpPage();
setUpComposer();
setUpShortcuts();
setUpSettings(showComposer);
show();
connect();
byId("message").focus();
