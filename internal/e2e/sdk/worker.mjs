// Drives the npm packages openai and @anthropic-ai/sdk on behalf of internal/e2e: one task a line comes in as JSON, one report
// a line goes out. Tasks run side by side. The members of both are described in sdk_test.go (task, report).
import { createInterface } from 'node:readline';
import Anthropic from '@anthropic-ai/sdk';
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

const openAI = {
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

const anthropicTools = [{ name: 'weather', input_schema: tools[0].function.parameters }];

const anthropic = {
  async messages(client, task, report) {
    const answer = await client.messages.create(messagesRequest(task));
    readMessage(report, answer);
    report.request_id = answer._request_id;
  },

  async messages_stream(client, task, report) {
    const stream = await client.messages.create({ ...messagesRequest(task), stream: true });
    report.texts = [''];
    for await (const event of stream) {
      report.frames++;
      if (event.type === 'message_start') report.usage = messageUsage(event.message.usage);
      if (event.type === 'content_block_delta' && event.delta.type === 'text_delta') report.texts[0] += event.delta.text;
      if (event.type === 'message_delta') {
        report.finish = [event.delta.stop_reason];
        report.usage.output = event.usage.output_tokens;
      }
    }
  },

  // The SDK's own accumulator, which is strict about the order of events.
  async messages_helper(client, task, report) {
    const stream = client.messages.stream({ ...messagesRequest(task), ...(task.tools && { tools: anthropicTools }) });
    readMessage(report, await stream.finalMessage());
  },

  async messages_tools(client, task, report) {
    const request = { ...messagesRequest(task), tools: anthropicTools };
    const first = await client.messages.create(request);
    readMessage(report, first);
    const calls = first.content.filter((block) => block.type === 'tool_use');
    const second = await client.messages.create({
      ...request,
      model: task.second_model,
      messages: [
        ...request.messages,
        { role: 'assistant', content: first.content },
        { role: 'user', content: calls.map((call) => ({ type: 'tool_result', tool_use_id: call.id, content: '21 degrees' })) },
      ],
    });
    report.texts = [];
    readMessage(report, second);
  },

  async count_tokens(client, task, report) {
    const { max_tokens: _, ...request } = messagesRequest(task);
    const count = await client.messages.countTokens(request);
    report.usage = { input: count.input_tokens, output: 0 };
  },

  async models(client, task, report) {
    for await (const model of client.models.list()) report.models.push(model.id);
  },

  async model(client, task, report) {
    report.models.push((await client.models.retrieve(task.model)).id);
  },
};

function messagesRequest(task) {
  return { model: task.model, max_tokens: task.max_tokens || 1000, messages: [{ role: 'user', content: task.text }] };
}

function readMessage(report, message) {
  report.texts = [''];
  for (const block of message.content) {
    if (block.type === 'text') report.texts[0] += block.text;
    if (block.type === 'thinking') [report.thinking, report.signature] = [block.thinking, block.signature];
    if (block.type === 'tool_use') {
      report.tools.push({ id: block.id, name: block.name, arguments: JSON.stringify(block.input) });
    }
  }
  report.finish = [message.stop_reason];
  report.usage = messageUsage(message.usage);
}

const messageUsage = (usage) => ({ input: usage.input_tokens, output: usage.output_tokens });

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
    flagged: null, thinking: '', signature: '', error: null, requests: 0, waited_ms: 0, request_id: '',
  };
  const count = (...args) => {
    report.requests++;
    return fetch(...args);
  };
  const options = { baseURL: task.base_url, ...('max_retries' in task && { maxRetries: task.max_retries }), fetch: count };
  const isAnthropic = task.library === 'anthropic';
  const client = isAnthropic
    ? new Anthropic({ ...options, apiKey: task.bearer ? null : task.key, authToken: task.bearer ? task.key : null })
    : new OpenAI({ ...options, apiKey: task.key });
  const began = performance.now();
  try {
    await (isAnthropic ? anthropic : openAI)[task.op](client, task, report);
  } catch (error) {
    const said = isAnthropic ? error.error?.error : error.error;
    const of = isAnthropic ? (said ?? {}) : error;
    report.error = {
      class: error.constructor.name, api: error instanceof (isAnthropic ? Anthropic : OpenAI).APIError, status: error.status ?? 0,
      code: text(of.code), type: text(of.type), param: text(of.param), message: text(said?.message ?? error.message),
      request_id: text(error.requestID), retry_after: text(error.headers?.get('retry-after')),
    };
  }
  report.waited_ms = performance.now() - began;
  process.stdout.write(JSON.stringify(report) + '\n');
}

createInterface({ input: process.stdin }).on('line', (line) => perform(JSON.parse(line)));
