// Reads a file of exported conversations, away from the page, and gives it out in small parts: {file}: how many
// conversations; {chat: i}: what it is, without its messages; {chat: i, from: n}: some of its messages.
'use strict';

const BATCH = 100, BYTES = 500000;
const ROLES = ['user', 'assistant', 'tool'];
const isText = x => typeof x === 'string';
let list = [];
let at = -1, messages = []; // those of conversation `at` that can be read

async function read(file) {
  let data;
  try { data = JSON.parse(await file.text()); } catch (e) { throw new Error(`it is no JSON (${e.message})`); }
  const foreign = (Array.isArray(data) ? data : [data]).filter(d => d?.conv && Array.isArray(d.messages));
  if (!Array.isArray(data?.chats) && !foreign.length) throw new Error('it has no list "chats"');
  list = data?.chats ?? foreign.map(ofLlama);
  return {chats: list.length};
}

// A conversation that the page of llama-server exported.  Its system prompt is a message, files are "extra".
function ofLlama({conv, messages}) {
  const system = messages.find(m => m?.role === 'system' && m.type !== 'root' && isText(m.content) && m.content);
  const calls = text => { try { return JSON.parse(text).map(c => ({id: c.id, name: c.function?.name ?? c.name, arguments: c.function?.arguments ?? c.arguments ?? ''})); } catch { return undefined; } };
  const fileOf = x => isText(x?.base64Url) ? {name: x.name, media: x.base64Url, size: Math.floor(x.base64Url.length * 3 / 4)}
    : isText(x?.base64Data) && /^audio/i.test(x.type) ? {name: x.name, media: `data:${x.mimeType};base64,${x.base64Data}`, size: Math.floor(x.base64Data.length * 3 / 4), sound: true}
      : {name: x?.name, text: x?.content};
  return {id: String(conv.id), title: conv.name, named: true, leaf: conv.currNode, settings: system ? {system: system.content} : {},
    messages: messages.filter(m => m?.role !== 'system').map(m => m && ({id: m.id, parent: m.parent, seq: m.timestamp, role: m.role, content: m.content, model: m.model,
      reasoning: m.reasoningContent ?? m.thinking, calls: isText(m.toolCalls) && m.toolCalls ? calls(m.toolCalls) : undefined,
      call: isText(m.toolCallId) ? {id: m.toolCallId, name: 'a tool'} : undefined, files: Array.isArray(m.extra) ? m.extra.map(fileOf) : []}))};
}

function head(i) {
  const c = list[i];
  if (!isText(c?.id) || !Array.isArray(c.messages)) return {lost: Infinity};
  const {messages: all, ...chat} = c;
  chat.tree = all.every(m => isText(m?.id));
  at = i;
  const good = all.filter(m => isText(m?.content) && ROLES.includes(m.role));
  messages = chat.tree ? good : good.filter(m => m.role !== 'tool');
  return {chat, ids: chat.tree ? messages.map(m => m.id) : [], lost: all.length - good.length};
}

function some(from) {
  let next = from;
  for (let size = 0; next < messages.length && next < from + BATCH && (next === from || size < BYTES); next++) {
    const m = messages[next];
    size += m.content.length + (m.reasoning?.length ?? 0);
    for (const f of Array.isArray(m.files) ? m.files : []) size += f?.text?.length ?? f?.media?.length ?? 0;
  }
  return {messages: messages.slice(from, next), next, end: next >= messages.length};
}

onmessage = async e => {
  const m = e.data;
  try {
    if (m.file) postMessage(await read(m.file));
    else if (m.from === undefined) postMessage(head(m.chat));
    else {
      if (m.chat !== at) head(m.chat);
      postMessage(some(m.from));
    }
  } catch (error) { postMessage({error: error.message}); }
};
