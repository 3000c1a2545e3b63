// From a conversation to a request, and from the pieces of the answer to a message of the conversation.

import { Problem, answer } from "./client.js";
import { addNode, pathTo, state } from "./state.js";

// ---- the request ----

const NUMBERS = [
  "temperature",
  "top_p",
  "top_k",
  "min_p",
  "presence_penalty",
  "repetition_penalty",
  "max_tokens",
  "seed",
];

export function currentModel() {
  return state.models.find((model) => model.id === state.settings.model) ?? state.models[0];
}

export const canSee = (model) => Boolean(model?.capabilities?.vision || model?.modalities?.input?.includes("image"));
export const canThink = (model) => model?.capabilities?.reasoning !== false;

/** Everything the settings say; what they leave out is the server's choice. */
function requestBody(conversation, parent) {
  const { settings } = state;
  const model = currentModel();
  const body = {
    model: model?.id,
    messages: messages(conversation, parent),
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  };
  for (const name of NUMBERS) {
    if (settings[name] !== "") body[name] = Number(settings[name]);
  }
  if (canThink(model)) {
    body.chat_template_kwargs = { enable_thinking: settings.thinking };
    if (settings.thinking && settings.effort) body.reasoning_effort = settings.effort;
  }
  if (settings.tools.trim()) body.tools = readTools(settings.tools);
  return body;
}

/** Tools as they stand in requests, or bare functions. */
export function readTools(json) {
  let tools;
  try {
    tools = JSON.parse(json);
  } catch (e) {
    throw new Problem(`The tools in the settings are no JSON: ${e.message}`);
  }
  if (!Array.isArray(tools))
    throw new Problem("The tools in the settings are no list: they should begin with [ and end with ].");
  return tools.map((tool) => (tool?.type ? tool : { type: "function", function: tool }));
}

function messages(conversation, parent) {
  const out = conversation.system.trim() ? [{ role: "system", content: conversation.system }] : [];
  for (const index of pathTo(conversation, parent)) {
    const message = asMessage(conversation.nodes[index]);
    if (message) out.push(message);
  }
  return out;
}

function asMessage(node) {
  if (node.role === "tool") return { role: "tool", tool_call_id: node.call, content: node.content };
  if (node.role === "user") {
    if (!node.images?.length) return { role: "user", content: node.content };
    const images = node.images.map((url) => ({ type: "image_url", image_url: { url } }));
    return { role: "user", content: [...images, { type: "text", text: node.content }] };
  }
  // An answer that was stopped may hold half a call, or nothing.
  const calls = node.calls.filter((call) => isObject(call.arguments));
  if (!node.content && !node.reasoning && calls.length === 0) return undefined;
  const message = { role: "assistant", content: node.content };
  if (node.reasoning) message.reasoning_content = node.reasoning;
  if (calls.length > 0) {
    message.tool_calls = calls.map(({ id, name, arguments: json }) => ({
      id,
      type: "function",
      function: { name, arguments: json },
    }));
  }
  return message;
}

function isObject(json) {
  try {
    const value = JSON.parse(json);
    return typeof value === "object" && value !== null && !Array.isArray(value);
  } catch {
    return false;
  }
}

// ---- the answer ----

/**
 * Asks for an answer under the message `parent`. `changed(run)` is called after each piece and at the end, when
 * `run.done` is true.
 */
export async function run(conversation, parent, changed) {
  const began = performance.now();
  const index = addNode(conversation, parent, {
    role: "assistant",
    reasoning: "",
    calls: [],
    seconds: {},
    model: currentModel()?.id,
  });
  const node = conversation.nodes[index];
  const now = { conversation, index, node, began, abort: new AbortController(), done: false };
  state.runs.set(conversation.id, now);
  changed(now);
  try {
    for await (const chunk of answer(requestBody(conversation, parent), state.key, now.abort.signal)) {
      take(now, chunk);
      changed(now);
    }
  } catch (e) {
    if (e.name === "AbortError") node.finish = "stopped";
    else node.error = e instanceof Problem ? e.message : `The page has a bug: ${e.message}`;
    now.status = e.status;
  }
  now.done = true;
  conversation.updated = Date.now();
  state.runs.delete(conversation.id);
  changed(now);
  return now;
}

function take(now, chunk) {
  const { node } = now;
  if (chunk.progress) now.progress = chunk.progress;
  if (chunk.usage) node.usage = usageOf(chunk.usage);
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const { delta = {}, finish_reason: finish, stop_reason: detail } = choice;
  if (delta.reasoning_content || delta.content || delta.tool_calls) timed(now, Boolean(delta.reasoning_content));
  node.reasoning += delta.reasoning_content ?? "";
  node.content += delta.content ?? "";
  for (const call of delta.tool_calls ?? []) takeCall(node, call);
  if (finish) node.finish = detail === "repetition" ? "repetition" : finish;
}

/** Seconds to the first piece, of the thinking, and of all writing. */
function timed(now, thinking) {
  const { seconds } = now.node;
  const since = (performance.now() - now.began) / 1000;
  seconds.first ??= since;
  seconds.writing = since - seconds.first;
  if (thinking) seconds.thinking = seconds.writing;
}

function takeCall(node, { index, id, function: of, custom }) {
  const call = (node.calls[index] ??= { id: "", name: "", arguments: "" });
  call.id = id ?? call.id;
  call.name = of?.name ?? custom?.name ?? call.name;
  call.arguments += of?.arguments ?? custom?.input ?? "";
}

function usageOf(usage) {
  return {
    prompt: usage.prompt_tokens,
    cached: usage.prompt_tokens_details?.cached_tokens,
    generated: usage.completion_tokens,
    reasoning: usage.completion_tokens_details?.reasoning_tokens,
  };
}

// ---- in words ----

const count = (n) => n.toLocaleString("en");
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
export const seconds = (s) =>
  s < 10 ? `${s.toFixed(1)} s` : s < 120 ? `${Math.round(s)} s` : `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;

/** What an answer took, so far or in all. */
export function usageLine(node) {
  const { usage, seconds: took = {} } = node;
  const tokens = usage?.generated;
  const parts = [];
  if (tokens) parts.push(plural(tokens, "token"));
  if (tokens > 1 && took.writing > 0.05) parts.push(`${((tokens - 1) / took.writing).toFixed(1)} tokens/s`);
  if (took.first !== undefined) parts.push(`first after ${took.first.toFixed(2)} s`);
  if (usage?.prompt)
    parts.push(`prompt ${count(usage.prompt)}${usage.cached ? ` (${count(usage.cached)} from cache)` : ""}`);
  if (usage?.reasoning) parts.push(`thinking ${count(usage.reasoning)}`);
  return parts.join(" · ");
}

/** Where an answer that has no text yet stands. */
export function progressLine({ progress }) {
  if (!progress?.total || progress.done >= progress.total) return "Waiting for the answer";
  return `Reading the prompt: ${count(progress.done)} of ${plural(progress.total, "token")}`;
}

/** Why an answer ended, where it is not by itself. */
export function finishLine(node) {
  return {
    length: "The answer was cut off: it reached the limit of tokens.",
    repetition: "The answer was ended: it repeated itself.",
    stopped: "Stopped.",
  }[node.finish];
}
