// The official Node client of OpenAI against `martlet serve`.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import {
  BIRD, KEY, MARKDOWN, MODEL_URL, NAME, SCRIPT_URL, WEATHER, WRITE, WRITTEN, finished, isBird, until, user,
} from "./support.mjs";

const model = new OpenAI({ baseURL: MODEL_URL + "/v1", apiKey: KEY, maxRetries: 0 });
const script = new OpenAI({ baseURL: SCRIPT_URL + "/v1", apiKey: "any", maxRetries: 0 });

const tool = (name, parameters) => ({ type: "function", function: { name, description: name, parameters } });
const flat = (name, parameters) => ({ type: "function", name, description: name, parameters, strict: false });

test("models", async () => {
  const names = [];
  for await (const m of model.models.list()) names.push(m.id);
  assert.ok(names.includes(NAME));
  assert.equal((await model.models.retrieve(NAME)).object, "model");
  await assert.rejects(model.models.retrieve("no-such-model"), OpenAI.NotFoundError);
});

test("a stream says what the whole answer says", async () => {
  const asked = { model: NAME, messages: user("What is 47 + 89?"), temperature: 0 };
  const whole = await model.chat.completions.create(asked);
  assert.equal(whole.choices[0].finish_reason, "stop");
  assert.match(whole.choices[0].message.content, /136/);
  assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
  let [content, reasoning, usage] = ["", "", []];
  const options = { stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await model.chat.completions.create({ ...asked, ...options })) {
    content += chunk.choices[0]?.delta.content ?? "";
    reasoning += chunk.choices[0]?.delta.reasoning_content ?? "";
    if (chunk.usage) usage.push(chunk.usage.completion_tokens);
  }
  assert.equal(content, whole.choices[0].message.content);
  assert.equal(reasoning, whole.choices[0].message.reasoning_content);
  assert.deepEqual(usage, [whole.usage.completion_tokens]);
});

test("no byte is lost", async () => {
  const stream = script.chat.completions.stream({ model: NAME, messages: user("markdown please") });
  let pieces = "";
  stream.on("content", (delta) => (pieces += delta));
  assert.equal(await stream.finalContent(), MARKDOWN);
  assert.equal(pieces, MARKDOWN);
});

test("parallel calls, and their results", async () => {
  const asked = { model: NAME, tools: [tool("get_weather", WEATHER)] };
  const messages = user("weather in Paris and Rome");
  const whole = (await script.chat.completions.create({ ...asked, messages })).choices[0];
  assert.equal(whole.finish_reason, "tool_calls");
  const read = (calls) => calls.map((c) => [c.function.name, JSON.parse(c.function.arguments)]);
  const expected = [["get_weather", { city: "Paris" }], ["get_weather", { city: "Rome", days: 3 }]];
  assert.deepEqual(read(whole.message.tool_calls), expected);
  const streamed = await script.chat.completions.stream({ ...asked, messages }).finalMessage();
  assert.deepEqual(read(streamed.tool_calls), expected);
  const texts = ["rain in Paris", "sunny in Rome"];
  const results = whole.message.tool_calls.map((c, i) => ({ role: "tool", tool_call_id: c.id, content: texts[i] }));
  const last = await script.chat.completions.create({ ...asked, messages: [...messages, whole.message, ...results] });
  assert.equal(last.choices[0].message.content, "Paris has rain, Rome has sun.");
});

test("the client runs tools by itself", async () => {
  const asked = [];
  const run = script.chat.completions.runTools({
    model: NAME,
    stream: true,
    messages: user("weather in Oslo"),
    tools: [{
      type: "function",
      function: {
        name: "get_weather",
        description: "The weather",
        parameters: WEATHER,
        parse: JSON.parse,
        function: (args) => (asked.push(args), "snow in Oslo"),
      },
    }],
  });
  assert.equal(await run.finalContent(), "It snows in Oslo.");
  assert.deepEqual(asked, [{ city: "Oslo", days: 1 }]);
});

test("arguments to the byte", async () => {
  const asked = { model: NAME, messages: user("write the file"), tools: [tool("write_file", WRITE)] };
  const message = await script.chat.completions.stream(asked).finalMessage();
  assert.deepEqual(JSON.parse(message.tool_calls[0].function.arguments), WRITTEN);
});

