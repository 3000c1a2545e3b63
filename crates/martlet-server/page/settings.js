// The dialogs: settings, the API key, shortcuts.

import { byId, el } from "./dom.js";
import { DEFAULTS, saveKey, saveSettings, state } from "./state.js";
import { currentModel, readTools } from "./run.js";

const THEMES = ["auto", "light", "dark"];

export function showTheme() {
  const { theme } = state.settings;
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const words = { auto: "as the system", light: "light", dark: "dark" }[theme];
  byId("theme").setAttribute("aria-label", `Colours: ${words}`);
  byId("theme").title = `Colours: ${words}`;
}

export function nextTheme() {
  state.settings.theme = THEMES[(THEMES.indexOf(state.settings.theme) + 1) % THEMES.length];
  saveSettings();
  showTheme();
}

/** The form's fields are named as the settings are. */
const fields = () => [...byId("settings-form").elements].filter((field) => field.name in DEFAULTS);

export function openSettings() {
  const model = currentModel();
  const levels = (model?.reasoning_levels ?? []).filter((level) => level !== "none");
  byId("effort").replaceChildren(
    el("option", { value: "" }, "default"),
    ...levels.map((level) => el("option", { value: level }, level)),
  );
  byId("effort").closest("label").hidden = levels.length === 0;
  byId("about-model").textContent = aboutModel(model);
  for (const field of fields()) field.value = state.settings[field.name];
  checkTools();
  byId("settings").showModal();
}

function aboutModel(model) {
  if (!model) return "";
  const context = model.context_window && `${model.context_window.toLocaleString("en")} tokens of context`;
  return [model.id, model.architecture, model.quantization, context, model.device].filter(Boolean).join(" · ");
}

/** A mistake shows where it is made, rather than with the next message. */
function checkTools() {
  const field = byId("tools");
  let message = "";
  try {
    if (field.value.trim()) readTools(field.value);
  } catch (e) {
    message = e.message;
  }
  field.setCustomValidity(message);
  byId("tools-error").textContent = message;
}

export function setUpSettings(changed) {
  const form = byId("settings-form");
  form.addEventListener("input", () => {
    checkTools();
    for (const field of fields()) {
      if (field.validity.valid) state.settings[field.name] = field.value.trim() === "" ? "" : field.value;
    }
    saveSettings();
  });
  byId("reset").addEventListener("click", () => {
    const { theme, model, thinking, system, tools } = state.settings;
    Object.assign(state.settings, DEFAULTS, { theme, model, thinking, system, tools });
    saveSettings();
    for (const field of fields()) field.value = state.settings[field.name];
  });
  byId("settings").addEventListener("close", changed);
}

/** Asks for the key; `then` is called when one was given. */
export function askForKey(message, then) {
  const [dialog, form, field] = [byId("key"), byId("key-form"), byId("key-field")];
  if (dialog.open) return;
  byId("key-message").textContent = message;
  field.value = "";
  form.onsubmit = () => {
    saveKey(field.value.trim());
    then();
  };
  dialog.showModal();
}
