'use strict';
const $ = id => document.getElementById(id);
const el = (tag, props = {}, ...kids) => {
  const e = Object.assign(document.createElement(tag), props);
  e.append(...kids);
  return e;
};

/* ---- what the browser keeps: each conversation under its own key, so that tabs do not undo each other ---- */

const keep = {
  get(key, fallback) {
    try { return JSON.parse(localStorage.getItem('ingle.' + key)) ?? fallback; } catch { return fallback; }
  },
  set(key, value) {
    try { localStorage.setItem('ingle.' + key, JSON.stringify(value)); return true; }
    catch { say('This browser has no room left: the conversation is not kept.'); return false; }
  },
  drop(key) { try { localStorage.removeItem('ingle.' + key); } catch { /* nothing was kept */ } },
  chats() {
    let keys = [];
    try { keys = Object.keys(localStorage).filter(k => k.startsWith('ingle.chat.')); } catch { /* none */ }
    const whole = c => typeof c?.id === 'string' && Array.isArray(c.messages) && c.messages.every(m => typeof m?.content === 'string');
    return newestFirst(keys.map(k => keep.get(k.slice(6))).filter(whole)); // what another version kept is left alone
  },
};
const newestFirst = list => list.sort((a, b) => a.id < b.id ? 1 : -1);
let settings = {...keep.get('settings', {})};
let chats = keep.chats();
let chat = null;        // {id, title, messages: [{role, content, reasoning, error, stats}]}
const runs = new Map(); // conversation: the answer that is being written, {controller, message, view}

const fresh = () => ({id: Date.now().toString(36) + Math.random().toString(36).slice(2, 6), title: '', messages: []});
function save(c) {
  if (!chats.includes(c)) chats = newestFirst([...chats, c]);
  return keep.set('chat.' + c.id, c);
}

/* What another tab did. */
addEventListener('storage', e => {
  if (e.key === 'ingle.settings') {
    settings = {...keep.get('settings', {})};
    showTheme();
  } else if (!e.key || e.key.startsWith('ingle.chat.')) {
    const here = new Map([...runs.keys()].map(c => [c.id, c])); // they are written here, and kept at their end
    chats = newestFirst([...keep.chats().filter(c => !here.has(c.id)), ...here.values()]);
    chat = chats.find(c => c.id === chat.id) ?? chat;
    if (e.key === 'ingle.chat.' + chat.id && !here.has(chat.id)) showMessages();
    showList();
  }
});
addEventListener('pagehide', () => {
  for (const [c, run] of runs) {
    run.message.stats.finish = 'stopped';
    save(c);
  }
});

/* ---- Markdown, built as nodes: what a model writes never becomes markup ---- */

