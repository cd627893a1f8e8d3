// What the browser keeps: conversations and their messages in IndexedDB, each message under its own key, so that tabs
// never undo each other; settings in localStorage.
//
// A conversation: {id, title, named, pinned, order, model, settings, leaf}.
// A message: {id, chat, parent, seq, role, content, reasoning, files, calls, call, model, error, stats, run}.
import {newId, rest} from './dom.js';

let db = null;
let why = '';                       // why nothing is kept
const memory = {chats: new Map(), messages: new Map()};
const channel = openChannel();      // to other tabs
let heard = () => {};
let failed = () => {};
const unkept = new Map();           // what the browser did not keep, by its key: tried again with the next write
let times = 0;                      // how often the store was opened

function openChannel() {
  try { return new BroadcastChannel('ingle'); } catch { return null; } // a browser that allows no storage
}

const wait = request => new Promise((done, fail) => {
  request.onsuccess = () => done(request.result);
  request.onerror = () => fail(request.error);
});

function open() {
  return new Promise((done, fail) => {
    const r = indexedDB.open('ingle', 1);
    r.onupgradeneeded = () => {
      r.result.createObjectStore('chats', {keyPath: 'id'});
      r.result.createObjectStore('messages', {keyPath: 'id'}).createIndex('chat', 'chat');
    };
    r.onsuccess = () => done(r.result);
    r.onerror = () => fail(r.error);
    r.onblocked = () => fail(new Error('another tab has an older form of the conversations open'));
  });
}

async function opened() {
  db = await open();
  times++;
  db.onversionchange = () => { db.close(); db.onclose(); };
  db.onclose = () => { // its data were deleted, or another version of the page is here
    db = null;
    again(5).then(() => failed('The browser has deleted what this page kept. A conversation is kept again, whole, when you write in it.'),
      e => failed(`This browser keeps nothing here any more (${e?.message ?? e}): export what you need, and reload the page.`));
  };
}

// A browser that deletes data refuses at first.
async function again(tries) {
  await new Promise(done => setTimeout(done, 200));
  try { await opened(); } catch (e) {
    if (!tries) throw e;
    await again(tries - 1);
  }
}

// How often the store was opened: what was kept before may be gone.
export const opening = () => times;

// onHear({chat, ids}): another tab changed these messages (ids absent: the conversation itself).  onFail(sentence).
export async function openStore(onHear, onFail) {
  heard = onHear;
  failed = onFail;
  try { await opened(); }
  catch (e) {
    why = e.message || String(e);
    failed(`This browser keeps nothing here (${why}): conversations are gone when the page is closed. Export what you need.`);
  }
  if (channel) channel.onmessage = e => heard(e.data);
  await moveOld();
}

export const tell = what => channel?.postMessage(what);
export const isLost = () => unkept.size > 0;
export const isKept = () => !!db;

const SLICE = 8; // milliseconds of work without a rest

// Some of the list; the others when the last one of these is in.
function put(t, list, from) {
  const begun = performance.now();
  let r = null, at = from;
  while (at < list.length && (at === from || performance.now() - begun < SLICE)) {
    const [store, value, drop] = list[at++];
    r = drop ? t.objectStore(store).delete(value) : t.objectStore(store).put(value);
  }
  if (at < list.length) r.onsuccess = () => put(t, list, at);
  else if (r) t.commit?.(); // a page that is being left does not wait
}

async function commit(list) {
  const t = db.transaction(['chats', 'messages'], 'readwrite');
  const ended = new Promise((done, fail) => {
    t.oncomplete = done;
    t.onabort = t.onerror = () => fail(t.error ?? new Error('the browser gave no reason'));
  });
  put(t, list, 0);
  await ended;
}

const keyOf = ([store, value, drop]) => `${store} ${drop ? value : value.id}`;

// With what was not kept before, or without it, if there is room for less only.
async function keepRows(list) {
  if (unkept.size) {
    const all = new Map(unkept);
    for (const row of list) all.set(keyOf(row), row);
    try {
      await commit([...all.values()]);
      for (const [key, row] of all) if (unkept.get(key) === row || list.includes(row)) unkept.delete(key);
      return;
    } catch { /* less */ }
  }
  await commit(list);
  for (const row of list) unkept.delete(keyOf(row));
}

// Writes: a list of [store, value] or [store, id, 'delete'].  Always into memory first.
export async function write(list) {
  for (const [store, value, drop] of list) {
    if (drop) memory[store].delete(value);
    else memory[store].set(value.id, value);
  }
  if (!db) return false;
  try {
    await keepRows(list);
  } catch (e) {
    for (const row of list) unkept.set(keyOf(row), row);
    failed(e?.name === 'QuotaExceededError'
      ? 'This browser has no room left: what is new is not kept. Export it, or delete conversations.'
      : `The browser could not keep this (${e?.message ?? e}): export what you need.`);
    return false;
  }
  const chats = new Map();
  for (const [store, value] of list) {
    const chat = store === 'chats' ? value.id ?? value : value.chat;
    if (!chat) continue;
    if (!chats.has(chat)) chats.set(chat, []);
    if (store === 'messages') chats.get(chat).push(value.id);
  }
  for (const [chat, ids] of chats) tell({chat, ids});
  return true;
}

