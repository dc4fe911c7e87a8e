// Drives the npm package openai on behalf of internal/e2e: one task a line comes in as JSON, one report a line goes out.
// Tasks run side by side. The members of both are described in sdk_test.go (task, report).
import { createInterface } from 'node:readline';
import OpenAI from 'openai';

const tools = [
  {
    type: 'function',
    function: {
      name: 'weather',
      parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
    },
  },
];

const operations = {
  async chat(client, task, report) {
    const answer = await client.chat.completions.create({ ...chatRequest(task) });
    readChoices(report, answer.choices);
    report.usage = chatUsage(answer.usage);
    report.request_id = answer._request_id;
  },

  async stream(client, task, report) {
    const stream = await client.chat.completions.create({ ...chatRequest(task), stream: true });
    for await (const chunk of stream) {
      report.frames++;
      if (chunk?.usage) {
        report.usage_frames++;
        report.usage = chatUsage(chunk.usage);
      }
      // Some upstreams send choices that are no list (F091).
      for (const choice of Array.isArray(chunk?.choices) ? chunk.choices : []) {
        report.texts[choice.index] = (report.texts[choice.index] ?? '') + (choice.delta.content ?? '');
        if (choice.finish_reason) report.finish[choice.index] = choice.finish_reason;
      }
    }
  },

  // The SDK's own accumulator, which is strict about the shape of each frame.
  async stream_helper(client, task, report) {
    const runner = client.chat.completions.stream({ ...chatRequest(task), ...(task.tools && { tools }) });
    const answer = await runner.finalChatCompletion();
    readChoices(report, answer.choices);
    readTools(report, answer.choices[0].message);
    report.usage = chatUsage(answer.usage);
  },

  async tools(client, task, report) {
    const messages = [{ role: 'user', content: task.text }];
    const first = await client.chat.completions.create({ ...chatRequest(task), messages, tools });
    const message = first.choices[0].message;
    readTools(report, message);
    messages.push(message);
    for (const call of message.tool_calls) {
      messages.push({ role: 'tool', tool_call_id: call.id, content: '21 degrees' });
    }
    const second = await client.chat.completions.create({ model: task.second_model, messages, tools });
    readChoices(report, second.choices);
  },

  async embeddings(client, task, report) {
    // Without a format this SDK asks for base64 and decodes it.
    const answer = await client.embeddings.create({
      model: task.model,
      input: task.text,
      ...(task.format === 'float' && { encoding_format: 'float' }),
    });
    report.vector = answer.data[0].embedding;
    report.usage = { input: answer.usage.prompt_tokens, output: 0 };
  },

  async responses(client, task, report) {
    const answer = await client.responses.create({ model: task.model, input: task.text });
    report.texts = [answer.output_text];
    report.finish = [answer.status];
    report.usage = { input: answer.usage.input_tokens, output: answer.usage.output_tokens };
  },

  async responses_stream(client, task, report) {
    const stream = await client.responses.create({ model: task.model, input: task.text, stream: true });
    report.texts = [''];
    for await (const event of stream) {
      report.frames++;
      if (event.type === 'response.output_text.delta') report.texts[0] += event.delta;
      if (event.type === 'response.completed') {
        report.finish = [event.response.status];
        report.usage = { input: event.response.usage.input_tokens, output: event.response.usage.output_tokens };
      }
    }
  },

  async moderations(client, task, report) {
    const answer = await client.moderations.create({ model: task.model, input: task.text });
    report.flagged = answer.results[0].flagged;
  },

  async models(client, task, report) {
    for await (const model of client.models.list()) report.models.push(model.id);
  },

  async model(client, task, report) {
    report.models.push((await client.models.retrieve(task.model)).id);
  },
};

function chatRequest(task) {
  return {
    model: task.model,
    messages: [{ role: 'user', content: task.text }],
    ...(task.n && { n: task.n }),
    ...(task.max_tokens && { max_tokens: task.max_tokens }),
    ...('include_usage' in task && { stream_options: { include_usage: task.include_usage } }),
  };
}

function readChoices(report, choices) {
  for (const choice of choices) {
    report.texts[choice.index] = choice.message.content ?? '';
    report.finish[choice.index] = choice.finish_reason;
  }
}

function readTools(report, message) {
  for (const call of message.tool_calls ?? []) {
    report.tools.push({ id: call.id, name: call.function.name, arguments: call.function.arguments });
  }
}

const chatUsage = (usage) => (usage ? { input: usage.prompt_tokens, output: usage.completion_tokens } : null);

const text = (value) => (value === null || value === undefined ? '' : String(value));

async function perform(task) {
  const report = {
    id: task.id, texts: [], finish: [], frames: 0, usage_frames: 0, usage: null, tools: [], models: [], vector: [],
    flagged: null, error: null, requests: 0, waited_ms: 0, request_id: '',
  };
  const client = new OpenAI({
    baseURL: task.base_url,
    apiKey: task.key,
    ...('max_retries' in task && { maxRetries: task.max_retries }),
    fetch: (...args) => {
      report.requests++;
      return fetch(...args);
    },
  });
  const began = performance.now();
  try {
    await operations[task.op](client, task, report);
  } catch (error) {
    report.error = {
      class: error.constructor.name, api: error instanceof OpenAI.APIError, status: error.status ?? 0,
      code: text(error.code), type: text(error.type), param: text(error.param), message: text(error.error?.message ?? error.message),
      request_id: text(error.requestID), retry_after: text(error.headers?.get('retry-after')),
    };
  }
  report.waited_ms = performance.now() - began;
  process.stdout.write(JSON.stringify(report) + '\n');
}

createInterface({ input: process.stdin }).on('line', (line) => perform(JSON.parse(line)));
