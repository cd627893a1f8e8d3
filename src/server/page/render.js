// Shows answers: a worker makes their markup block by block (render_worker.js), this cleans it and puts it in place, a
// few milliseconds at a time.  A finished block is never touched again.
import {libraries} from './build.js';
import {el, button, copyText, rest} from './dom.js';

const SLICE = 8;        // milliseconds at a time
const PATIENCE = 10000; // milliseconds that the worker may take for a block, on a busy machine, too
const START = 60000;    // and to begin: it reads the libraries
const PART_LINES = 40, PART_WEIGHT = 400; // what is laid out together; a weight is about that of so many elements
const CHAPTER = 30;     // parts that are out of sight together
const DENSE = 8;        // weight of a line, from which on a part waits for its turn to be laid out
const FREE = 600;       // weight of such parts of one answer that do not wait
const FRAME = 250;      // weight of what one frame lays out for the first time
const PIECE = 4096, PIECE_WEIGHT = 300; // characters and weight of plain text in one box

/* ---- what may come in ---- */

const TAGS = ['p', 'br', 'hr', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'ul', 'ol', 'li', 'blockquote', 'pre', 'code', 'span', 'sup', 'em', 'strong', 's', 'a', 'div',
  'table', 'thead', 'tbody', 'tr', 'th', 'td', 'math', 'semantics', 'annotation', 'mrow', 'mi', 'mo', 'mn', 'ms', 'mtext', 'mspace', 'mover', 'munder',
  'munderover', 'msup', 'msub', 'msubsup', 'mfrac', 'msqrt', 'mroot', 'mtable', 'mtr', 'mtd', 'mstyle', 'mpadded', 'mphantom', 'menclose', 'svg', 'path',
  'line', 'g'];
const ATTRIBUTES = ['href', 'title', 'class', 'style', 'dir', 'start', 'tabindex', 'role', 'aria-label', 'aria-hidden', 'xmlns', 'display', 'mathvariant',
  'encoding', 'stretchy', 'fence', 'separator', 'lspace', 'rspace', 'minsize', 'maxsize', 'width', 'height', 'depth', 'voffset', 'scriptlevel',
  'displaystyle', 'columnalign', 'rowalign', 'rowspacing', 'columnspacing', 'columnlines', 'rowlines', 'accent', 'accentunder', 'linethickness',
  'movablelimits', 'notation', 'mathcolor', 'mathbackground', 'viewBox', 'preserveAspectRatio', 'd', 'x1', 'x2', 'y1', 'y2', 'stroke-width'];
let purify = null;

