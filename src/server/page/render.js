// Shows answers: a worker makes their markup block by block (render_worker.js), this cleans it and puts it in place, a
// few milliseconds at a time.  A finished block is never touched again.
import {libraries} from './build.js';
import {el, button, copyText, rest} from './dom.js';

const SLICE = 8;        // milliseconds at a time
const PATIENCE = 1500;  // milliseconds that the worker may take for a block
const PART = 30, PART_BYTES = 6000; // blocks and their text that are laid out together
const PIECE = 4096;     // characters of plain text in one box

/* ---- what may come in ---- */

const TAGS = ['p', 'br', 'hr', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'ul', 'ol', 'li', 'blockquote', 'pre', 'code', 'span', 'em', 'strong', 's', 'a', 'div',
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
    if (node.tagName !== 'A') return;
    node.setAttribute('target', '_blank');
    node.setAttribute('rel', 'noopener noreferrer nofollow');
    if (node.getAttribute('href')) node.setAttribute('title', node.getAttribute('href'));
  });
  try { // one that does not work is none
    const made = el('div', {}, clean('<p class="a"><a href="javascript:1">b</a><img alt="x"><u id="x"></u></p>'));
    if (made.innerHTML !== '<p class="a"><a target="_blank" rel="noopener noreferrer nofollow">b</a></p>') throw new Error(made.innerHTML);
  } catch (e) {
    console.warn('DOMPurify does not work:', e);
    purify = null;
  }
}

export const isPlain = () => !purify;

