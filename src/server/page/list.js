// The list of conversations: search, names, pins, export and import.
import {$, el, button, download, nameText, newId, rester, blobOf, say, sayUndo} from './dom.js';
import {allChats, messagesOf, eachMessage, write, tell, oldStats} from './store.js';
import {meta, saveChat, loadNodes, path} from './tree.js';
import {withFiles, isThumb} from './files.js';
import {runOf, stop} from './answer.js';
import {has} from './find.js';

const SHOWN = 300;
const MAX_FILES = 50, MAX_CALLS = 256; // of an imported message
export let chats = [];
let ui = {};             // {current(), open(chat), visit(chat), fresh()}
let found = null;        // ids whose messages have what is searched for
let limit = SHOWN;
let boxChat = null;

export const nameOf = c => nameText(c.title || 'New conversation');
const newestFirst = (a, b) => Number(!!b.pinned) - Number(!!a.pinned) || (b.order ?? 0) - (a.order ?? 0) || (a.id < b.id ? 1 : -1);
export const topOrder = () => chats.reduce((n, c) => Math.max(n, c.order ?? 0), 0) + 1;

export async function readChats() {
  const here = new Map(chats.map(c => [c.id, c]));
  chats = (await allChats()).map(c => {
    const old = here.get(c.id);
    return old ? Object.assign(old, c, {leaf: old.nodes ? old.leaf : c.leaf}) : c;
  });
  for (const c of here.values()) if (runOf(c) && !chats.includes(c)) chats.push(c);
  showList();
}

export function addChat(c) {
  if (!chats.includes(c)) chats.push(c);
}

const wordOf = () => $('search').value.trim().toLowerCase();

function matches(c) {
  const word = wordOf();
  return !word || nameOf(c).toLowerCase().includes(word) || !!found?.has(c.id);
}

export function showList() {
  chats.sort(newestFirst);
  const here = ui.current(), list = chats.filter(matches);
  const focus = document.activeElement?.closest('#list') ? document.activeElement.dataset.id : null;
  $('list').replaceChildren(...list.slice(0, limit).map(c => {
    const pick = el('button', {className: 'pick', type: 'button', dir: 'auto', textContent: nameOf(c), onclick: () => ui.visit(c, found?.has(c.id) ? wordOf() : '')});
    pick.dataset.id = c.id;
    if (c === here) pick.setAttribute('aria-current', 'true');
    const more = button('⋯', () => openBox(c), {aria: `More: ${nameOf(c)}`});
    return el('li', {className: [c === here && 'here', runOf(c) && 'busy', c.pinned && 'pinned'].filter(Boolean).join(' ')}, pick, more);
  }));
  if (list.length > limit) $('list').append(el('li', {}, button(`Show ${Math.min(SHOWN, list.length - limit)} more of ${list.length - limit}`, () => { limit += SHOWN; showList(); })));
  if (!list.length && $('search').value) $('list').append(el('li', {className: 'note', textContent: 'Nothing found.'}));
  if (focus) document.querySelector(`#list [data-id="${CSS.escape(focus)}"]`)?.focus();
}

/* ---- search ---- */

let searching = 0;
async function search() {
  const word = wordOf(), mine = ++searching;
  found = null;
  showList();
  if (!word || /^[\x00-\xff]$/.test(word)) return;
  const hits = new Set();
  await new Promise(done => setTimeout(done, 250));
  if (mine !== searching) return;
  await eachMessage(m => {
    if (has(m.content, word)) hits.add(m.chat);
    return mine === searching;
  });
  if (mine !== searching) return;
  found = hits;
  showList();
}

/* ---- one conversation ---- */

export function openBox(c) {
  boxChat = c;
  $('chat-name').value = nameOf(c);
  $('chat-pin').textContent = c.pinned ? 'Unpin' : 'Pin';
  $('chat-box').showModal();
  $('chat-name').select();
}

function rename() {
  const name = $('chat-name').value.trim();
  if (!boxChat || !name || name === nameOf(boxChat)) return;
  boxChat.title = name;
  boxChat.named = true;
  saveChat(boxChat);
  showList();
  ui.renamed(boxChat);
}

// A message whose answer ends here, as far as it was written.
function ended(m) {
  const {run, ...rest} = m;
  return run ? {...rest, stats: {...m.stats, finish: 'stopped'}} : m;
}

