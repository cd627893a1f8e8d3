// The page: the conversation on the screen, and what its buttons do.
import {$, el, button, say, sayUndo, initUndo, newId} from './dom.js';
import {libraries, missing} from './build.js';
import {openStore, isLost, keep, tell, oneChat, oneMessage, write} from './store.js';
import {newChat, meta, saveChat, saveNode, loadNodes, mend, path, families, lastLeaf, add, below} from './tree.js';
import {settings, saveSettings, onNeedsKey, callJson} from './api.js';
import {initModels, showMachine, chosen, contextOf, isRouter} from './models.js';
import {initSettings, openSettings} from './settings.js';
import {initFiles, attached, setFiles, addFiles, isReading, onFiles, onReads, withFiles} from './files.js';
import {loadLibraries, View, job, discard, onSettled, isIdle, isPlain} from './render.js';
import {MessageView, initViews, atEnd, toEnd} from './view.js';
import {answer, giveResults, stop, runOf, isEmpty, history, initAnswers, setTool, takeUp} from './answer.js';
import {Editor} from './edit.js';
import {messageWith, showWord} from './find.js';
import * as list from './list.js';

const STEP = 60;               // messages that are shown without being asked for
const MORE = 300;              // and those that come when they are
const BATCH = 12;              // messages that are put on the page at once
let chat = newChat();
let views = new Map();         // id of a message: its view
let shown = STEP, built = 0;   // messages to show, and those that are there
let after = 0, wanted = 0;     // messages at the end that are left out, and of how many that is asked
let sought = null;             // {node, word}: what is to be shown when it is there
let stick = true;              // the end stays in sight
let moved = 0;                 // how often the user has scrolled, pressed a key or a button
const input = $('input');

/* ---- the conversation ---- */

function placeViews(nodes) {
  const by = families(chat), old = views;
  views = new Map();
  if (after && nodes.length - after < STEP) after = wanted = 0; // another branch
  const to = nodes.length - after;
  built = Math.min(shown, to, built + BATCH);
  const from = to - built;
  const out = nodes.slice(from, to).map((n, i) => {
    const v = old.get(n.id)?.node === n ? old.get(n.id) : new MessageView(chat, n);
    views.set(n.id, v);
    old.delete(n.id);
    const next = nodes[from + i + 1];
    v.place = {place: from + i + 1, siblings: by.get(n.parent ?? null) ?? [n], last: !next,
      unanswered: n.role === 'user' && !!next && isEmpty(next) && from + i + 2 < nodes.length};
    return v;
  });
  for (const v of old.values()) v.drop();
  return [out, from];
}

// The children of the box become these; what stays is not touched.
function place(box, kids) {
  const wanted = new Set(kids);
  for (const e of [...box.children]) if (!wanted.has(e) && !e.classList.contains('leaving')) discard(e);
  let at = box.firstChild;
  for (const k of kids) {
    while (at && !wanted.has(at)) at = at.nextSibling;
    if (k === at) at = at.nextSibling;
    else box.insertBefore(k, at);
  }
}

function showMessages() {
  if (!chat.nodes) return; // it is still being read
  const nodes = path(chat), [out, from] = placeViews(nodes);
  const kids = out.map(v => v.root), mine = chat;
  if (built < Math.min(shown, nodes.length - after)) job(() => { if (mine === chat) showMessages(); });
  else if (from) kids.unshift(button(`Show earlier messages (${from})`, () => { shown += MORE; stick = false; showMessages(); }, {className: 'earlier'}));
  if (after > wanted) job(() => { if (mine === chat) showLater(); });
  else if (after) kids.push(button(`Show later messages (${after})`, () => { wanted = Math.max(0, after - MORE); stick = false; showMessages(); }, {className: 'earlier'}));
  if (!nodes.length) kids.push(el('p', {id: 'empty', textContent: 'Ask something, or drop a text file, a PDF file or a picture here. Enter sends, Shift+Enter starts a new line, Esc stops an answer.'}));
  place($('messages'), kids);
  for (const v of out) v.refresh(v.place);
  $('title').textContent = list.nameOf(chat);
  document.title = chat.title ? `${chat.title} - ingle` : 'ingle';
  showRun();
  if (stick) toEnd();
  if (sought && views.has(sought.node.id)) {
    const {node, word} = sought;
    sought = null;
    const moves = moved;
    showWord(views.get(node.id).root, word, () => chat === mine && moved === moves && views.has(node.id));
  }
  measureSoon();
}