export async function loadLibraries() {
  if (!libraries.markdown || !libraries.purify) return;
  await new Promise(done => {
    const s = el('script', {src: 'page/purify.js', onload: done, onerror: done});
    document.head.append(s);
  });
  // Debian 12's package (2.4.1, deb12u1) looks at a variable that it does not have; with this one the check, which is
  // of the whole document, finds nothing. Each node of it is checked in any case.
  self.shadowNode ??= {__depth: 0};
  purify = self.DOMPurify?.isSupported ? self.DOMPurify : null;
  purify?.addHook('afterSanitizeAttributes', node => {
    if (node.tagName !== 'A' || !node.getAttribute('href')) return;
    node.setAttribute('target', '_blank');
    node.setAttribute('rel', 'noopener noreferrer nofollow');
    node.setAttribute('title', node.getAttribute('href'));
  });
  purify?.setConfig({ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ATTRIBUTES, ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false,
    ALLOWED_URI_REGEXP: /^https?:\/\//i, ADD_URI_SAFE_ATTR: ATTRIBUTES.filter(a => a !== 'href'), RETURN_DOM_FRAGMENT: true});
  try { // one that does not work is none
    const made = el('div', {}, clean('<p class="a"><a href="javascript:1">b</a><img alt="x"><u id="x"></u></p>'));
    if (made.innerHTML !== '<p class="a"><a>b</a></p>') throw new Error(made.innerHTML);
  } catch (e) {
    console.warn('DOMPurify does not work:', e);
    purify = null;
  }
}

export const isPlain = () => !purify;

function clean(html) {
  if (html.includes('class="katex') && !document.getElementById('katex-style'))
    document.head.append(el('link', {id: 'katex-style', rel: 'stylesheet', href: 'page/katex.css'}));
  return purify.sanitize(html);
}

// Formulas come again with each piece of a growing block: a clean one is kept.
const formulas = new Map();
function cleanFormula(html) {
  let kept = formulas.get(html);
  if (!kept) {
    if (formulas.size >= 200) formulas.delete(formulas.keys().next().value);
    formulas.set(html, kept = clean(html));
  }
  return kept.cloneNode(true);
}

/* ---- the worker ---- */

let worker = null, numbers = 0, watch = 0;
const views = new Map();   // number: View
const waiting = [];        // views that want the worker, in order
let asked = null;          // the one that has it

function startWorker() {
  worker = new Worker('page/render_worker.js');
  worker.onmessage = e => heard(e.data);
  worker.onerror = e => { e.preventDefault(); gaveUp(); };
  worker.postMessage({have: {markdown: libraries.markdown && !!purify, purify: !!purify, highlight: libraries.highlight, katex: libraries.katex}});
  for (const v of views.values()) v.begun = false;
}

const patience = v => v?.slow.size ? 3 * PATIENCE : PATIENCE;

// A page that could not run for some time has not heard the worker either: then it waits once more.
function waitFor(ms) {
  clearTimeout(watch);
  const end = performance.now() + ms;
  watch = setTimeout(() => performance.now() > end + 500 ? waitFor(ms) : gaveUp(), ms);
}

// The block takes too long, or the worker failed at it: another worker, and this block as plain text.
// A busy machine is slow, too: the first time the block has one more chance, with more time.
function gaveUp() {
  clearTimeout(watch);
  worker?.terminate();
  worker = null;
  const v = asked;
  asked = null;
  for (const other of views.values()) if (other !== v && !other.done) other.restart();
  if (v) {
    if (v.slow.has(v.at)) v.bad.push(v.at);
    v.slow.add(v.at);
    if (v.bad.length > 8 || v.slow.size > 16) v.plain = true;
    v.restart();
  }
  next();
}

function heard(m) {
  const v = views.get(m.number);
  if (!m.ops) {
    if (v && m.at !== undefined) v.at = m.at;
    waitFor(patience(v));
    return;
  }
  clearTimeout(watch);
  asked = null;
  if (v) v.got(m);
  next();
}

function next() {
  if (asked || !waiting.length) return;
  const v = waiting.shift();
  v.queued = false;
  if (!views.has(v.number)) { next(); return; }
  const starts = !worker;
  if (starts) startWorker();
  asked = v;
  waitFor(starts ? START : patience(v));
  if (!v.begun) worker.postMessage({begin: v.number, bad: v.bad, links: v.links});
  v.begun = true;
  const text = v.text.slice(v.sent, v.sent + 65536);
  v.sent += text.length;
  worker.postMessage({number: v.number, text, end: v.ended && v.sent === v.text.length});
}

/* ---- slices of work on the page ---- */

const jobs = [];
let running = false, full = false; // full: no more work before the next frame
let fresh = 0;                     // weight of what the next frame lays out
let settled = () => {};
export const onSettled = fn => { settled = fn; };

async function run() {
  await rest(); // never within the task that brings the jobs: it may bring many
  let from = performance.now();
  while (jobs.length) {
    try { jobs.shift()(); } catch (e) { console.warn(e); }
    if (performance.now() - from < SLICE && !full) continue;
    full = false;
    fresh = 0;
    if (!document.hidden) await new Promise(requestAnimationFrame);
    settled(); // with the layout of this frame
    await rest();
    from = performance.now();
  }
  running = false;
  if (document.hidden) settled();
  else requestAnimationFrame(settled);
}

export function job(fn) {
  jobs.push(fn);
  if (!running) run();
  running = true;
}

// Something was put in place: to lay it out may take longer than to make it.
function laysOut(weight) {
  fresh += weight;
  if (fresh > FRAME) full = true;
}

// The same for what the browser has to lay out: no more before the next frame.
export const frameJob = fn => job(() => { fn(); full = true; });

// Whether nothing is left to be shown (for the tests).
export const isIdle = () => !running && !asked && !waiting.length;

/* ---- parts that wait for their turn ---- */

// Where little height holds much to lay out (formulas, tables, letters with many marks), a part has no layout until it
// comes near: then one after the other, as many as a slice has time for.  The browser's search finds it in any case.
const nearby = new Set();
const canWait = 'onbeforematch' in document.documentElement && 'IntersectionObserver' in self;
const eye = canWait && new IntersectionObserver(list => {
  for (const e of list) {
    if (!e.isIntersecting) {
      nearby.delete(e.target);
      if (e.target.isConnected) e.target.hidden = 'until-found';
      else eye.unobserve(e.target);
    } else if (e.target.hidden && !nearby.has(e.target)) {
      nearby.add(e.target);
      job(() => layOut(e.target));
    }
  }
}, {root: document.getElementById('log'), rootMargin: '300px 0px'});

function layOut(node) {
  if (!nearby.delete(node)) return;
  node.hidden = false;
  full = true;
}

// owner: what the part belongs to; seen: the part is on the screen already.
function mayWait(owner, node, lines, weight, seen = false) {
  node.style.containIntrinsicSize = `auto ${Math.max(1.6, 1.6 * Math.ceil(lines))}em`;
  if (!canWait || node.waits || weight < DENSE * Math.max(1, lines)) return;
  owner.dense = (owner.dense ?? 0) + weight;
  if (owner.dense < FREE) return;
  node.waits = true;
  if (!seen) node.hidden = 'until-found';
  eye.observe(node);
}

/* ---- plain text in boxes, so that no box is too much for one frame ---- */

const RTL = /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Adlam}]/u;
const RUN = /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Adlam}\u202a-\u202e\u2066-\u2069][^\p{Script=Latin}\n\u202a-\u202e\u2066-\u2069]*/gu;
const direction = text => RTL.test(/\p{L}/u.exec(text)?.[0] ?? '') ? 'rtl' : '';