export async function removeChats(list) {
  const kept = [];
  for (const c of list) {
    c.dropped = true;
    stop(c);
    kept.push(['chats', meta(c)], ...(await messagesOf(c.id)).map(m => ['messages', ended(c.nodes?.get(m.id) ?? m)]));
  }
  kept.forEach(([, v]) => delete v.running);
  for (const c of list) tell({gone: c.id});
  await write(kept.map(([store, v]) => [store, v.id, true]));
  chats = chats.filter(c => !list.includes(c));
  if (list.includes(ui.current())) await ui.open(chats.filter(matches).sort(newestFirst)[0] ?? ui.fresh());
  showList();
  sayUndo(list.length === 1 ? `“${nameOf(list[0])}” is deleted.` : `${list.length} conversations are deleted.`, async () => {
    await write(kept);
    for (const c of list) { delete c.dropped; delete c.running; delete c.nodes; chats.push(c); }
    showList();
    await ui.open(list[0]);
  });
}

/* ---- export and import ---- */

const fileName = c => (nameOf(c).replace(/[^\p{L}\p{N} _.-]/gu, '').trim().slice(0, 60) || 'conversation').replace(/ +/g, ' ');
const plain = m => { const {run, ...rest} = m; return rest; };

export async function asJson(list) {
  const out = blobOf('application/json');
  await out.add('{"format": "ingle conversations", "version": 1, "chats": [');
  for (const [i, c] of list.entries()) {
    const {running, dropped, ...m} = meta(c);
    await out.add(`${i ? ',' : ''}\n${JSON.stringify(m).slice(0, -1)}, "messages": [`);
    for (const [k, n] of (await messagesOf(c.id)).entries()) await out.add(`${k ? ',' : ''}\n ${JSON.stringify(plain(n))}`);
    await out.add(']}');
  }
  await out.add('\n]}\n');
  return out.whole();
}

export async function asMarkdown(c) {
  if (!c.nodes) await loadNodes(c);
  const out = blobOf('text/markdown');
  const put = text => text ? out.add(text + '\n\n') : null;
  await put(`# ${nameOf(c)}`);
  for (const n of path(c)) {
    await put(`## ${n.role === 'user' ? 'You' : n.role === 'tool' ? `Result of ${n.call?.name ?? 'a tool'}` : n.model || 'Model'}`);
    if (n.reasoning) await put(n.reasoning.split('\n').map(l => `> ${l}`).join('\n'));
    await put(n.role === 'user' ? [...(n.files ?? []).filter(f => f.media).map(f => `(${f.name})`), withFiles(n.content, n.files)].join('\n\n') : n.content);
    for (const call of n.calls ?? []) await put('```json\n' + JSON.stringify({call: call.name, arguments: call.arguments}) + '\n```');
  }
  return out.whole();
}

const isText = x => typeof x === 'string';

// A file of a message, as far as it is one.
function fileOf(f) {
  if (!isText(f?.name)) return null;
  if (isText(f.media) && f.media.startsWith('data:')) return {name: f.name, media: f.media, size: Number(f.size) || 0, sound: !!f.sound, thumb: isThumb(f.thumb) ? f.thumb : ''};
  return isText(f.text) ? {name: f.name, text: f.text} : null;
}

// Asks the worker that reads the file: each answer is small.
function reader() {
  const worker = new Worker('page/import_worker.js');
  const ask = m => new Promise((done, fail) => {
    worker.onmessage = e => e.data.error ? fail(new Error(e.data.error)) : done(e.data);
    worker.onerror = e => { e.preventDefault(); fail(new Error('the browser cannot read it')); };
    worker.postMessage(m);
  });
  return {ask, end: () => worker.terminate()};
}