function showLater() {
  const n = Math.min(BATCH, after - wanted);
  after -= n;
  built += n;
  shown += n;
  showMessages();
}

// The end is shown from now on.
function toTheEnd() {
  stick = true;
  if (after) showFrom(0);
}

// Messages are shown, but the last ones.
function showFrom(n) {
  shown = STEP;
  built = 0;
  after = wanted = n;
}

// Whether an answer is being written here: Send or Stop; Send, too, where something is to be sent.
function showRun() {
  const busy = !!runOf(chat);
  $('send').hidden = busy && !input.value.trim();
  $('stop').hidden = !busy;
  if (busy) $('log').setAttribute('aria-busy', 'true');
  else $('log').removeAttribute('aria-busy');
}

// Each kept conversation has an address of its own: a reload, a bookmark and the way back lead to it.  visit: by the user.
const hashOf = c => list.chats.includes(c) ? '#' + c.id : '';

function showAddress(c, visit = false) {
  const hash = hashOf(c);
  if (hash === location.hash) return;
  window.history[visit ? 'pushState' : 'replaceState'](null, '', location.pathname + location.search + hash);
}

function visit(c, word = '') {
  showAddress(c, true);
  return open(c, word);
}

function openAddress() {
  const id = location.hash.slice(1), c = list.chats.find(x => x.id === id);
  if (id && !c) say('This browser does not have the conversation of this address.');
  return open(c ?? (id && list.chats[0]) ?? fresh());
}

// word: what the conversation was found by.
async function open(c, word = '') {
  chat = c;
  showFrom(0);
  sought = null;
  stick = true;
  if (!c.nodes) {
    for (const v of views.values()) v.drop();
    views.clear();
    place($('messages'), [el('p', {id: 'empty', textContent: 'Reading the conversation…'})]);
    try { await loadNodes(c); }
    catch (e) {
      if (chat === c) {
        say(`The browser cannot read this conversation (${e.message ?? e}).`);
        open(fresh());
      }
      return;
    }
  }
  if (chat !== c) return;
  if (!runOf(c)) mend(c);
  if (word) await seek(c, word);
  if (chat !== c) return;
  showMessages();
  list.showList();
  closeList();
  showAddress(chat);
  showMachine();
  if (!runOf(c)) takeBack(c); // what could not be asked
}

async function seek(c, word) {
  const node = await messageWith(c, word);
  if (!node || chat !== c) return;
  if (!path(c).includes(node)) {
    if (runOf(c)) return; // the branch stays that is being written
    c.leaf = lastLeaf(c, node.id);
  }
  const nodes = path(c), behind = nodes.length - 1 - nodes.indexOf(node);
  if (behind >= STEP) showFrom(behind - STEP / 2);
  sought = {node, word};
  stick = false;
}

function fresh() { return newChat(chosen(chat)?.id ?? ''); }

/* ---- asking ---- */

function busy() {
  if (runOf(chat)) say('Stop the answer first.');
  return !!runOf(chat);
}

const titleOf = (text, files) => (text || files?.[0]?.name || '').slice(0, 1000).replace(/\s+/g, ' ').trim().slice(0, 60);

function ask(text, files = [], parent = chat.leaf, c = chat) {
  const node = add(c, {role: 'user', parent, content: text, files});
  if (!c.named && (node.parent === null || !c.title)) c.title = titleOf(text, files);
  c.order = list.topOrder();
  list.addChat(c);
  if (c === chat) {
    showAddress(c);
    toTheEnd();
  }
  saveNode(c, node);
  return answer(c, node.id);
}