// As in render_worker.js.
function weightOf(text) {
  let n = text.length / 60;
  if (/[^\x00-\xff]/.test(text)) n += (text.match(/[\p{M}\p{Cf}]/gu) ?? []).length / 4 + (text.match(RUN) ?? []).length;
  return n;
}

// Where a piece ends: at the end of a line, else of a word.
export function pieceEnd(text, at, size = PIECE) {
  while (size > 64 && weightOf(text.slice(at, at + size)) > PIECE_WEIGHT) size >>= 1;
  const end = Math.min(text.length, at + size);
  if (end === text.length) return end;
  const line = text.lastIndexOf('\n', end), word = text.lastIndexOf(' ', end);
  if (line > at + size / 2) return line + 1;
  if (word > at + size / 2) return word + 1;
  return /[\ud800-\udbff]/.test(text[end - 1]) ? end - 1 : end;
}

// The text of a box, which may have grown: then all its boxes but the last one stay.
export function plainText(box, text) {
  if (box.wanted === text) return;
  if (box.wanted === undefined || !text.startsWith(box.wanted)) {
    box.replaceChildren();
    box.at = box.last = 0;
  } else if (box.lastChild) {
    box.lastChild.remove();
    box.at = box.last;
  }
  box.wanted = text;
  fillPlain(box, 2);
}

// n boxes now, the others in their turn.
function fillPlain(box, n) {
  const text = box.wanted;
  for (; n > 0 && box.at < text.length; n--) {
    const end = pieceEnd(text, box.at), piece = text.slice(box.at, end), lines = piece.split('\n').length + piece.length / 100;
    const shown = (box.at || end < text.length) && piece.endsWith('\n') ? piece.slice(0, -1) : piece, weight = weightOf(piece);
    const node = el('div', {className: 'plain-text' + (lines > 12 || weight > 100 ? ' big' : ''), textContent: shown, dir: direction(shown)});
    mayWait(box, node, lines, weight);
    box.append(node);
    box.last = box.at;
    box.at = end;
  }
  if (box.at >= text.length || box.filling) return;
  box.filling = true;
  job(() => { box.filling = false; fillPlain(box, 4); });
}