// A message of a file, as far as it is one; `tree`: it is of this form of the page.
const kept = (m, tree) => ({
  seq: tree ? Number(m.seq) || 0 : 0, role: m.role, content: m.content,
  reasoning: isText(m.reasoning) ? m.reasoning : '', error: isText(m.error) ? m.error : '', model: isText(m.model) ? m.model : '',
  files: Array.isArray(m.files) ? m.files.slice(0, MAX_FILES).map(fileOf).filter(Boolean) : [],
  calls: Array.isArray(m.calls) ? m.calls.slice(0, MAX_CALLS).filter(k => isText(k?.name) && isText(k.arguments)).map(k => ({id: String(k.id ?? ''), name: k.name, arguments: k.arguments})) : undefined,
  call: m.call && isText(m.call.name) ? {id: String(m.call.id ?? ''), name: m.call.name} : undefined,
  stats: !m.stats || typeof m.stats !== 'object' ? {} : tree ? Object.fromEntries(Object.entries(m.stats).filter(([k, v]) => k === 'finish' ? isText(v) : Number.isFinite(v))) : oldStats(m.stats),
});

// One conversation; how many of its parts could not be read.
async function importChat(from, i, order) {
  const {chat: c, ids: names, lost} = await from.ask({chat: i});
  if (!c) return lost;
  const id = newId(), ids = new Map(), pause = rester();
  for (const n of names) {
    ids.set(n, newId());
    if (ids.size % 50 === 0) await pause();
  }
  let last = null; // a plain list has no names: one after the other
  for (let at = 0, end = false; !end;) {
    const part = await from.ask({chat: i, from: at}), rows = [];
    for (const m of part.messages) {
      const parent = c.tree ? ids.get(m.parent) ?? null : last;
      last = c.tree ? ids.get(m.id) : newId();
      rows.push(['messages', {id: last, chat: id, parent, ...kept(m, c.tree)}]);
      await pause();
    }
    ({next: at, end} = part);
    if (end) rows.push(['chats', {id, title: isText(c.title) ? c.title.slice(0, 200) : '', named: !!c.named, pinned: !!c.pinned, order, model: isText(c.model) ? c.model : '',
      settings: c.settings && typeof c.settings === 'object' ? Object.fromEntries(Object.entries(c.settings).filter(([, v]) => isText(v))) : {}, leaf: c.tree ? ids.get(c.leaf) ?? null : last}]);
    await write(rows);
  }
  return lost;
}

// What an exported file has, with new names.
export async function importFile(file) {
  const from = reader();
  let n = 0, bad = 0;
  try {
    const {chats: count} = await from.ask({file}), order = topOrder();
    for (let i = 0; i < count; i++) {
      const lost = await importChat(from, i, order + n);
      if (lost === Infinity) bad++;
      else { bad += lost; n++; }
    }
  } finally { from.end(); }
  await readChats();
  return {n, bad};
}

export function initList(hooks) {
  ui = hooks;
  $('search').oninput = () => { limit = SHOWN; search(); };
  $('search').onkeydown = e => {
    if (e.key === 'Escape' && $('search').value) { e.stopPropagation(); $('search').value = ''; search(); }
    if (e.key === 'Enter') document.querySelector('#list .pick')?.click();
  };
  $('chat-box').addEventListener('close', () => { rename(); boxChat = null; });
  $('chat-name').onkeydown = e => { if (e.key === 'Enter') { e.preventDefault(); $('chat-box').close(); } };
  $('chat-pin').onclick = () => {
    boxChat.pinned = !boxChat.pinned;
    saveChat(boxChat);
    $('chat-box').close();
    showList();
  };
  $('chat-json').onclick = async () => download(fileName(boxChat) + '.json', await asJson([boxChat]));
  $('chat-markdown').onclick = async () => download(fileName(boxChat) + '.md', await asMarkdown(boxChat));
  $('chat-delete').onclick = () => { const c = boxChat; $('chat-box').close(); removeChats([c]); };
  $('export').onclick = async () => download('ingle conversations.json', await asJson(chats));
  $('import').onclick = () => $('pick-import').click();
  $('pick-import').onchange = async () => {
    const file = $('pick-import').files[0];
    if (!file) return;
    try {
      if (file.size > 5e8) throw new Error('it has more than 500 MB');
      const {n, bad} = await importFile(file);
      $('settings').close();
      say(`${n} conversations are imported${bad ? `; ${bad} parts could not be read` : ''}.`);
    } catch (e) {
      $('settings-error').hidden = false;
      $('settings-error').textContent = `${file.name} is not imported: ${e.message}.`;
    }
    $('pick-import').value = '';
  };
  $('wipe').onclick = () => { $('settings').close(); if (chats.length) removeChats([...chats]); };
}
