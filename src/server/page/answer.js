// Answers: the request, its stream into a message, taking it up again, tools.
import {newId, timeText} from './dom.js';
import {call, events, Failure, settings} from './api.js';
import {apply} from './settings.js';
import {chosen, isResumable} from './models.js';
import {add, path, saveNode, saveChat, mend} from './tree.js';
import {oneMessage} from './store.js';
import {contentWith} from './files.js';

const runs = new Map();    // id of a conversation: {chat, node, controller, phase}
const scripts = new Map(); // name of a tool: what runs it
const MAX_CALLS = 256;     // calls of tools in an answer
const MAX_ROUNDS = 32;     // answers in a row that scripts ask for
const SAVE = 1000;         // milliseconds after which an answer that is written is saved again
let ui = {};               // {changed(chat), paint(chat, node), say(text)}

export const runOf = chat => runs.get(chat?.id);
export const isWriting = node => runs.get(node.chat)?.node === node;
export function initAnswers(hooks) {
  ui = hooks;
  addEventListener('pagehide', () => { for (const {chat, node} of runs.values()) saveNode(chat, node); });
}
export const setTool = (name, fn) => fn ? scripts.set(name, fn) : scripts.delete(name);

// An answer without a word; its question is left out of what follows.
export const isEmpty = n => n.role === 'assistant' && !n.content && !n.calls?.length;

// The messages of a request.
export function history(nodes) {
  const out = [];
  nodes.forEach((n, i) => {
    const last = i === nodes.length - 1, after = nodes[i + 1];
    if (isEmpty(n) && !(last && n.reasoning)) return;
    if (n.role === 'user' && after && isEmpty(after) && !(i + 1 === nodes.length - 1 && after.reasoning)) return;
    if (n.role === 'user') out.push({role: 'user', content: contentWith(n.content, n.files)});
    else if (n.role === 'tool') out.push({role: 'tool', tool_call_id: n.call?.id ?? '', content: n.content});
    else {
      const m = {role: 'assistant', content: n.content};
      if (n.reasoning) m.reasoning_content = n.reasoning;
      if (n.calls?.length) m.tool_calls = n.calls.map(c => ({id: c.id, type: 'function', function: {name: c.name, arguments: c.arguments}}));
      out.push(m);
    }
  });
  return out;
}

function requestBody(chat, nodes) {
  const body = {messages: history(nodes), stream: true, stream_options: {include_usage: true}, return_progress: true, timings_per_token: true, resumable: true};
  apply(chat, body);
  if (body.system) body.messages.unshift({role: 'system', content: body.system});
  delete body.system;
  const m = chosen(chat);
  if (m?.status) body.model = m.id;
  return body;
}

function progressText(p) {
  if (p.media && p.media_encoded < p.media) return `Looking and listening: ${p.media > 1 ? `${Math.floor(p.media_encoded) + 1} of ${p.media}, ` : ''}${Math.floor(100 * (p.media_encoded % 1))} %`;
  const done = p.processed - (p.cache ?? 0), all = p.total - (p.cache ?? 0), seconds = (p.time_ms ?? 0) / 1000;
  const parts = [`Reading the prompt: ${p.total ? Math.floor(100 * p.processed / p.total) : 0} %`, `${p.processed.toLocaleString()} of ${p.total.toLocaleString()} tokens`];
  if (done > 0 && seconds > 0.2) {
    const rate = done / seconds;
    parts.push(`${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s`);
    if (all > done) parts.push(`${timeText((all - done) / rate)} left`);
  }
  return parts.join(' · ');
}

function takeStats(stats, t, usage) {
  if (t) {
    stats.rate = t.predicted_per_second || stats.rate;
    stats.ms = t.predicted_ms;
    stats.answer = t.predicted_n;
    stats.prompt = t.prompt_n;
    stats.cached = t.cache_n;
    stats.promptRate = t.prompt_per_second;
    stats.promptMs = t.prompt_ms;
    if (t.draft_n !== undefined) stats.drafted = t.draft_n;
    if (t.draft_n_accepted !== undefined) stats.accepted = t.draft_n_accepted;
  }
  if (usage) {
    stats.answer = usage.completion_tokens;
    stats.context = usage.total_tokens;
    stats.cached = usage.prompt_tokens_details?.cached_tokens ?? stats.cached;
    stats.prompt = usage.prompt_tokens - (stats.cached ?? 0);
  }
}