function clean(html) {
  if (html.includes('class="katex') && !document.getElementById('katex-style'))
    document.head.append(el('link', {id: 'katex-style', rel: 'stylesheet', href: 'page/katex.css'}));
  return purify.sanitize(html, {ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ATTRIBUTES, ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false,
    ALLOWED_URI_REGEXP: /^https?:\/\//i, ADD_URI_SAFE_ATTR: ATTRIBUTES.filter(a => a !== 'href'), RETURN_DOM_FRAGMENT: true});
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

// The block takes too long, or the worker failed at it: another worker, and this block as plain text.
function gaveUp() {
  clearTimeout(watch);
  worker?.terminate();
  worker = null;
  const v = asked;
  asked = null;
  for (const other of views.values()) if (other !== v && !other.done) other.restart();
  if (v) {
    v.bad.push(v.at);
    if (v.bad.length > 20) v.plain = true;
    v.restart();
  }
  next();
}

function heard(m) {
  const v = views.get(m.number);
  if (!m.ops) {
    if (v) v.at = m.at;
    clearTimeout(watch);
    watch = setTimeout(gaveUp, PATIENCE);
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
  if (!worker) startWorker();
  asked = v;
  watch = setTimeout(gaveUp, PATIENCE);
  if (!v.begun) worker.postMessage({begin: v.number, bad: v.bad});
  v.begun = true;
  const text = v.text.slice(v.sent, v.sent + 65536);
  v.sent += text.length;
  worker.postMessage({number: v.number, text, end: v.ended && v.sent === v.text.length});
}

/* ---- slices of work on the page ---- */

const jobs = [];
let running = false;
let settled = () => {};
export const onSettled = fn => { settled = fn; };

async function run() {
  if (running) return;
  running = true;
  let from = performance.now();
  while (jobs.length) {
    try { jobs.shift()(); } catch (e) { console.warn(e); }
    if (performance.now() - from < SLICE) continue;
    settled();
    if (!document.hidden) await new Promise(requestAnimationFrame);
    await rest();
    from = performance.now();
  }
  running = false;
  settled();
}
export function job(fn) {
  jobs.push(fn);
  run();
}

// Whether nothing is left to be shown (for the tests).
export const isIdle = () => !running && !asked && !waiting.length;

/* ---- plain text in boxes, so that no box is too much for one frame ---- */

// Where the text may be cut: at the end of a line, else of a word.
export function pieces(text) {
  const out = [];
  for (let at = 0; at < text.length;) {
    let end = Math.min(text.length, at + PIECE);
    if (end < text.length) {
      const line = text.lastIndexOf('\n', end), word = text.lastIndexOf(' ', end);
      if (line > at + PIECE / 2) end = line + 1;
      else if (word > at + PIECE / 2) end = word + 1;
      else if (/[\ud800-\udbff]/.test(text[end - 1])) end--;
    }
    out.push(text.slice(at, end));
    at = end;
  }
  return out;
}

const RTL = /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Adlam}]/u;
const direction = text => RTL.test(/\p{L}/u.exec(text)?.[0] ?? '') ? 'rtl' : '';

export function plainText(box, text) {
  if (box.wanted === text) return;
  box.wanted = text;
  syncPlain(box, pieces(text), 0, 2);
}

// Boxes from number `at` on: `n` now, the others in their turn, unless the text is another one by then.
function syncPlain(box, list, at, n) {
  for (const end = Math.min(list.length, at + n); at < end; at++) {
    const piece = list[at], old = box.children[at];
    const shown = list.length > 1 && piece.endsWith('\n') ? piece.slice(0, -1) : piece;
    if (old?.textContent === shown) continue;
    const node = el('div', {className: 'plain-text' + (piece.length > 1500 ? ' big' : ''), textContent: shown, dir: direction(shown)});
    if (old) old.replaceWith(node);
    else box.append(node);
  }
  if (at < list.length) {
    const wanted = box.wanted;
    job(() => { if (box.wanted === wanted) syncPlain(box, list, at, 4); });
  } else while (box.children.length > list.length) box.lastChild.remove();
}

/* ---- one answer ---- */

export class View {
  constructor(box) {
    this.box = box;
    this.number = ++numbers;
    this.text = '';
    this.bad = [];
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
      this.restart(false);
    }
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
    for (const op of m.ops) job(() => { if (round === this.round) this.put(op); });
    if (m.more || this.sent < this.text.length) this.want();
    else if (this.ended) {
      this.done = true;
      if (!this.text) job(() => this.box.replaceChildren());
      worker.postMessage({drop: this.number});
      this.begun = false;
    }
  }

  put(op) {
    if (op.op === 'prose') this.putProse(op);
    else if (op.op === 'code') this.place(op.i, codeBlock(op.lang));
    else {
      const b = this.blocks[op.i];
      if (op.op === 'chunk') {
        b.addLines(op.html !== undefined && purify ? el('span', {className: 'lines'}, clean(op.html)) : el('span', {className: 'lines', textContent: op.text}), op.text);
      } else b.setTail(op.text);
    }
  }

  place(i, node) {
    if (this.blocks[i]) this.blocks[i].replaceWith(node);
    else {
      if (!i || this.inPart >= PART || this.partBytes > PART_BYTES) { // one out of sight is not laid out
        this.box.append(el('div', {className: 'part'}));
        this.inPart = this.partBytes = 0;
      }
      this.inPart++;
      this.box.lastChild.append(node);
    }
    this.partBytes += node.textContent.length;
    this.blocks[i] = node;
  }

  putProse(op) {
    const node = el('div', {className: 'block' + (op.more ? ' more' : '')});
    if (op.html !== undefined && purify) node.append(clean(op.html));
    else plainText(node, (op.text ?? '').replace(/\n+$/, ''));
    this.place(op.i, node);
  }

  drop() {
    views.delete(this.number);
    if (worker && this.begun) worker.postMessage({drop: this.number});
  }
}

// A block of code that grows: lines that are complete, and the last one.
function codeBlock(lang) {
  let raw = '', tail = '';
  const code = el('code'), last = el('span', {className: 'lines'});
  const copy = button('Copy', () => copyText((raw + tail).replace(/\n$/, ''), copy), {aria: 'Copy code'});
  const pre = el('pre', {tabIndex: 0}, code);
  pre.setAttribute('role', 'group');
  pre.setAttribute('aria-label', (lang || 'code') + ' block');
  code.append(last);
  const box = el('div', {className: 'code', dir: 'ltr'}, el('div', {className: 'bar'}, el('span', {textContent: lang}), copy), pre);
  box.addLines = (node, text) => {
    raw += text;
    if (text.length > 1500) node.classList.add('big');
    last.before(node);
  };
  box.setTail = text => {
    tail = text;
    last.textContent = text;
  };
  return box;
}