// A question that is sent while an answer is written waits for its end.
function wait(text, files) {
  const before = chat.next, mine = chat;
  chat.next = {text: [before?.text, text].filter(Boolean).join('\n\n'), files: [...before?.files ?? [], ...files]};
  sayUndo('This is asked when the answer is complete.', () => takeBack(mine));
}

// It goes back into the field.
function takeBack(c) {
  if (c !== chat || !c.next) return;
  const {text, files} = c.next;
  delete c.next;
  input.value = [text, input.value].filter(Boolean).join('\n\n');
  setFiles([...files, ...attached()]);
  grow();
  keepDraft();
}

// An answer has ended; one that was stopped, or failed, or calls tools, is not what the question waited for.
function askNext(c) {
  if (!c.next || runOf(c)) return;
  const last = c.nodes.get(c.leaf), {text, files} = c.next;
  if (!last || last.error || last.stats?.finish === 'stopped' || last.calls?.length) { takeBack(c); return; }
  delete c.next;
  if (c === chat) keepDraft();
  ask(text, files, c.leaf, c);
}

async function submit() {
  const text = input.value.trim();
  if (isReading()) { say('A file is still being read.'); return; }
  if (!text && !attached().length) return;
  if (!chat.nodes) { say('The conversation is still being read.'); return; }
  const files = attached();
  input.value = '';
  setFiles([]);
  grow();
  if (runOf(chat)) wait(text, files);
  else ask(text, files);
  keepDraft();
  showRun();
}

function edit(view) {
  if (busy()) return;
  const n = view.node, mine = n.role === 'user';
  const close = () => { editor.drop(); input.focus({preventScroll: true}); }; // first: the caret must not be in what goes
  const leave = () => { close(); views.delete(n.id); view.drop(); stick = false; showMessages(); };
  const send = () => {
    const text = editor.value.trim();
    if (!text && !(mine && n.files?.length)) return;
    close();
    if (mine) ask(text, n.files ?? [], n.parent);
    else {
      const node = add(chat, {role: 'assistant', parent: n.parent, content: text, reasoning: n.reasoning, model: n.model, stats: {finish: n.stats?.finish}, edited: true});
      saveNode(chat, node);
      stick = false;
      showMessages();
    }
  };
  const keys = e => {
    if (e.key === 'Escape') { e.stopPropagation(); leave(); }
    if (mine && sends(e) && !keepButton.disabled) { e.preventDefault(); send(); }
  };
  const keepButton = button(mine ? 'Send as a new version' : 'Keep as a new version', send, {className: 'main'});
  const acts = el('div', {className: 'acts'}, keepButton, button('Cancel', leave, {className: ''}));
  for (const e of view.root.children) if (e !== view.who) e.className = 'leaving'; // cheaper than to take it away at once
  const editor = new Editor(mine ? 'Edit the question' : 'Edit the answer', n.content,
    {props: {onkeydown: keys}, root: $('log'), ready: yes => { keepButton.disabled = !yes; }});
  view.root.append(editor.box, acts);
  editor.first.focus();
}

