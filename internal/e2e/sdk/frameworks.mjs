// Drives the npm packages ai (with its OpenAI and Anthropic providers) and @langchain/openai on behalf of internal/e2e, as
// worker.mjs does the vendors' own. A task's library names the framework and the API that it speaks.
import { createInterface } from 'node:readline';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { HumanMessage, ToolMessage } from '@langchain/core/messages';
import { ChatOpenAI } from '@langchain/openai';
import { generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai';

const parameters = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };

const vercelModels = {
  'ai openai chat': (options) => createOpenAI(options).chat,
  'ai openai responses': (options) => createOpenAI(options),
  'ai anthropic': (options) => createAnthropic(options),
};

const vercel = {
  async chat(model, task, report) {
    const answer = await generateText({ model: model(task.model), prompt: task.text });
    readStep(report, answer);
  },

  async stream(model, task, report) {
    let failed;
    const stream = streamText({ model: model(task.model), prompt: task.text, onError: ({ error }) => (failed = error) });
    report.texts = [''];
    for await (const piece of stream.textStream) {
      report.frames++;
      report.texts[0] += piece;
    }
    if (failed) throw failed;
    report.finish = [await stream.finishReason];
    report.usage = usageOf(await stream.usage);
  },

  // Two steps: the second is asked of the second model, with what the tools said.
  async tools(model, task, report) {
    const answer = await generateText({
      model: model(task.model),
      prompt: task.text,
      tools: { weather: tool({ inputSchema: jsonSchema(parameters), execute: async () => '21 degrees' }) },
      stopWhen: stepCountIs(2),
      // Else the second step of responses only names what the first one said, which none but its provider could look up.
      providerOptions: { openai: { store: false } },
      prepareStep: ({ stepNumber }) => (stepNumber > 0 ? { model: model(task.second_model) } : {}),
    });
    for (const call of answer.steps[0].toolCalls) {
      report.tools.push({ id: call.toolCallId, name: call.toolName, arguments: JSON.stringify(call.input) });
    }
    readStep(report, answer);
  },
};

const usageOf = (usage) => ({ input: usage.inputTokens ?? 0, output: usage.outputTokens ?? 0 });

function readStep(report, step) {
  report.texts = [step.text];
  report.finish = [step.finishReason];
  report.usage = usageOf(step.usage);
}

const langChain = {
  async chat(model, task, report) {
    readMessage(report, await model(task.model).invoke(task.text));
  },

  async stream(model, task, report) {
    let whole;
    for await (const chunk of await model(task.model).stream(task.text)) {
      report.frames++;
      whole = whole ? whole.concat(chunk) : chunk;
    }
    readMessage(report, whole);
  },

  async tools(model, task, report) {
    const weather = { type: 'function', function: { name: 'weather', parameters } };
    const question = new HumanMessage(task.text);
    const first = await model(task.model).bindTools([weather]).invoke([question]);
    for (const call of first.tool_calls) {
      report.tools.push({ id: call.id, name: call.name, arguments: JSON.stringify(call.args) });
    }
    const results = first.tool_calls.map((call) => new ToolMessage({ tool_call_id: call.id, content: '21 degrees' }));
    readMessage(report, await model(task.second_model).invoke([question, first, ...results]));
  },
};

function readMessage(report, message) {
  report.texts = [message.text];
  report.usage = { input: message.usage_metadata?.input_tokens ?? 0, output: message.usage_metadata?.output_tokens ?? 0 };
}

async function perform(task) {
  const report = {
    id: task.id, texts: [], finish: [], frames: 0, usage_frames: 0, usage: null, tools: [], models: [], vector: [],
    flagged: null, thinking: '', signature: '', error: null, requests: 0, waited_ms: 0, request_id: '',
  };
  const count = (...args) => {
    report.requests++;
    return fetch(...args);
  };
  const began = performance.now();
  try {
    const isVercel = task.library in vercelModels;
    const model = isVercel
      ? vercelModels[task.library]({ baseURL: task.base_url, apiKey: task.key, fetch: count })
      : (name) =>
          new ChatOpenAI({
            model: name, apiKey: task.key, maxRetries: 2, useResponsesApi: task.library === 'langchain responses',
            configuration: { baseURL: task.base_url, fetch: count },
          });
    await (isVercel ? vercel : langChain)[task.op](model, task, report);
  } catch (error) {
    const last = error.lastError ?? error; // of a RetryError
    report.error = {
      class: error.constructor.name, api: true, status: last.statusCode ?? last.status ?? 0, code: '', type: '', param: '',
      message: String(last.message ?? last), request_id: '', retry_after: '',
    };
  }
  report.waited_ms = performance.now() - began;
  process.stdout.write(JSON.stringify(report) + '\n');
}

createInterface({ input: process.stdin }).on('line', (line) => perform(JSON.parse(line)));
