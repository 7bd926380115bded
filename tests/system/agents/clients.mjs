// Runs each JavaScript client through the same cases against a server, and prints what each got as JSON.
// usage: node clients.mjs FOLDER URL     FOLDER: where `npm ci` put the packages
import { createRequire } from "node:module";

const [folder, url] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const OpenAI = require("openai").OpenAI;
const Anthropic = require("@anthropic-ai/sdk").Anthropic;
const { Ollama } = require("ollama");
const { generateText, streamText, tool, stepCountIs, Output } = require("ai");
const { createOpenAI } = require("@ai-sdk/openai");
const { createAnthropic } = require("@ai-sdk/anthropic");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { z } = require("zod");

const HELLO = "hello world";
const LIGHT = "Light, please.";
const LIGHT_IS_ON = "The lamp glows.";
const ALICE = "alice is 30 years old and lives in paris";
const LONG = "many words ".repeat(900);
const STATE = { type: "object", properties: { state: { type: "string" } }, required: ["state"], additionalProperties: false };
const PERSON = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" }, city: { type: "string" } },
  required: ["name", "age", "city"],
  additionalProperties: false,
};
const user = (content) => [{ role: "user", content }];

async function failure(work) {
  try {
    await work();
  } catch (error) {
    return { status: error.status ?? error.statusCode ?? error.status_code, text: String(error.message) };
  }
  return { status: 200, text: "" };
}

async function joined(stream, textOf) {
  let text = "";
  for await (const part of stream) text += textOf(part) ?? "";
  return text;
}

function openaiChat() {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const ask = (model, messages, more = {}) => client.chat.completions.create({ model, messages, temperature: 0, ...more });
  const tools = [{ type: "function", function: { name: "set_light", parameters: STATE } }];
  return {
    text: async () => (await ask("uppercase", user(HELLO))).choices[0].message.content,
    stream: async () => joined(await ask("uppercase", user(HELLO), { stream: true }), (p) => p.choices[0]?.delta.content),
    tools: async () => {
      const first = (await ask("scripted", user(LIGHT), { tools })).choices[0].message;
      const call = first.tool_calls[0];
      const result = { role: "tool", tool_call_id: call.id, content: LIGHT_IS_ON };
      const last = await ask("scripted", [...user(LIGHT), first, result], { tools });
      return [call.function.name, JSON.parse(call.function.arguments), last.choices[0].message.content];
    },
    schema: async () => {
      const response_format = { type: "json_schema", json_schema: { name: "person", schema: PERSON, strict: true } };
      return JSON.parse((await ask("extract-json", user(ALICE), { response_format })).choices[0].message.content);
    },
    error: () => failure(() => ask("nobody", user(HELLO))),
    tooLong: () => failure(() => ask("starter-chat", user(LONG))),
    stop: async () => {
      const stream = await ask("starter-chat", user(HELLO), { stream: true, max_tokens: 400, ignore_eos: true });
      for await (const _ of stream) break;
    },
  };
}

function openaiResponses() {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const ask = (model, input, more = {}) => client.responses.create({ model, input, temperature: 0, store: false, ...more });
  const tools = [{ type: "function", name: "set_light", parameters: STATE, strict: false }];
  return {
    text: async () => (await ask("uppercase", HELLO)).output_text,
    stream: async () =>
      joined(await ask("uppercase", HELLO, { stream: true }), (e) => (e.type === "response.output_text.delta" ? e.delta : "")),
    tools: async () => {
      const first = await ask("scripted", user(LIGHT), { tools });
      const call = first.output.find((item) => item.type === "function_call");
      const result = { type: "function_call_output", call_id: call.call_id, output: LIGHT_IS_ON };
      const last = await ask("scripted", [...user(LIGHT), ...first.output, result], { tools });
      return [call.name, JSON.parse(call.arguments), last.output_text];
    },
    schema: async () => {
      const text = { format: { type: "json_schema", name: "person", schema: PERSON, strict: true } };
      return JSON.parse((await ask("extract-json", ALICE, { text })).output_text);
    },
    error: () => failure(() => ask("nobody", HELLO)),
    tooLong: () => failure(() => ask("starter-chat", LONG)),
    stop: async () => {
      const stream = await ask("starter-chat", HELLO, { stream: true, max_output_tokens: 400 });
      for await (const event of stream) if (event.type === "response.output_text.delta") break;
    },
  };
}