const actions = {
  edit,
  regenerate(n) {
    if (busy()) return;
    toTheEnd();
    answer(chat, n.parent);
    $('log').focus({preventScroll: true}); // the button that had it may be gone
  },
  more(n) {
    if (busy()) return;
    toTheEnd();
    answer(chat, n.parent, n);
  },
  version(n, from, d) {
    if (busy() || !n) return;
    chat.leaf = lastLeaf(chat, n.id);
    stick = false;
    saveChat(chat);
    showMessages();
    const b = views.get(n.id)?.root.querySelectorAll('.versions button')[d < 0 ? 0 : 1];
    (b?.disabled ? views.get(n.id).root.querySelector('.versions button:not(:disabled)') : b)?.focus();
  },
  async remove(n) {
    if (busy()) return;
    const gone = below(chat, n.id), leaf = chat.leaf, mine = chat;
    for (const g of gone) mine.nodes.delete(g.id);
    const siblings = families(mine).get(n.parent ?? null);
    mine.leaf = siblings?.length ? lastLeaf(mine, siblings.at(-1).id) : n.parent ?? null;
    stick = false;
    showMessages();
    await write([...gone.map(g => ['messages', g.id, true]), ['chats', meta(mine)]]);
    tell({chat: mine.id, ids: gone.map(g => g.id)});
    sayUndo(gone.length > 1 ? `${gone.length} messages are deleted.` : 'The message is deleted.', async () => {
      for (const g of gone) mine.nodes.set(g.id, g);
      mine.leaf = leaf;
      await saveNode(mine, ...gone);
      if (mine === chat) showMessages();
    });
    input.focus();
  },
  async fork(n) {
    if (busy()) return;
    const nodes = path(chat, n.id), to = Object.assign(newChat(chat.model), {title: chat.title.slice(0, 190) + ' (copy)', named: true, settings: {...chat.settings}, order: list.topOrder()});
    for (const {run, ...m} of nodes) {
      const node = {...m, id: newId(), chat: to.id, parent: to.leaf};
      to.nodes.set(node.id, node);
      to.leaf = node.id;
    }
    list.addChat(to);
    const kept = saveNode(to, ...to.nodes.values());
    await visit(to);
    say('This is a new conversation with all messages until there.');
    input.focus();
    await kept;
  },
  results(n, texts) { if (!busy()) { toTheEnd(); giveResults(chat, n, texts); } },
};

/* ---- what is being written ---- */

let due = 0;
const dirty = new Set();
function paint(c, node) {
  if (c !== chat) return;
  dirty.add(node.id);
  due ||= setTimeout(() => {
    due = 0;
    for (const id of dirty) views.get(id)?.paint();
    dirty.clear();
    if (stick) toEnd();
  }, 50);
}

function changed(c, node) {
  if (c === chat) showMessages();
  list.showList();
  if (node) showMachine();
}

/* ---- the context, before it is sent ---- */

let measuring = 0;
const measureSoon = () => { clearTimeout(measuring); measuring = setTimeout(measure, 400); };
const bases = new Map(); // leaf: tokens of what is before the question

async function baseOf(mine) {
  const nodes = path(mine), last = nodes.at(-1);
  if (!last) return 0;
  if (last.role === 'assistant' && last.stats?.context) return last.stats.context;
  if (!bases.has(last.id)) {
    if (bases.size > 50) bases.clear();
    const messages = history(nodes), m = chosen(mine);
    bases.set(last.id, messages.length ? (await callJson('v1/chat/completions/input_tokens', {json: {messages, ...(m?.status && {model: m.id})}})).input_tokens : 0);
  }
  return bases.get(last.id);
}

async function measure() {
  const mine = chat, n = contextOf(mine), m = chosen(mine), text = withFiles(input.value.trim(), attached());
  const show = !!n && (!m?.status || m.status.value === 'loaded') && !runOf(mine) && (!!text || mine.nodes?.size > 0);
  if (!show) { $('context').hidden = true; return; }
  try {
    let used = await baseOf(mine);
    if (text.length > 1e6) used += Math.round(text.length / 4);
    else if (text) used += (await callJson('tokenize', {json: {content: text, ...(m.status && {model: m.id})}})).tokens.length + 8;
    if (mine !== chat || runOf(mine)) return;
    $('context').hidden = false;
    $('context-bar').max = n;
    $('context-bar').high = 0.9 * n;
    $('context-bar').value = Math.min(used, n);
    $('context').classList.toggle('error', used >= n);
    $('context-text').textContent = `${used.toLocaleString()} of ${n.toLocaleString()} tokens` + (used >= n ? ': this does not fit' : '');
  } catch { $('context').hidden = true; }
}

/* ---- other tabs ---- */

