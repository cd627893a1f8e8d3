// Requests to the server, and its streams of events.
import {keep} from './store.js';
import {blobOf} from './dom.js';

export const settings = {...keep.get('settings', {})}; // {key, theme, model, all: {...}}
export const saveSettings = () => keep.set('settings', settings);

// Settings of the page's first form lay beside each other.
if (!settings.all) {
  const {key, theme, model, ...all} = settings;
  for (const k of Object.keys(settings)) delete settings[k];
  Object.assign(settings, {key, theme, model, all});
}

let needsKey = () => {};
export const onNeedsKey = fn => { needsKey = fn; };

export const headers = () => settings.key ? {authorization: 'Bearer ' + settings.key} : {};

// A failure with a sentence for people.
export class Failure extends Error {
  constructor(message, status = 0, code = '') {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function failure(response, asked) {
  const text = await response.text().catch(() => '');
  let message = '', code = '';
  try {
    const e = JSON.parse(text).error;
    message = e.message;
    code = e.code ?? '';
  } catch { message = `HTTP ${response.status}${text ? ': ' + text : ''}`; } // a proxy's
  message = String(message);
  if (message.length > 500) message = message.slice(0, 500) + '…';
  if (response.status === 401) {
    message = settings.key ? `The server does not accept this key: ${message}` : 'This server needs a key.';
    needsKey(message, asked);
  }
  if (code === 'context_length_exceeded' || /available context size/.test(message))
    message = message.replace(/\.?$/, '.') + ' Start a new conversation, delete old messages, or start the server with a larger --ctx.';
  return new Failure(message, response.status, code);
}

// A request with many messages, or large ones, is written a piece at a time.
async function bodyOf(json) {
  if (!Array.isArray(json.messages)) return JSON.stringify(json);
  const {messages, ...more} = json, out = blobOf('application/json');
  await out.add('{"messages":[');
  for (let i = 0; i < messages.length; i++) await out.add((i ? ',' : '') + JSON.stringify(messages[i]));
  const rest = JSON.stringify(more);
  await out.add(rest === '{}' ? ']}' : `],${rest.slice(1)}`);
  return out.whole();
}

export async function call(path, options = {}) {
  const {json, asked = false, ...more} = options; // asked: by the user, not by the page
  if (json !== undefined) {
    more.method ??= 'POST';
    more.body = await bodyOf(json);
    more.headers = {'content-type': 'application/json', ...more.headers};
  }
  const r = await fetch(path, {...more, headers: {...more.headers, ...headers()}});
  if (!r.ok) throw await failure(r, asked);
  return r;
}

export const callJson = async (path, options) => (await call(path, options)).json();

// The events of a stream: {data} or {comment}, and how many bytes of the stream they are (comments are not of it).
export async function* events(response) {
  const reader = response.body.getReader(), decoder = new TextDecoder();
  let left = new Uint8Array(0);
  try {
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return;
      const bytes = new Uint8Array(left.length + value.length);
      bytes.set(left);
      bytes.set(value, left.length);
      let from = 0;
      for (let at = Math.max(0, left.length - 1); (at = bytes.indexOf(10, at)) >= 0; at++) {
        if (bytes[at + 1] !== 10) continue;
        const text = decoder.decode(bytes.subarray(from, at));
        const n = at + 2 - from;
        from = at + 2;
        at++;
        if (text.startsWith(':')) yield {comment: text.slice(1).trim(), n: 0};
        else yield {data: text.split('\n').filter(l => l.startsWith('data:')).map(l => l.slice(5).trim()).join('\n'), n};
      }
      left = bytes.slice(from);
    }
  } finally { reader.cancel().catch(() => {}); }
}