/* ---- away ---- */

// Takes an element off the page; a large one leaves in pieces.
export function discard(node) {
  const inner = [...node.querySelectorAll('.part, .big, .field')];
  if (inner.length < 8) { node.remove(); return; }
  node.className = 'leaving';
  node.removeAttribute('id');
  const step = () => {
    const e = inner.pop();
    if (!e) { node.remove(); return; }
    eye?.unobserve(e);
    e.remove();
    job(step);
  };
  job(step);
}

/* ---- one answer ---- */

export class View {
  constructor(box) {
    this.box = box;
    this.number = ++numbers;
    this.text = '';
    this.bad = [];         // offsets of blocks that are plain text
    this.slow = new Set(); // and of those that took too long once
    this.plain = false;
    this.restart(false);
    views.set(this.number, this);
  }

  restart(want = true) {
    this.sent = 0;
    this.at = 0;
    this.begun = this.ended = this.done = this.more = false;
    this.fresh = true; // the first answer replaces what is there
    this.round = (this.round ?? 0) + 1;
    this.blocks = [];
    if (this.whole) this.ended = true;
    if (want) this.want();
  }

  // Definitions of links stand at the end: they are looked for when all is there, and if some were missing before, the
  // text is shown once more.
  lookForLinks(again) {
    this.links = [];
    for (const m of this.text.matchAll(/^ {0,3}\[([^\]\n^][^\]\n]{0,100})\]: {0,9}<?(https?:\/\/[^\s>]{1,2000})/gmi)) if (this.links.push([m[1], m[2]]) >= 500) break;
    if (again && this.links.length) this.restart(false);
  }

  // The text so far; whole: no more of it comes.
  set(text, whole) {
    if (text === this.text && whole === this.whole) return;
    const grows = text.startsWith(this.text) && !this.ended;
    this.text = text;
    this.whole = whole;
    if (!grows && (this.sent || this.begun)) {
      if (worker) worker.postMessage({drop: this.number});
      views.delete(this.number);
      this.number = ++numbers;
      views.set(this.number, this);
      this.bad = [];
      this.slow.clear();
      this.restart(false);
    }
    if (whole) this.lookForLinks(this.begun || this.sent > 0);
    this.ended = whole;
    this.done = false;
    this.want();
  }

  want() {
    if (this.plain || typeof Worker === 'undefined') {
      job(() => plainText(this.box, this.text));
      return;
    }
    if (this.queued || asked === this) return;
    this.queued = true;
    waiting.push(this);
    next();
  }

  got(m) {
    const round = this.round;
    if (this.fresh && m.ops.length) {
      this.fresh = false;
      job(() => { if (round === this.round) this.box.replaceChildren(); });
    }
    for (const op of m.ops) this.take(op, fn => job(() => { if (round === this.round) fn(); }));
    if (m.more || this.sent < this.text.length) this.want();
    else if (this.ended) {
      this.done = true;
      if (!this.text) job(() => this.box.replaceChildren());
      worker.postMessage({drop: this.number});
      this.begun = false;
    }
  }

  // later(fn): fn in its turn.  A formula is one turn; the block is placed when it has them all.
  take(op, later) {
    let node;
    if (op.op === 'prose') {
      later(() => { node = this.prose(op); });
      for (const f of purify ? op.formulas ?? [] : []) later(() => node.querySelector('.todo').replaceWith(cleanFormula(f)));
      later(() => this.place(op.i, node, op.lines, op.n));
    } else later(() => this.put(op));
  }

  put(op) {
    if (op.op === 'code') { this.place(op.i, codeBlock(op.lang), 3, 12); return; }
    const b = this.blocks[op.i];
    if (op.op !== 'chunk') { b.setTail(op.text); return; }
    b.addLines(op.html !== undefined && purify ? el('span', {className: 'lines'}, clean(op.html)) : el('span', {className: 'lines', textContent: op.text}), op);
    this.partLines += op.lines;
    this.partWeight += Math.min(op.n, 100);
    laysOut(op.n);
  }

  prose(op) {
    const node = el('div', {className: 'block' + (op.more ? ' more' : '')});
    if (op.html !== undefined && purify) node.append(clean(op.html));
    else {
      const box = el('div');
      node.append(box);
      plainText(box, (op.text ?? '').replace(/\n+$/, ''));
    }
    if (op.late) node.append(el('p', {className: 'note', textContent: 'Shown as it is: to format this part takes too long.'}));
    return node;
  }

  place(i, node, lines, weight) {
    const old = this.blocks[i];
    this.blocks[i] = Object.assign(node, {lines, weight});
    laysOut(weight);
    if (old) {
      old.replaceWith(node);
      this.partLines += lines - old.lines;
      this.partWeight += weight - old.weight;
    } else if (i && this.partLines + lines < PART_LINES && this.partWeight + weight < PART_WEIGHT) {
      this.part.append(node);
      this.partLines += lines;
      this.partWeight += weight;
    } else { // one out of sight is not laid out
      this.part = el('div', {className: 'part'}, node);
      this.partLines = lines;
      this.partWeight = weight;
      mayWait(this, this.part, lines, weight);
      if (!i || this.chapter.children.length >= CHAPTER) this.box.append(this.chapter = el('div', {className: 'chapter'}));
      this.chapter.append(this.part);
      return;
    }
    mayWait(this, this.part, this.partLines, this.partWeight, true);
  }

  drop() {
    views.delete(this.number);
    if (worker && this.begun) worker.postMessage({drop: this.number});
  }
}