const isText = x => typeof x === 'string';
const isChat = c => isText(c?.id) && isText(c.title ?? '');
const isMessage = m => isText(m?.id) && isText(m.chat) && isText(m.content) && ['user', 'assistant', 'tool'].includes(m.role);

export async function allChats() {
  const list = db ? await wait(db.transaction('chats').objectStore('chats').getAll()) : [...memory.chats.values()];
  return list.filter(isChat);
}

// Calls fn with the messages of those keys; each comes by itself, as one of them may be large.  They are asked for many at
// a time: on a busy machine each answer of the browser's store takes long.  fn returns false to stop.
async function oneByOne(keysOf, fn, together = 250) {
  const keys = await wait(keysOf(db.transaction('messages').objectStore('messages')));
  let asked = [], go = true;
  for (let at = 0; go && at < keys.length; at += 100) {
    const store = db.transaction('messages').objectStore('messages');
    for (const key of keys.slice(at, at + 100)) asked.push(wait(store.get(key)).then(m => { if (go && isMessage(m)) go = fn(m) !== false; }));
    if (asked.length < together) { await rest(); continue; }
    await Promise.all(asked);
    asked = [];
  }
  await Promise.all(asked);
  return go ? keys : null;
}

export async function messagesOf(chat) {
  if (!db) return [...memory.messages.values()].filter(m => m.chat === chat);
  const out = [];
  await oneByOne(store => store.index('chat').getAllKeys(chat), m => { out.push(m); }, Infinity);
  return out;
}

export async function oneMessage(id) {
  if (!db) return memory.messages.get(id);
  const m = await wait(db.transaction('messages').objectStore('messages').get(id));
  return isMessage(m) ? m : undefined;
}

export async function oneChat(id) {
  if (!db) return memory.chats.get(id);
  return wait(db.transaction('chats').objectStore('chats').get(id));
}

// Calls fn with each message, a batch at a time; fn returns false to stop.
export async function eachMessage(fn) {
  if (!db) {
    for (const m of memory.messages.values()) if (fn(m) === false) return;
    return;
  }
  let range = null;
  for (;;) {
    const from = range, keys = await oneByOne(store => store.getAllKeys(from, 1000), fn);
    if (!keys || keys.length < 1000) return;
    range = IDBKeyRange.lowerBound(keys.at(-1), true);
  }
}

export async function room() {
  try { return await navigator.storage.estimate(); } catch { return null; }
}

export const keep = {
  get(key, fallback) {
    try { return JSON.parse(localStorage.getItem('ingle.' + key)) ?? fallback; } catch { return fallback; }
  },
  set(key, value) {
    try {
      localStorage.setItem('ingle.' + key, JSON.stringify(value));
      return true;
    } catch { return false; } // for this visit only
  },
};

// Conversations of the page's first form, one list each in localStorage: moved, and dropped there when they are here.
async function moveOld() {
  let keys = [];
  try { keys = Object.keys(localStorage).filter(k => k.startsWith('ingle.chat.')); } catch { return; }
  for (const key of keys.sort()) {
    const c = keep.get(key.slice(6));
    const whole = isText(c?.id) && Array.isArray(c.messages) && c.messages.every(m => isText(m?.content) && ['user', 'assistant'].includes(m.role));
    if (!whole) continue; // what it cannot read it leaves alone
    const list = fromList(c);
    const kept = await write(list);
    if (kept) localStorage.removeItem(key);
  }
}

// A conversation and its messages of a plain list {id, title, messages: [{role, content, ...}]}.
function fromList(c) {
  const out = [];
  let parent = null;
  for (const m of c.messages) {
    const node = {id: newId(), chat: c.id, parent, seq: 0, role: m.role, content: m.content, reasoning: isText(m.reasoning) ? m.reasoning : '',
      error: isText(m.error) ? m.error : '', stats: m.stats && typeof m.stats === 'object' ? oldStats(m.stats) : {}};
    out.push(['messages', node]);
    parent = node.id;
  }
  out.push(['chats', {id: c.id, title: isText(c.title) ? c.title : '', order: parseInt(c.id.slice(0, 8), 36) || 0, leaf: parent}]);
  return out;
}

export const oldStats = s => ({finish: s.finish, answer: s.tokens, rate: s.rate, prompt: s.prompt, cached: s.cached, drafted: s.drafted, accepted: s.right});
