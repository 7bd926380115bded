// Vercel's AI SDK with its default provider: a tool loop of two steps and two more turns, whole and streamed.
// Prints the answers and the kinds of the last request's input items as JSON; or the error's status and text.
// usage: node turns.mjs FOLDER URL MODEL [OPTIONS]     OPTIONS: of the provider, as JSON
import { createRequire } from "node:module";

const [folder, url, model, options = "{}"] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const { generateText, streamText, tool, stepCountIs } = require("ai");
const { createOpenAI } = require("@ai-sdk/openai");
const { z } = require("zod");

let kinds = [];
const openai = createOpenAI({
  baseURL: `${url}/v1`,
  apiKey: "none",
  fetch: (path, request) => {
    kinds = JSON.parse(request.body).input.map((item) => item.type ?? item.role);
    return fetch(path, request);
  },
});
const inputSchema = z.object({ state: z.string() });
const tools = { set_light: tool({ description: "Switches the light.", inputSchema, execute: async () => "The lamp glows." }) };

async function talk(ask) {
  const messages = [];
  const texts = [];
  let failure; // a stream tells it apart from what its reader gets
  try {
    for (const content of ["Light, please.", "Hello.", "Thanks."]) {
      messages.push({ role: "user", content });
      const answer = ask({
        model: openai(model), messages, tools, stopWhen: stepCountIs(3), maxRetries: 0, temperature: 0,
        providerOptions: { openai: JSON.parse(options) }, onError: ({ error }) => (failure = error),
      });
      const done = "textStream" in answer ? answer : await answer;
      texts.push(await done.text);
      messages.push(...(await done.response).messages);
    }
  } catch (error) {
    const { statusCode, message } = failure ?? error;
    return { texts, status: statusCode, error: message };
  }
  return { texts, kinds };
}

console.log(JSON.stringify({ whole: await talk(generateText), streamed: await talk(streamText) }));