async function forget(c) {
  list.chats.splice(list.chats.indexOf(c), 1);
  if (c === chat) await open(list.chats[0] ?? fresh());
  list.showList();
}

// Another tab deletes a conversation, and can bring it back with what was written until now.  What this tab was about to
// keep of it is deleted, too.
async function dropped(c) {
  const run = runOf(c);
  c.dropped = true;
  stop(c);
  if (run) write([['messages', run.node.id, true], ['chats', c.id, true]]);
  await forget(c);
}

async function heard(what) {
  if (what.who) { // who writes this answer?
    if ([...list.chats, chat].some(c => runOf(c)?.node.id === what.who)) tell({writes: what.who});
    return;
  }
  if (what.writes) { taken.add(what.writes); return; }
  if (what.gone) {
    const c = list.chats.find(x => x.id === what.gone);
    if (c) await dropped(c);
    return;
  }
  const kept = await oneChat(what.chat);
  let c = list.chats.find(x => x.id === what.chat);
  if (!kept) {
    if (!c || runOf(c)) return;
    await forget(c);
  } else if (!c) list.addChat(c = kept);
  else if (!runOf(c)) Object.assign(c, {title: kept.title, named: kept.named, pinned: kept.pinned, order: kept.order, model: kept.model, settings: kept.settings});
  if (kept && c.nodes) {
    for (const id of what.ids ?? []) {
      if (runOf(c)?.node.id === id) continue;
      const m = await oneMessage(id), old = c.nodes.get(id);
      if (!m) c.nodes.delete(id);
      else if (old) { Object.assign(old, {error: ''}, m); if (!m.run) delete old.run; }
      else c.nodes.set(id, m);
    }
    if (!runOf(c)) {
      mend(c);
      c.leaf = lastLeaf(c, c.leaf);
    }
    if (c === chat && !document.querySelector('.message > .fields')) showMessages();
  }
  list.showList();
}

const taken = new Set(); // answers that other tabs write

// Answers that were being written when the page was left.
async function takeUpAll() {
  const open = list.chats.filter(c => c.running && !runOf(c));
  if (!open.length) return;
  for (const c of open) tell({who: c.running});
  await new Promise(done => setTimeout(done, 250));
  for (const c of open) {
    if (taken.has(c.running)) continue;
    if (!c.nodes) await loadNodes(c);
    takeUp(c);
  }
}

addEventListener('storage', e => {
  if (e.key !== 'ingle.settings') return;
  const now = keep.get('settings', {});
  for (const k of Object.keys(settings)) if (!(k in now)) delete settings[k];
  Object.assign(settings, now);
  showTheme();
});

/* ---- keys, theme, narrow windows ---- */

const coarse = () => matchMedia('(pointer: coarse)').matches;
const startsLine = () => coarse() || !!settings.enterLine; // what Enter does
const sends = e => e.key === 'Enter' && !e.isComposing && (e.ctrlKey || e.metaKey || (!e.shiftKey && !startsLine()));

function showTheme() {
  const system = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
  const theme = settings.theme || system;
  document.documentElement.dataset.theme = theme;
  document.documentElement.style.colorScheme = theme;
  $('theme').textContent = settings.theme ? settings.theme === 'dark' ? 'Dark' : 'Light' : 'System';
  $('theme').title = 'Colours: ' + (settings.theme ? settings.theme : 'as the system has them') + '. Press for the next.';
  $('theme').setAttribute('aria-label', `Colours: ${$('theme').textContent.toLowerCase()}`);
}

function closeList() {
  const was = $('nav').classList.contains('open');
  $('nav').classList.remove('open');
  $('open-list').setAttribute('aria-expanded', 'false');
  return was;
}

function grow() {
  input.style.height = 'auto';
  input.style.height = input.scrollHeight + 2 + 'px';
}

// What is being written stays over a reload of this tab.
function keepDraft() {
  try { sessionStorage.setItem('ingle.draft', [chat.next?.text, input.value].filter(Boolean).join('\n\n')); } catch { /* it is not kept */ }
}