// From the number of a note to the note, and from there to the first such number in the answer.
export function followNote(e) {
  const from = e.target.closest?.('a.note');
  if (!from || (e.type === 'keydown' && e.key !== 'Enter')) return;
  e.preventDefault();
  const below = from.classList.contains('below');
  for (const a of from.closest('.text').querySelectorAll('a.note')) {
    if (a.textContent !== from.textContent || a.classList.contains('below') === below) continue;
    for (let box = a; (box = box.closest('[hidden]')); ) box.hidden = false;
    a.scrollIntoView({block: 'center'});
    a.focus();
    return;
  }
}

// Shows a document in a frame that can reach neither the page nor, by its policy (page.c), any address; again: away.
function preview(b, pre, lang, text) {
  const old = pre.parentNode.querySelector('.preview');
  b.textContent = old ? 'Preview' : 'Close';
  b.setAttribute('aria-label', old ? 'Preview' : 'Close the preview');
  if (old) { old.remove(); return; }
  const frame = el('iframe', {className: 'preview', src: 'page/preview.html', title: `Preview of ${lang}`});
  frame.setAttribute('sandbox', 'allow-scripts');
  frame.addEventListener('load', () => frame.contentWindow.postMessage(text, '*'), {once: true});
  pre.before(frame);
}

// A block of code that grows: lines that are complete, and the last one.
function codeBlock(lang) {
  let raw = '', tail = '', group = null;
  const code = el('code'), last = el('span', {className: 'lines'});
  const copy = button('Copy', () => copyText((raw + tail).replace(/\n$/, ''), copy), {aria: 'Copy code'});
  const pre = el('pre', {tabIndex: 0}, code);
  pre.setAttribute('role', 'group');
  pre.setAttribute('aria-label', (lang || 'code') + ' block');
  code.append(last);
  const bar = el('div', {className: 'bar'}, el('span', {textContent: lang}), copy), box = el('div', {className: 'code', dir: 'ltr'}, bar, pre);
  if (/^(x?html?|svg)$/i.test(lang)) copy.before(button('Preview', b => preview(b, pre, lang, raw + tail), {aria: 'Preview'}));
  box.addLines = (node, op) => {
    raw += op.text;
    if (op.lines > 12 || op.n > 25) {
      node.classList.add('big');
      mayWait(box, node, op.lines, op.n);
    }
    if (!group || group.children.length >= CHAPTER) last.before(group = el('span', {className: 'chapter'}));
    group.append(node);
  };
  box.setTail = text => {
    tail = text;
    last.textContent = text;
  };
  return box;
}