test("a call that must be", async () => {
  const asked = { model: NAME, messages: user("hello"), tools: [tool("get_weather", WEATHER)], temperature: 0 };
  for (const tool_choice of ["required", { type: "function", function: { name: "get_weather" } }]) {
    const limits = { max_completion_tokens: 400, parallel_tool_calls: false };
    const { choices } = await model.chat.completions.create({ ...asked, ...limits, tool_choice });
    assert.equal(choices[0].finish_reason, "tool_calls");
    assert.ok("city" in JSON.parse(choices[0].message.tool_calls[0].function.arguments));
  }
});

test("structured output", async () => {
  const response_format = { type: "json_schema", json_schema: { name: "bird", schema: BIRD, strict: true } };
  const asked = { model: NAME, messages: user("A bird, please."), temperature: 0, max_tokens: 800, response_format };
  const whole = await model.chat.completions.parse(asked);
  assert.ok(isBird(JSON.parse(whole.choices[0].message.content)));
  assert.deepEqual(await model.chat.completions.stream(asked).finalContent(), whole.choices[0].message.content);
});

test("responses", async () => {
  const first = await model.responses.create({ model: NAME, input: "hello", temperature: 0 });
  assert.ok(first.output_text && first.status === "completed");
  const second = { model: NAME, input: "hello", previous_response_id: first.id, temperature: 0 };
  assert.ok((await model.responses.create(second)).usage.input_tokens > first.usage.input_tokens);
  assert.equal((await model.responses.retrieve(first.id)).output_text, first.output_text);
  await model.responses.delete(first.id);
  await assert.rejects(model.responses.retrieve(first.id), OpenAI.NotFoundError);
});

test("a stream of a response", async () => {
  const asked = { model: NAME, input: "weather in Paris and Rome", tools: [flat("get_weather", WEATHER)] };
  const stream = script.responses.stream(asked);
  const types = [];
  for await (const event of stream) types.push(event.type);
  assert.equal(types[0], "response.created");
  assert.equal(types.at(-1), "response.completed");
  const first = await stream.finalResponse();
  const calls = first.output.filter((item) => item.type === "function_call");
  assert.deepEqual(calls.map((c) => JSON.parse(c.arguments)), [{ city: "Paris" }, { city: "Rome", days: 3 }]);
  const texts = ["rain in Paris", "sunny in Rome"];
  const results = calls.map((c, i) => ({ type: "function_call_output", call_id: c.call_id, output: texts[i] }));
  const last = await script.responses.create({ ...asked, input: results, previous_response_id: first.id });
  assert.equal(last.output_text, "Paris has rain, Rome has sun.");
});

test("a response with structure", async () => {
  const text = { format: { type: "json_schema", name: "bird", schema: BIRD, strict: true } };
  const asked = { model: NAME, input: "A bird, please.", text, temperature: 0, max_output_tokens: 800 };
  assert.ok(isBird(JSON.parse((await model.responses.parse(asked)).output_text)));
});

test("completions", async () => {
  const asked = { model: NAME, prompt: "Once upon a time", max_tokens: 12, temperature: 0 };
  const whole = await model.completions.create(asked);
  let text = "";
  for await (const c of await model.completions.create({ ...asked, stream: true })) text += c.choices[0].text;
  assert.equal(text, whole.choices[0].text);
});

test("errors", async () => {
  const ask = (fields, client = model) =>
    client.chat.completions.create({ model: NAME, messages: user("hello"), ...fields });
  await assert.rejects(ask({ model: "gpt-9" }), { status: 404, code: "model_not_found" });
  await assert.rejects(ask({ temperature: -1 }), { status: 400, param: "temperature" });
  await assert.rejects(ask({ messages: user("word ".repeat(40000)), stream: true }), { code: "context_length_exceeded" });
  const stranger = new OpenAI({ baseURL: MODEL_URL + "/v1", apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(ask({}, stranger), OpenAI.AuthenticationError);
});

test("a client that goes", async () => {
  const before = await finished("cancelled");
  const asked = { model: NAME, messages: user("hello"), stream: true, ignore_eos: true };
  const stream = await model.chat.completions.create(asked);
  for await (const _ of stream) break;
  await until("the turn's end", async () => (await finished("cancelled")) === before + 1);
  const abort = new AbortController();
  const whole = model.chat.completions.create({ ...asked, stream: false }, { signal: abort.signal });
  setTimeout(() => abort.abort(), 500);
  await assert.rejects(whole, OpenAI.APIUserAbortError);
  await until("the other turn's end", async () => (await finished("cancelled")) === before + 2);
});