function takeDraft() {
  try { input.value ||= sessionStorage.getItem('ingle.draft') ?? ''; } catch { /* there is none */ }
  grow();
}

const showEnter = () => input.setAttribute('enterkeyhint', startsLine() ? 'enter' : 'send');

function wireInput() {
  showEnter();
  input.oninput = () => { grow(); measureSoon(); keepDraft(); showRun(); };
  input.onkeydown = e => {
    if (sends(e)) { e.preventDefault(); $('form').requestSubmit(); }
    if (e.key === 'ArrowUp' && !input.value) {
      const last = path(chat).findLast(n => n.role === 'user');
      if (last && views.has(last.id)) { e.preventDefault(); edit(views.get(last.id)); }
    }
  };
  $('form').onsubmit = e => { e.preventDefault(); submit(); };
  $('stop').onclick = () => { stop(chat); input.focus(); };
  $('new').onclick = () => { visit(fresh()); input.focus(); };
}

// Whether the list has its place beside the messages; where there is no room it lies over them.
const narrow = () => matchMedia('(max-width: 46rem)').matches;

function showSide(on) {
  const had = $('nav').contains(document.activeElement) || document.activeElement === $('open-list');
  document.body.classList.toggle('no-list', !on);
  $('open-list').setAttribute('aria-expanded', on);
  settings.noList = !on || undefined;
  saveSettings();
  if (had) (on ? $('new') : $('open-list')).focus();
}

// Ctrl and a key (Ctrl, Shift and a key): what it does.
const KEYS = {
  KeyB: () => { $(narrow() ? 'open-list' : document.body.classList.contains('no-list') ? 'open-list' : 'hide-list').click(); },
  KeyK: () => {
    if (getComputedStyle($('nav')).visibility === 'hidden' || document.body.classList.contains('no-list')) $('open-list').click();
    $('search').focus();
  },
};
const SHIFT_KEYS = {
  KeyO: () => $('new').click(),
  KeyE: () => { if (list.chats.includes(chat)) list.openBox(chat); },
  KeyD: () => { if (list.chats.includes(chat)) list.removeChats([chat]); },
};

let lastTop = 0;
function wirePage() {
  for (const type of ['wheel', 'touchmove', 'keydown', 'pointerdown']) addEventListener(type, () => { moved++; }, {passive: true, capture: true});
  if (settings.noList) showSide(false);
  $('theme').onclick = () => {
    settings.theme = {undefined: 'light', light: 'dark', dark: undefined}[settings.theme || undefined];
    saveSettings();
    showTheme();
  };
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', showTheme);
  $('open-settings').onclick = () => openSettings(chat);
  $('settings').addEventListener('close', () => { showMachine(); measureSoon(); showEnter(); });
  $('hide-list').onclick = () => {
    if (closeList()) $('open-list').focus();
    else if (!narrow()) showSide(false);
  };
  $('open-list').onclick = () => {
    if (!narrow()) { showSide(true); return; }
    const on = $('nav').classList.toggle('open');
    $('open-list').setAttribute('aria-expanded', on);
    $('nav').getBoundingClientRect(); // what is hidden takes no focus
    if (on) $('new').focus();
  };
  $('log').addEventListener('scroll', () => { // what grows above the end moves it, too: only upwards is away from it
    const top = $('log').scrollTop;
    if (atEnd()) stick = true;
    else if (top < lastTop) stick = false;
    lastTop = top;
  }, {passive: true});
  document.addEventListener('keydown', e => {
    if (document.querySelector('dialog[open]')) return;
    if (e.key === 'Escape' && !e.isComposing) { if (runOf(chat)) stop(chat); else if (closeList()) $('open-list').focus(); }
    const act = e.altKey ? e.code === 'KeyN' && SHIFT_KEYS.KeyO : (e.ctrlKey || e.metaKey) && (e.shiftKey ? SHIFT_KEYS : KEYS)[e.code];
    if (act) { e.preventDefault(); act(); }
  });
  document.addEventListener('click', e => {
    if ($('nav').classList.contains('open') && !$('nav').contains(e.target) && e.target !== $('open-list') && !e.target.closest('dialog')) closeList();
  });
}

