// The server's API as the page needs it: which models there are, and an answer as it comes.

/** What went wrong, in words for the person who reads them. */
export class Problem extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const UNREACHABLE = "The server can not be reached. Is it still running?";
const BROKEN = "The connection broke before the answer was whole.";

function headers(key) {
  return {
    "content-type": "application/json",
    "x-martlet-progress": "1",
    ...(key ? { authorization: `Bearer ${key}` } : {}),
  };
}

async function request(path, options, key) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: headers(key), cache: "no-store" });
  } catch (e) {
    throw e.name === "AbortError" ? e : new Problem(UNREACHABLE, 0);
  }
  if (response.ok) return response;
  throw new Problem(await refusal(response), response.status);
}

async function refusal(response) {
  // Something between here and the server may answer with a page of its own.
  const text = await response.text().catch(() => "");
  const message = parsed(text)?.error?.message ?? `The server answered with ${response.status} ${response.statusText}.`;
  const wait = Number.parseInt(response.headers.get("retry-after") ?? "", 10);
  if (response.status !== 429) return message;
  return `The server is busy: ${message}${wait > 0 ? ` Try again in ${wait} s.` : ""}`;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** What the server runs: a list of models with their capabilities. */
export async function models(key) {
  const response = await request("/v1/models", {}, key);
  return parsed(await response.text())?.data ?? [];
}

/**
 * An answer, piece by piece: `{progress: {done, total}}` while the prompt is read, then chunks of chat completions.
 * It ends when the answer is whole, and throws a Problem, or an AbortError when `signal` says so.
 */
export async function* answer(body, key, signal) {
  const response = await request("/v1/chat/completions", { method: "POST", body: JSON.stringify(body), signal }, key);
  for await (const { event, data } of events(response.body.getReader())) {
    if (data === "[DONE]") return;
    const value = parsed(data);
    if (value?.error) throw new Problem(value.error.message ?? "The server broke off.", response.status);
    if (event === "progress") yield { progress: value };
    else if (value) yield value;
  }
  throw new Problem(BROKEN, 0);
}

/** Server-sent events of a body. (EventSource can only GET.) */
async function* events(reader) {
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await read(reader);
    if (done) return;
    rest += decoder.decode(value, { stream: true });
    const parts = rest.split(/\r?\n\r?\n/);
    rest = parts.pop();
    for (const part of parts) {
      const event = { event: "message", data: [] };
      for (const line of part.split(/\r?\n/)) {
        const [, field, text] = /^([^:]*):? ?(.*)$/.exec(line);
        if (field === "data") event.data.push(text);
        else if (field === "event") event.event = text;
      }
      // What begins with a colon only says that the server is alive.
      if (event.data.length > 0) yield { event: event.event, data: event.data.join("\n") };
    }
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (e) {
    throw e.name === "AbortError" ? e : new Problem(BROKEN, 0);
  }
}