const INLINE = new RegExp([
  /\\(?<plain>[!-/:-@[-`{-~])/, /(?<ticks>`+)(?<code>[\s\S]*?[^`])\k<ticks>(?!`)/, /(?<br><br\s*\/?>)/,
  /\*\*(?<strong>[\s\S]+?)\*\*/, /__(?<strong2>[\s\S]+?)__/, /\*(?<em>[^\s*](?:[\s\S]*?[^\s*])?)\*/,
  /(?<!\w)_(?<em2>[^\s_](?:[\s\S]*?[^\s_])?)_(?!\w)/, /~~(?<del>[\s\S]+?)~~/,
  /!?\[(?<label>[^\]\n]+)\]\((?<to>[^()\s]+(?:\([^()\s]*\))?)\)/, /(?<url>https?:\/\/[^\s<>()]+[^\s<>().,;:!?'"*`])/,
].map(r => r.source).join('|'));

function link(url, kids, inLink) {
  if (inLink) return kids;
  if (!/^https?:\/\//i.test(url)) return ['[', ...kids, '](' + url + ')'];
  return [el('a', {href: url, title: url, target: '_blank', rel: 'noopener noreferrer nofollow'}, ...kids)];
}

function inline(text, depth = 0, inLink = false) {
  const out = [];
  while (text) {
    const m = depth < 8 ? INLINE.exec(text) : null;
    if (!m) { out.push(text); break; }
    if (m.index) out.push(text.slice(0, m.index));
    const g = m.groups, wrap = (tag, s) => out.push(el(tag, {}, ...inline(s, depth + 1, inLink)));
    if (g.plain) out.push(g.plain);
    else if (g.code) out.push(el('code', {textContent: g.code.replace(/^ (.*) $/, '$1')}));
    else if (g.br) out.push(el('br'));
    else if (g.strong ?? g.strong2) wrap('strong', g.strong ?? g.strong2);
    else if (g.em ?? g.em2) wrap('em', g.em ?? g.em2);
    else if (g.del) wrap('del', g.del);
    else if (g.label) out.push(...link(g.to, inline(g.label, depth + 1, true), inLink));
    else out.push(...link(g.url, [g.url], inLink));
    text = text.slice(m.index + m[0].length);
  }
  return out;
}

/* An element of text, which runs the way of its first letter: looked for once, when all is in it. */
const flow = (tag, props, ...kids) => Object.assign(el(tag, props, ...kids), {dir: 'auto'});

function codeBlock(lang, text) {
  const code = el('code', {textContent: text});
  const copy = el('button', {className: 'plain', type: 'button', textContent: 'Copy', onclick: () => copyText(code.textContent, copy)});
  copy.setAttribute('aria-label', 'Copy code');
  const pre = el('pre', {tabIndex: 0}, code);
  pre.setAttribute('role', 'group');
  pre.setAttribute('aria-label', (lang || 'code') + ' block');
  return el('div', {className: 'code', dir: 'ltr'}, el('div', {className: 'bar'}, el('span', {textContent: lang}), copy), pre);
}

const cells = row => row.trim().replace(/^\||\|$/g, '').split(/(?<!\\)\|/).map(c => c.trim().replace(/\\\|/g, '|'));

function tableBlock(rows) {
  const ways = cells(rows[1]).map(c => /:$/.test(c) ? /^:/.test(c) ? 'center' : 'end' : '');
  const row = (tag, line) => el('tr', {}, ...cells(line).map((c, i) => {
    const cell = flow(tag, {}, ...inline(c));
    cell.style.textAlign = ways[i] ?? '';
    return cell;
  }));
  const table = flow('table', {}, el('thead', {}, row('th', rows[0])), el('tbody', {}, ...rows.slice(2).map(r => row('td', r))));
  const box = el('div', {className: 'wide', tabIndex: 0}, table);
  box.setAttribute('role', 'group');
  box.setAttribute('aria-label', 'table');
  return box;
}

const FENCE = /^(\s*)(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/, HEADING = /^ {0,3}(#{1,6})\s+(.*?)(?:\s+#+)?\s*$/;
const RULE = /^\s*([-*_])(\s*\1){2,}\s*$/, QUOTE = /^\s*>/, ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+)(.*)$/;
const TABLE = /^\s*\|?\s*:?-{2,}:?\s*(\|\s*:?-{2,}:?\s*)*\|?\s*$/;
const begins = line => [FENCE, HEADING, RULE, QUOTE, ITEM].some(r => r.test(line));

/* Columns of blanks in front, and a line with so many fewer. */
function indent(line) {
  let n = 0;
  for (let i = 0; line[i] === ' ' || line[i] === '\t'; i++) n += line[i] === ' ' ? 1 : 4;
  return n;
}
function dedent(line, n) {
  let i = 0;
  for (; n > 0 && (line[i] === ' ' || line[i] === '\t'); i++) n -= line[i] === ' ' ? 1 : 4;
  return line.slice(i);
}

/* Line behind the block of code whose fence is line i. */
function fenceEnd(lines, i) {
  const mark = FENCE.exec(lines[i])[2];
  for (i++; i < lines.length; i++) {
    const line = lines[i].trim();
    if (line.startsWith(mark) && line === mark[0].repeat(line.length)) return i + 1;
  }
  return i + 1;
}

/* The list that begins at line i, and the line behind it. */
function listBlock(lines, i, depth) {
  const first = ITEM.exec(lines[i]), base = indent(lines[i]), ordered = /\d/.test(first[2]);
  const items = [];
  const sibling = line => indent(line) <= base + 1 && ITEM.exec(line);
  for (let m; i < lines.length && (m = sibling(lines[i])) && /\d/.test(m[2]) === ordered && !RULE.test(lines[i]);) {
    const width = indent(lines[i]) + m[2].length + Math.min(m[3].length, 4), body = [m[4]];
    for (i++; i < lines.length;) {
      let k = i;
      while (k < lines.length && !lines[k].trim()) k++; // blank lines belong to the item if what follows does
      if (k === lines.length || sibling(lines[k]) || indent(lines[k]) < Math.min(width, base + 2)) break;
      const end = FENCE.test(lines[k]) ? Math.min(fenceEnd(lines, k), lines.length) : k + 1;
      for (; i < end; i++) body.push(dedent(lines[i], width));
    }
    const kids = body.length > 1 || begins(body[0]) ? blocks(body, depth + 1) : inline(body[0]);
    items.push(flow('li', {}, ...(kids[0]?.tagName === 'P' ? [...kids[0].childNodes, ...kids.slice(1)] : kids)));
    let k = i;
    while (k < lines.length && !lines[k].trim()) k++;
    if (k < lines.length && sibling(lines[k])) i = k;
  }
  return [flow(ordered ? 'ol' : 'ul', ordered ? {start: parseInt(first[2], 10)} : {}, ...items), i];
}

/* The block that begins at line i (null for a blank line), and the line behind it. */
function block(lines, i, depth) {
  const line = lines[i], from = i;
  let m;
  if (!line.trim()) return [null, i + 1];
  if (m = FENCE.exec(line)) {
    const end = fenceEnd(lines, i), body = lines.slice(i + 1, end - 1);
    return [codeBlock(m[3], body.map(l => dedent(l, indent(m[1]))).join('\n')), end];
  }
  if (m = HEADING.exec(line)) return [flow('h' + Math.min(6, m[1].length + 2), {}, ...inline(m[2])), i + 1];
  if (RULE.test(line)) return [el('hr'), i + 1];
  if (QUOTE.test(line)) {
    while (i < lines.length && QUOTE.test(lines[i])) i++;
    return [flow('blockquote', {}, ...blocks(lines.slice(from, i).map(l => l.replace(/^\s*> ?/, '')), depth + 1)), i];
  }
  if (line.includes('|') && TABLE.test(lines[i + 1] ?? '')) {
    while (i < lines.length && lines[i].includes('|')) i++;
    return i - from > 1 ? [tableBlock(lines.slice(from, i)), i] : [flow('p', {}, ...inline(line)), i];
  }
  if (ITEM.test(line)) return listBlock(lines, i, depth);
  for (i++; i < lines.length && lines[i].trim() && !begins(lines[i]);) i++;
  return [flow('p', {}, ...inline(lines.slice(from, i).join('\n'))), i];
}

function blocks(lines, depth) {
  const out = [];
  if (depth > 16) return [flow('p', {textContent: lines.join('\n')})]; // as deep as a page can show
  for (let i = 0, node; i < lines.length;) {
    [node, i] = block(lines, i, depth);
    if (node) out.push(node);
  }
  return out;
}

/* Into a box that shows a beginning of the text: all but its last two blocks stay as they are.  `ends` are the lines
   behind the blocks.  A block of code grows in its place, where it may be scrolled and its button have the focus. */
function render(box, ends, text) {
  const lines = text.split('\n');
  ends.length = Math.max(0, ends.length - 2);
  for (let i = ends.at(-1) ?? 0, node; i < lines.length;) {
    [node, i] = block(lines, i, 0);
    if (!node) continue;
    const old = box.children[ends.length];
    ends.push(i);
    if (!old) box.append(node);
    else if (old.className !== 'code' || node.className !== 'code') old.replaceWith(node);
    else {
      for (const part of ['.bar span', 'code']) old.querySelector(part).textContent = node.querySelector(part).textContent;
      old.querySelector('pre').setAttribute('aria-label', node.querySelector('pre').getAttribute('aria-label'));
    }
  }
  while (box.children.length > ends.length) box.lastChild.remove();
}

/* ---- the page ---- */

const say = text => { $('status').textContent = text; $('meter').textContent = ''; };
const meter = text => { $('status').textContent = ''; $('meter').textContent = text; }; // changes too often to be read aloud

async function copyText(text, button) {
  try { await navigator.clipboard.writeText(text); }
  catch {
    const t = el('textarea', {value: text});
    document.body.append(t);
    t.select();
    document.execCommand('copy');
    t.remove();
  }
  const was = button.textContent;
  button.textContent = 'Copied';
  setTimeout(() => { button.textContent = was; }, 1200);
}

function statsText(s) {
  if (!s) return '';
  const parts = [];
  if (s.tokens) parts.push(`${s.tokens} tokens`);
  if (s.rate) parts.push(`${s.rate.toFixed(1)} tokens/s`);
  if (s.drafted) parts.push(`${Math.round(100 * s.right / s.drafted)} % of ${s.drafted} drafts accepted`);
  if (s.prompt) parts.push(`prompt ${s.prompt}, ${s.cached} from the cache`);
  if (s.finish === 'length') parts.push('cut: longest answer reached');
  if (s.finish === 'stopped') parts.push('stopped');
  return parts.join(' · ');
}

function messageView(message, index) {
  const who = message.role === 'user' ? 'You' : 'Model';
  const view = {text: el('div', {className: 'text', dir: message.role === 'user' ? 'auto' : ''}), ends: []};
  view.thought = el('div', {dir: 'auto'});
  view.summary = el('summary', {textContent: 'Thought'});
  view.details = el('details', {className: 'thought', hidden: true}, view.summary, view.thought);
  view.error = el('p', {className: 'error', hidden: true});
  view.error.setAttribute('role', 'alert');
  view.stats = el('span', {className: 'stats'});
  view.acts = el('div', {className: 'acts'});
  const act = (label, fn) => {
    const b = el('button', {className: 'plain', type: 'button', textContent: label, onclick: () => fn(b)});
    b.setAttribute('aria-label', `${label}: message ${index + 1}`);
    view.acts.append(b);
  };
  act('Copy', b => copyText(message.content, b));
  if (message.role === 'user') act('Edit', () => edit(index));
  else act('Regenerate', () => regenerate(index));
  view.acts.append(view.stats);
  view.root = el('article', {className: 'message ' + message.role}, el('p', {className: 'who', textContent: who}),
                 view.details, view.text, view.error, view.acts);
  view.root.setAttribute('aria-label', who);
  paint(view, message);
  return view;
}

function paint(view, message) {
  if (message.role === 'user') view.text.textContent = message.content;
  else render(view.text, view.ends, message.content);
  view.details.hidden = !message.reasoning;
  view.thought.textContent = message.reasoning || '';
  const writing = runs.get(chat)?.message === message;
  view.summary.textContent = writing && !message.content ? 'Thinking…' : 'Thought';
  view.error.hidden = !message.error;
  view.error.textContent = message.error || '';
  view.stats.textContent = statsText(message.stats);
  view.acts.style.visibility = writing ? 'hidden' : '';
}

const atEnd = () => $('log').scrollHeight - $('log').scrollTop - $('log').clientHeight < 80;
const toEnd = () => { $('log').scrollTop = $('log').scrollHeight; };

function showMessages() {
  const run = runs.get(chat), views = chat.messages.map(messageView);
  if (run) run.view = views[chat.messages.indexOf(run.message)];
  $('messages').replaceChildren(...views.map(v => v.root));
  if (!views.length) $('messages').append(el('p', {id: 'empty', textContent: 'Ask something. Enter sends, Shift+Enter starts a new line, Esc stops an answer.'}));
  $('title').textContent = chat.title || 'New conversation';
  showRun();
  toEnd();
}

/* Whether an answer is being written here: Send or Stop. */
function showRun() {
  const busy = runs.has(chat);
  $('send').hidden = busy;
  $('stop').hidden = !busy;
  if (busy) $('log').setAttribute('aria-busy', 'true');
  else $('log').removeAttribute('aria-busy');
}

function showList() {
  $('list').replaceChildren(...chats.map(c => {
    const pick = el('button', {className: 'pick', type: 'button', dir: 'auto', textContent: c.title || 'New conversation', onclick: () => { openChat(c); closeList(); $('input').focus(); }});
    const drop = el('button', {className: 'plain', type: 'button', textContent: '×', onclick: () => removeChat(c)});
    drop.setAttribute('aria-label', 'Delete conversation ' + (c.title || ''));
    if (c === chat) pick.setAttribute('aria-current', 'true');
    return el('li', {className: (c === chat ? 'here ' : '') + (runs.has(c) ? 'busy' : '')}, pick, drop);
  }));
}

function openChat(c) {
  chat = c;
  say('');
  showMessages();
  showList();
}

function removeChat(c) {
  if (!confirm(`Delete the conversation “${c.title}”?`)) return;
  runs.get(c)?.controller.abort();
  chats = chats.filter(x => x !== c);
  keep.drop('chat.' + c.id);
  if (c === chat) openChat(chats[0] ?? fresh());
  else showList();
  $('new').focus();
}

/* Of a narrow window; whether it was open. */
function closeList() {
  const open = $('nav').classList.contains('open');
  $('nav').classList.remove('open');
  $('open-list').setAttribute('aria-expanded', 'false');
  return open;
}

/* An answer that is being written belongs to the messages before it. */
function busy() {
  if (runs.has(chat)) say('Stop the answer first.');
  return runs.has(chat);
}

function edit(index) {
  if (busy()) return;
  const root = $('messages').children[index];
  const field = el('textarea', {value: chat.messages[index].content, dir: 'auto'});
  const leave = () => { showMessages(); $('input').focus(); };
  field.setAttribute('aria-label', 'Edit the message');
  const send = () => {
    const text = field.value.trim();
    if (!text) return;
    chat.messages.length = index;
    ask(text);
    $('input').focus();
  };
  field.onkeydown = e => {
    if (e.key === 'Escape') { e.stopPropagation(); leave(); }
    if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) { e.preventDefault(); send(); }
  };
  root.replaceChildren(field, el('div', {className: 'acts'},
    el('button', {className: 'main', type: 'button', textContent: 'Send again', onclick: send}),
    el('button', {type: 'button', textContent: 'Leave as it was', onclick: leave})));
  field.focus();
}

function regenerate(index) {
  if (busy()) return;
  chat.messages.length = index;
  answer();
  $('log').focus({preventScroll: true}); // the button that had it is gone
}

/* ---- talking to the server ---- */

function requestBody() {
  const messages = chat.messages.filter(m => m.role === 'user' || m.content).map(m => {
    const out = {role: m.role, content: m.content};
    if (m.reasoning) out.reasoning_content = m.reasoning;
    return out;
  });
  if (settings.system) messages.unshift({role: 'system', content: settings.system});
  const body = {messages, stream: true, stream_options: {include_usage: true}, return_progress: true, timings_per_token: true};
  for (const key of ['temperature', 'top_p', 'top_k', 'min_p', 'repeat_penalty', 'max_tokens', 'seed'])
    if (settings[key] !== undefined && settings[key] !== '') body[key] = Number(settings[key]);
  if (chosen()?.status) body.model = chosen().id;
  if (settings.thinking) body.chat_template_kwargs = {enable_thinking: settings.thinking === 'on'};
  return body;
}

const headers = () => settings.key ? {authorization: 'Bearer ' + settings.key} : {};

/* The `data:` lines of an event stream, one by one. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return;
      const lines = (rest + value).split('\n');
      rest = lines.pop();
      for (const line of lines)
        if (line.startsWith('data:')) yield line.slice(5).trim();
    }
  } finally { reader.cancel().catch(() => {}); }
}

async function failure(response) {
  const text = await response.text();
  let message = text;
  try { message = JSON.parse(text).error.message; } catch { message = `HTTP ${response.status}: ${text}`; } // a proxy's
  if (message.length > 500) message = message.slice(0, 500) + '…';
  return response.status === 401 ? message + ' (the API key can be set in Settings)' : message;
}

/* A chunk into the message; what the meter shows of it. */
function take(message, chunk) {
  if (chunk.error) throw new Error(chunk.error.message || 'the server reported an error');
  const choice = chunk.choices?.[0], stats = message.stats;
  message.reasoning += choice?.delta?.reasoning_content ?? '';
  message.content += choice?.delta?.content ?? '';
  if (choice?.finish_reason) stats.finish = choice.finish_reason;
  stats.rate = chunk.timings?.predicted_per_second ?? stats.rate;
  if (chunk.usage) {
    stats.tokens = chunk.usage.completion_tokens;
    stats.prompt = chunk.usage.prompt_tokens;
    stats.cached = chunk.usage.prompt_tokens_details?.cached_tokens ?? 0;
    stats.drafted = chunk.timings?.draft_n ?? 0;
    stats.right = chunk.timings?.draft_n_accepted ?? 0;
  }
  if (chunk.prompt_progress) return `Reading the prompt: ${chunk.prompt_progress.processed} of ${chunk.prompt_progress.total} tokens`;
  return chunk.timings?.predicted_n > 8 ? `${stats.rate.toFixed(1)} tokens/s` : '';
}

async function answer() {
  const message = {role: 'assistant', content: '', reasoning: '', stats: {}};
  const body = requestBody(), mine = chat, me = {controller: new AbortController(), message};
  mine.messages.push(message);
  runs.set(mine, me);
  showMessages();
  showList();
  say('Waiting for the first token…');
  let due = 0, news = '';
  const draw = () => {
    due = 0;
    if (mine !== chat) return;
    const follow = atEnd();
    paint(me.view, message);
    if (news || message.content || message.reasoning) meter(news);
    if (follow) toEnd();
  };
  let end = 'The answer is complete.';
  try {
    const response = await fetch('v1/chat/completions', {
      method: 'POST', signal: me.controller.signal,
      headers: {'content-type': 'application/json', ...headers()}, body: JSON.stringify(body),
    });
    if (!response.ok) throw new Error(await failure(response));
    for await (const data of events(response)) {
      if (data === '[DONE]') break;
      news = take(message, JSON.parse(data)) || news;
      due ||= requestAnimationFrame(draw);
    }
    if (!message.stats.finish) throw new Error('The connection ended before the answer did.');
  } catch (e) {
    end = '';
    if (e.name === 'AbortError') { message.stats.finish = 'stopped'; end = 'Stopped.'; }
    else if (!(e instanceof TypeError)) message.error = e.message;
    else message.error = message.content || message.reasoning ? 'The connection to the server was lost.' : 'The server cannot be reached.';
  }
  cancelAnimationFrame(due);
  runs.delete(mine);
  if (mine === chat) {
    showRun();
    me.view.ends.length = 0;
    draw();
    say(end);
  }
  showList();
  if (chats.includes(mine)) save(mine);
  showMachine();
}

function ask(text) {
  chat.messages.push({role: 'user', content: text});
  if (!chat.title) chat.title = text.replace(/\s+/g, ' ').slice(0, 60);
  save(chat);
  answer();
}

function stop() { runs.get(chat)?.controller.abort(); }

/* What drafts, and what has come of it. */
function draftText(s) {
  if (!s?.enabled) return 'no drafting';
  const by = s.proposer === 'ngram' ? 'from the text' : `by ${s.proposer}`;
  if (!s.drafted) return `drafts ${by}`;
  return `drafts ${by}: ${Math.round(100 * s.accepted / s.drafted)} % accepted, ${s.mean_length.toFixed(1)} tokens a step`;
}

/* Which model answers, where there are several. */
let models = [];
const chosen = () => models.find(m => m.id === settings.model) ?? models.find(m => m.status?.value === 'loaded') ?? models[0];
const stateOf = m => {
  const s = m.status;
  if (s.failed) return 'failed';
  return s.value === 'loading' ? `loading ${Math.round(100 * (s.progress ?? 0))} %` : s.value;
};

function showModels() {
  const select = $('model');
  select.hidden = !models.some(m => m.status);
  if (select.hidden || document.activeElement === select) return; // an open list stays as it is
  select.replaceChildren(...models.map(m => el('option', {value: m.id, textContent: `${m.id} (${stateOf(m)})`, title: m.status.message ?? ''})));
  select.value = chosen().id;
}
$('model').onchange = () => {
  settings.model = $('model').value;
  keep.set('settings', settings);
  $('model').blur();
  showMachine();
};

/* What answers, asked until there is one; states of several models are asked for all the time that somebody looks. */
let again = 0;
async function showMachine() {
  clearTimeout(again);
  let done = false;
  try {
    const r = await fetch('v1/models', {headers: headers()});
    models = (await r.json()).data;
    const m = chosen();
    const n = m.context_length; // known when the model is loaded
    const loaded = n && (!m.status || m.status.value === 'loaded');
    let text = m.id + (n ? ` · ${n.toLocaleString()} tokens of context` : '');
    if (!loaded) text += m.status ? ` · ${stateOf(m)}` : ' is being loaded';
    else text += ' · ' + draftText((await (await fetch('props' + modelQuery(), {headers: headers()})).json()).speculative);
    $('machine').textContent = text;
    showModels();
    done = n && !m.status;
  } catch { $('machine').textContent = 'The server cannot be reached.'; }
  if (!done) again = setTimeout(showMachine, document.hidden ? 30000 : 3000);
}

/* ---- settings, theme, keys ---- */

/* Only of a model that is there: a look at the settings loads none. */
const modelQuery = () => chosen()?.status ? `?autoload=false&model=${encodeURIComponent(chosen().id)}` : '';

async function showSettings() {
  const fields = $('settings').querySelectorAll('[data-key]');
  for (const f of fields) f.value = settings[f.dataset.key] ?? '';
  try { // what an empty field means
    const usual = (await (await fetch('props' + modelQuery(), {headers: headers()})).json()).default_generation_settings.params;
    for (const f of fields) if (f.step && !f.placeholder && f.dataset.key in usual) f.placeholder = usual[f.dataset.key];
  } catch { /* the fields stay without */ }
}
$('settings').addEventListener('input', e => {
  if (!e.target.dataset.key) return;
  settings[e.target.dataset.key] = e.target.value;
  keep.set('settings', settings);
});
$('open-settings').onclick = () => { showSettings(); $('settings').showModal(); };
$('reset').onclick = () => { settings = {key: settings.key, theme: settings.theme, model: settings.model}; keep.set('settings', settings); showSettings(); };
$('wipe').onclick = () => {
  if (!confirm('Delete all conversations in this browser?')) return;
  for (const run of runs.values()) run.controller.abort();
  for (const c of chats) keep.drop('chat.' + c.id);
  chats = [];
  openChat(fresh());
  $('settings').close();
};
$('settings').addEventListener('close', showMachine);

function showTheme() {
  const dark = settings.theme ? settings.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  document.documentElement.style.colorScheme = dark ? 'dark' : 'light';
  $('theme').setAttribute('aria-pressed', dark);
}
$('theme').onclick = () => {
  settings.theme = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
  keep.set('settings', settings);
  showTheme();
};
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', showTheme);

const input = $('input');
const grow = () => { input.style.height = 'auto'; input.style.height = input.scrollHeight + 2 + 'px'; };
input.oninput = grow;
input.onkeydown = e => {
  if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) { e.preventDefault(); $('form').requestSubmit(); }
  if (e.key === 'ArrowUp' && !input.value) {
    const last = chat.messages.findLastIndex(m => m.role === 'user');
    if (last >= 0) { e.preventDefault(); edit(last); }
  }
};
$('form').onsubmit = e => {
  e.preventDefault();
  const text = input.value.trim();
  if (!text || busy()) return;
  input.value = '';
  grow();
  ask(text);
};
$('stop').onclick = () => { stop(); input.focus(); };
$('new').onclick = () => { openChat(fresh()); closeList(); input.focus(); };
$('open-list').onclick = () => {
  const open = $('nav').classList.toggle('open');
  $('open-list').setAttribute('aria-expanded', open);
  $('nav').getBoundingClientRect(); // what is hidden takes no focus
  if (open) $('new').focus();
};
document.addEventListener('keydown', e => {
  if (e.key === 'Escape' && !$('settings').open) { if (runs.has(chat)) stop(); else if (closeList()) $('open-list').focus(); }
  if (e.altKey && e.code === 'KeyN') { e.preventDefault(); $('new').click(); }
});
document.addEventListener('click', e => {
  if ($('nav').classList.contains('open') && !$('nav').contains(e.target) && e.target !== $('open-list')) closeList();
});

showTheme();
showMachine();
openChat(chats[0] ?? fresh());
input.focus();
