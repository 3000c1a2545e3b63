// The official Node client of Anthropic against `martlet serve`.

import Anthropic from "@anthropic-ai/sdk";
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  BIRD, KEY, MARKDOWN, MODEL_URL, NAME, SCRIPT_URL, WEATHER, WRITE, WRITTEN, finished, isBird, until, user,
} from "./support.mjs";

const model = new Anthropic({ baseURL: MODEL_URL, apiKey: KEY, maxRetries: 0 });
const script = new Anthropic({ baseURL: SCRIPT_URL, apiKey: "any", maxRetries: 0 });
const thinking = { type: "enabled", budget_tokens: 1024 };
const silent = { type: "disabled" };

const tool = (name, input_schema) => ({ name, description: name, input_schema });
const types = (message) => message.content.map((block) => block.type);

test("a stream says what the whole message says", async () => {
  const asked = { model: NAME, max_tokens: 2000, messages: user("What is 47 + 89?"), thinking, temperature: 0 };
  const whole = await model.messages.create(asked);
  assert.deepEqual(types(whole), ["thinking", "text"]);
  assert.match(whole.content[1].text, /136/);
  const streamed = await model.messages.stream(asked).finalMessage();
  assert.equal(streamed.content[0].thinking, whole.content[0].thinking);
  assert.equal(streamed.content[1].text, whole.content[1].text);
  assert.equal(streamed.usage.output_tokens, whole.usage.output_tokens);
  const messages = [...asked.messages, { role: "assistant", content: streamed.content }, ...user("hello")];
  assert.ok((await model.messages.create({ ...asked, messages })).content.at(-1).text);
});

test("no byte is lost", async () => {
  const stream = script.messages.stream({ model: NAME, max_tokens: 500, messages: user("markdown please"), thinking });
  let pieces = "";
  stream.on("text", (delta) => (pieces += delta));
  assert.equal((await stream.finalMessage()).content.at(-1).text, MARKDOWN);
  assert.equal(pieces, MARKDOWN);
});

test("parallel calls, and their results", async () => {
  const asked = { model: NAME, max_tokens: 500, tools: [tool("get_weather", WEATHER)], thinking };
  const messages = user("weather in Paris and Rome");
  const whole = await script.messages.create({ ...asked, messages });
  assert.equal(whole.stop_reason, "tool_use");
  const read = (message) => message.content.filter((b) => b.type === "tool_use").map((b) => b.input);
  assert.deepEqual(read(whole), [{ city: "Paris" }, { city: "Rome", days: 3 }]);
  const streamed = await script.messages.stream({ ...asked, messages }).finalMessage();
  assert.deepEqual(read(streamed), read(whole));
  const texts = ["rain in Paris", "sunny in Rome"];
  const content = whole.content
    .filter((b) => b.type === "tool_use")
    .map((b, i) => ({ type: "tool_result", tool_use_id: b.id, content: texts[i] }));
  const all = [...messages, { role: "assistant", content: whole.content }, { role: "user", content }];
  const last = await script.messages.create({ ...asked, messages: all });
  assert.equal(last.content.at(-1).text, "Paris has rain, Rome has sun.");
});

test("arguments to the byte", async () => {
  const tools = [tool("write_file", WRITE)];
  const asked = { model: NAME, max_tokens: 900, messages: user("write the file"), tools, thinking };
  assert.deepEqual((await script.messages.stream(asked).finalMessage()).content.at(-1).input, WRITTEN);
});

test("a call that must be", async () => {
  const tools = [tool("get_weather", WEATHER)];
  const asked = { model: NAME, max_tokens: 400, messages: user("hello"), tools, temperature: 0, thinking: silent };
  for (const choice of [{ type: "any" }, { type: "tool", name: "get_weather" }]) {
    const forced = await model.messages.create({ ...asked, tool_choice: { ...choice, disable_parallel_tool_use: true } });
    assert.equal(forced.stop_reason, "tool_use");
    assert.ok("city" in forced.content.at(-1).input);
  }
});

test("structured output", async () => {
  const output_config = { format: { type: "json_schema", schema: BIRD } };
  const asked = { model: NAME, max_tokens: 600, messages: user("A bird, please."), thinking: silent, output_config };
  assert.ok(isBird(JSON.parse((await model.messages.create(asked)).content.at(-1).text)));
});

test("tokens are counted as they are read", async () => {
  const asked = { model: NAME, messages: user("What is 47 + 89?"), system: "Be concise." };
  const { input_tokens } = await model.messages.countTokens(asked);
  const { usage } = await model.messages.create({ ...asked, max_tokens: 1 });
  assert.equal(input_tokens, usage.input_tokens + (usage.cache_read_input_tokens ?? 0) + (usage.cache_creation_input_tokens ?? 0));
});

test("errors", async () => {
  const ask = (fields, client = model) =>
    client.messages.create({ model: NAME, max_tokens: 10, messages: user("hello"), ...fields });
  await assert.rejects(ask({ model: "claude-9" }), Anthropic.NotFoundError);
  await assert.rejects(ask({ messages: [] }), Anthropic.BadRequestError);
  await assert.rejects(ask({ messages: user("word ".repeat(40000)), stream: true }), /32768/);
  await assert.rejects(ask({}, new Anthropic({ baseURL: MODEL_URL, apiKey: "wrong", maxRetries: 0 })), Anthropic.AuthenticationError);
});

test("a client that goes", async () => {
  const before = await finished("cancelled");
  const asked = { model: NAME, max_tokens: 30000, messages: user("hello"), thinking, ignore_eos: true };
  const stream = model.messages.stream(asked);
  for await (const event of stream) if (event.type === "content_block_delta") break;
  stream.abort();
  await until("the turn's end", async () => (await finished("cancelled")) === before + 1);
});