function anthropic() {
  const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
  const ask = (model, messages, more = {}) => client.messages.create({ model, messages, max_tokens: 100, temperature: 0, ...more });
  const tools = [{ name: "set_light", input_schema: STATE }];
  const textOf = (message) => message.content.find((block) => block.type === "text")?.text;
  return {
    text: async () => textOf(await ask("uppercase", user(HELLO))),
    stream: async () => joined(await ask("uppercase", user(HELLO), { stream: true }), (e) => e.delta?.text),
    tools: async () => {
      const first = await ask("scripted", user(LIGHT), { tools });
      const call = first.content.find((block) => block.type === "tool_use");
      const result = { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: LIGHT_IS_ON }] };
      const last = await ask("scripted", [...user(LIGHT), { role: "assistant", content: first.content }, result], { tools });
      return [call.name, call.input, textOf(last)];
    },
    schema: async () => {
      const output_config = { format: { type: "json_schema", schema: PERSON } };
      return JSON.parse(textOf(await ask("extract-json", user(ALICE), { output_config })));
    },
    error: () => failure(() => ask("nobody", user(HELLO))),
    tooLong: () => failure(() => ask("starter-chat", user(LONG))),
    stop: async () => {
      const stream = await ask("starter-chat", user(HELLO), { stream: true, max_tokens: 400 });
      for await (const event of stream) if (event.type === "content_block_delta") break;
    },
  };
}

function ollama() {
  const client = new Ollama({ host: url });
  const ask = (model, messages, more = {}) => client.chat({ model, messages, options: { temperature: 0 }, ...more });
  const tools = [{ type: "function", function: { name: "set_light", parameters: STATE } }];
  return {
    text: async () => (await ask("uppercase", user(HELLO))).message.content,
    stream: async () => joined(await ask("uppercase", user(HELLO), { stream: true }), (part) => part.message.content),
    tools: async () => {
      const first = (await ask("scripted", user(LIGHT), { tools })).message;
      const call = first.tool_calls[0].function;
      const last = await ask("scripted", [...user(LIGHT), first, { role: "tool", tool_name: call.name, content: LIGHT_IS_ON }], { tools });
      return [call.name, call.arguments, last.message.content];
    },
    schema: async () => JSON.parse((await ask("extract-json", user(ALICE), { format: PERSON })).message.content),
    error: () => failure(() => ask("nobody", user(HELLO))),
    tooLong: () => failure(() => ask("starter-chat", user(LONG))),
    stop: async () => {
      const stream = await ask("starter-chat", user(HELLO), { stream: true, options: { num_predict: 400 } });
      for await (const _ of stream) {
        stream.abort();
        break;
      }
    },
  };
}

function aiSdk(modelOf) {
  const ask = (model, prompt, more = {}) => generateText({ model: modelOf(model), prompt, temperature: 0, maxRetries: 0, ...more });
  const inputSchema = z.object({ state: z.string() });
  const tools = { set_light: tool({ description: "Switches the light.", inputSchema, execute: async () => LIGHT_IS_ON }) };
  const schema = z.object({ name: z.string(), age: z.number().int(), city: z.string() });
  return {
    text: async () => (await ask("uppercase", HELLO)).text,
    stream: async () => joined(streamText({ model: modelOf("uppercase"), prompt: HELLO, temperature: 0 }).textStream, (part) => part),
    tools: async () => {
      const done = await ask("scripted", LIGHT, { tools, stopWhen: stepCountIs(3) });
      const call = done.steps[0].toolCalls[0];
      return [call.toolName, call.input, done.text];
    },
    schema: async () => (await ask("extract-json", ALICE, { output: Output.object({ schema }) })).output,
    error: () => failure(() => ask("nobody", HELLO)),
    tooLong: () => failure(() => ask("starter-chat", LONG)),
    stop: async () => {
      const abort = new AbortController();
      const more = { maxOutputTokens: 400, abortSignal: abort.signal, onError: () => {} };
      for await (const _ of streamText({ model: modelOf("starter-chat"), prompt: HELLO, ...more }).textStream) {
        abort.abort();
        break;
      }
    },
  };
}

const vercelOpenAI = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const vercelAnthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" });
const vercelCompatible = createOpenAICompatible({
  name: "roundhouse", baseURL: `${url}/v1`, apiKey: "none", supportsStructuredOutputs: true,
});
const CLIENTS = {
  "openai": openaiChat(),
  "openai responses": openaiResponses(),
  "@anthropic-ai/sdk": anthropic(),
  "ollama": ollama(),
  "@ai-sdk/openai": aiSdk(vercelOpenAI),
  "@ai-sdk/anthropic": aiSdk(vercelAnthropic),
  "@ai-sdk/openai-compatible": aiSdk(vercelCompatible),
};

const answers = {};
for (const [name, cases] of Object.entries(CLIENTS)) {
  answers[name] = {};
  for (const [title, run] of Object.entries(cases)) {
    try {
      answers[name][title] = (await run()) ?? null;
    } catch (error) {
      answers[name][title] = { failed: String(error.stack ?? error).slice(0, 1500) };
    }
  }
}
console.log(JSON.stringify(answers));
process.exit(0);