function takeCalls(node, list) {
  node.calls ??= [];
  for (const d of list) {
    const at = d.index ?? node.calls.length;
    if (!(at >= 0 && at < MAX_CALLS)) continue;
    const c = node.calls[at] ??= {id: '', name: '', arguments: ''};
    if (d.id) c.id = d.id;
    if (d.function?.name) c.name += d.function.name;
    c.arguments += d.function?.arguments ?? '';
  }
}

// An event into the message.
function take(run, data) {
  const node = run.node, chunk = JSON.parse(data);
  if (chunk.error) throw new Failure(chunk.error.message || 'The server reported an error.', 500, chunk.error.code);
  const choice = chunk.choices?.[0];
  if (chunk.model) node.model = chunk.model;
  if (choice?.delta?.reasoning_content) { node.reasoning += choice.delta.reasoning_content; run.phase = ''; run.thinks ??= performance.now(); }
  if (run.thinks && (choice?.delta?.content || choice?.delta?.tool_calls || choice?.finish_reason)) { node.stats.thought ??= performance.now() - run.thinks; run.thinks = 0; }
  if (choice?.delta?.content) { node.content += choice.delta.content; run.phase = ''; }
  if (choice?.delta?.tool_calls) { takeCalls(node, choice.delta.tool_calls); run.phase = ''; }
  if (choice?.finish_reason) node.stats.finish = choice.finish_reason;
  takeStats(node.stats, chunk.timings, chunk.usage);
  if (chunk.prompt_progress) run.phase = progressText(chunk.prompt_progress);
}

async function read(run, response) {
  const node = run.node;
  let saved = -SAVE;
  for await (const e of events(response)) {
    if (e.comment !== undefined) {
      const m = /being loaded(?:, (\d+) %)?/.exec(e.comment);
      if (m) run.phase = `Loading ${node.run?.model || chosen(run.chat)?.id || 'the model'}${m[1] ? `: ${m[1]} %` : ''}`;
    } else if (e.data === '[DONE]') { return; }
    else if (e.data) take(run, e.data);
    if (node.run) node.run.at += e.n;
    ui.paint(run.chat, node);
    if (performance.now() - saved > SAVE) {
      saved = performance.now();
      saveNode(run.chat, node);
    }
  }
}

const streamPath = node => `v1/stream?conv_id=${encodeURIComponent(node.run.name)}${node.run.model ? '&model=' + encodeURIComponent(node.run.model) : ''}`;
const named = node => ({'X-Conversation-Id': node.run.name});

// Asks, and after a lost connection listens again from where it was.
async function follow(run, body) {
  const {node, controller} = run;
  for (let attempt = 0; ; attempt++) {
    try {
      const r = body && !node.run.at
        ? await call('v1/chat/completions', {json: body, asked: true, signal: controller.signal, headers: named(node)})
        : await call(`${streamPath(node)}&from=${node.run.at}`, {signal: controller.signal, headers: named(node)});
      await read(run, r);
      if (!node.stats.finish) throw new TypeError('the stream ended early');
      return;
    } catch (e) {
      const again = e instanceof TypeError && node.run.at && isResumable() && attempt < 4 && !controller.signal.aborted;
      if (!again) throw e;
      run.phase = 'The connection was lost: trying again…';
      ui.paint(run.chat, node);
      await new Promise(done => setTimeout(done, 300 << attempt));
      if (controller.signal.aborted) throw new DOMException('', 'AbortError');
    }
  }
}