function wireKey() {
  onNeedsKey((why, asked) => {
    if (document.querySelector('dialog[open]') || (sessionLater && !asked)) return;
    $('key-why').textContent = why;
    $('key-field').value = '';
    $('key-box').showModal();
  });
  $('key-later').onclick = () => { sessionLater = true; $('key-box').close(); };
  $('key-box').addEventListener('close', () => {
    const key = $('key-field').value.trim();
    if (!key) return;
    settings.key = key;
    saveSettings();
    showMachine();
    takeUpAll();
    const last = path(chat).at(-1);
    if (last && isEmpty(last) && last.error && !last.unread && !runOf(chat)) answer(chat, last.parent, last); // the question that asked for it
  });
}
let sessionLater = false;

/* ---- the start ---- */

// /?q=... asks at once, as the search of a browser does it; with &model=... that model of a router.
async function askFromAddress() {
  const asked = new URLSearchParams(location.search), q = asked.get('q'), model = asked.get('model');
  if (q === null) return;
  window.history.replaceState(null, '', location.pathname);
  if (!q.trim()) return;
  if (q.length > 100000) { say('The question in the address is too long.'); return; }
  const mine = chat;
  if (model) chat.model = model;
  await showMachine(); // which models there are
  if (chat === mine && !runOf(chat)) ask(q.trim());
}

function sayBuild() {
  const plain = isPlain(), broken = plain && libraries.markdown && libraries.purify;
  $('build').hidden = !missing && !plain;
  $('build').textContent = (plain ? 'Answers are shown as plain text and code. ' : '') + (broken ? 'DOMPurify does not work here. ' : '') + (missing ? `This build lacks ${missing}.` : '');
}

async function start() {
  showTheme();
  initUndo();
  wireInput();
  wirePage();
  wireKey();
  onReads(() => chosen(chat)?.meta ? chosen(chat).architecture?.input_modalities ?? ['text'] : ['text', 'image', 'audio']); initFiles();
  onFiles(measureSoon);
  initViews(actions);
  initSettings(saveChatIfKept, () => { // questions are shown in the other way
    for (const v of views.values()) v.drop();
    views.clear();
    showMessages();
  });
  initAnswers({changed, paint, say: (text, c) => { if (c === chat && !isLost()) say(text); askNext(c); }}); // that something is not kept stays on the screen
  initModels(() => chat, measureSoon, id => {
    chat.model = id;
    saveChatIfKept(chat);
  }, text => {
    const run = runOf(chat);
    if (!run?.phase || run.node.content || run.node.reasoning) return;
    run.phase = text;
    paint(chat, run.node);
  });
  list.initList({current: () => chat, open, visit, fresh: () => newChat(), renamed: c => { if (c === chat) showMessages(); }});
  onSettled(() => { if (stick) toEnd(); });
  showMachine();
  await openStore(what => heard(what).catch(() => {}), say);
  await Promise.all([loadLibraries(), list.readChats()]);
  sayBuild();
  const query = new URLSearchParams(location.search).has('q');
  if (query || !list.chats.length) await open(newChat());
  else if (location.hash) await openAddress();
  else await open(list.chats[0]);
  addEventListener('popstate', openAddress);
  takeUpAll();
  takeDraft();
  askFromAddress();
  input.focus();
  window.ingle.ready = true;
}

// A conversation is kept from its first question on.
function saveChatIfKept(c) {
  if (list.chats.includes(c)) saveChat(c);
}

// For scripts: ingle.tool('name', async arguments => result) runs a tool of the model's calls.
window.ingle = {tool: setTool, ask: text => ask(text), addFiles, View, isIdle, isRouter, get chat() { return chat; }, show: showMessages, add: props => add(chat, props), ready: false};
start();