// Another tab, or the server, may be done with it.
function failed(run, e, taken) {
  const node = run.node;
  const some = node.content || node.reasoning;
  if (e.name === 'AbortError') node.stats.finish = 'stopped';
  else if (taken && e.status === 401) node.unread = node.error = e.message;
  else if (taken && e.status) node.stats.finish = 'left';
  else if (e.status === 404 && node.run?.at) node.error = 'The server was restarted, and the rest of the answer is gone.';
  else if (e instanceof TypeError) node.error = some ? 'The connection to the server was lost.' : 'The server cannot be reached.';
  else if (e instanceof SyntaxError) node.error = 'The server sent something that is no JSON.';
  else node.error = e.message;
}

async function go(chat, node, body, taken) {
  const run = {chat, node, controller: new AbortController(), phase: taken ? '' : 'Waiting for the first token…'};
  if (node.unread) delete node.unread, node.error = '';
  runs.set(chat.id, run);
  chat.running = node.id;
  ui.changed(chat);
  saveNode(chat, node);
  let ok = true;
  try { await follow(run, body); }
  catch (e) {
    ok = false;
    failed(run, e, taken);
    if (e.name === 'AbortError' && node.run) fetch(streamPath(node), {method: 'DELETE', headers: auth(), keepalive: true}).catch(() => {});
  }
  runs.delete(chat.id);
  if (node.unread) { ui.changed(chat, node); return false; } // a key comes first, then takeUp()
  delete node.run;
  delete chat.running;
  if (node.calls) node.calls = node.calls.filter(Boolean);
  if (chat.dropped) return false;
  ui.changed(chat, node);
  const said = node.error ? '' : node.stats.finish === 'stopped' ? 'Stopped.' : ok ? 'The answer is complete.' : '';
  saveNode(chat, node).then(() => ui.say(said, chat)); // scripts run the calls that are shown, before anything else happens
  return ok;
}
const auth = () => settings.key ? {authorization: 'Bearer ' + settings.key} : {};

// A new answer after `parent`, or more of an answer.
export async function answer(chat, parent, more = null, rounds = 0) {
  if (runs.has(chat.id)) return;
  let body;
  const nodes = path(chat, more && !(isEmpty(more) && !more.reasoning) ? more.id : parent);
  const node = more ?? add(chat, {role: 'assistant', parent, model: chosen(chat)?.id ?? ''});
  node.error = '';
  try { body = requestBody(chat, nodes); }
  catch (e) {
    node.error = e.message;
    ui.changed(chat, node);
    saveNode(chat, node);
    return;
  }
  node.stats = {};
  node.run = {name: 'page-' + newId(), at: 0, model: body.model ?? ''};
  const ok = await go(chat, node, body, false);
  if (ok && node.calls?.length) await runScripts(chat, node, rounds);
}

// Tools that a script on the page has given (ingle.tool(name, fn)).
async function runScripts(chat, node, rounds) {
  if (!node.calls.every(c => scripts.has(c.name)) || rounds >= MAX_ROUNDS) return;
  const results = await Promise.all(node.calls.map(async c => {
    try {
      const r = await scripts.get(c.name)(JSON.parse(c.arguments || '{}'));
      return typeof r === 'string' ? r : JSON.stringify(r) ?? '';
    } catch (e) { return `error: ${e?.message ?? e}`; }
  }));
  await giveResults(chat, node, results, rounds + 1);
}

export async function giveResults(chat, node, results, rounds = 0) {
  if (runs.has(chat.id)) return;
  let parent = node.id;
  const made = node.calls.map((c, i) => {
    const n = add(chat, {role: 'tool', parent, content: results[i] ?? '', call: {id: c.id, name: c.name}});
    parent = n.id;
    return n;
  });
  await saveNode(chat, ...made);
  await answer(chat, parent, null, rounds);
}

export function stop(chat) { runs.get(chat?.id)?.controller.abort(); }

// After a reload: the rest of an answer that was being written.
export async function takeUp(chat) {
  const kept = await oneMessage(chat.running);
  const node = chat.nodes.get(chat.running);
  if (!node || !kept?.run || runs.has(chat.id)) {
    if (!runs.has(chat.id)) { delete chat.running; mend(chat); saveChat(chat); }
    return;
  }
  await go(chat, node, null, true);
}

