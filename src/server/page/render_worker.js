// Makes markup of answers, away from the page: whatever it takes, the page goes on.
//
// A text comes in pieces.  What is complete (a paragraph, a list, a line of code) is given out once and never looked at
// again; the unfinished end is given out anew with each piece.  Bounds: a block of prose has BLOCK bytes, a piece of code
// CHUNK, either LINES lines and ELEMENTS elements; what is larger is cut, what has a hostile shape is plain text.  A block
// of code has colours for COLOURED bytes or COLOURS elements.
// Formulas are given out beside the markup of their block, so that the page can take one at a time.  The page ends
// this worker when a block takes too long, and starts another one that shows that block as plain text ("bad").
'use strict';
/* global markdownit, hljs, katex */

const BLOCK = 4096, CHUNK = 1024, CHUNK_LINES = 50, LONG_LINE = 2048, MARKUP = 32768, LINE = 2000, LINES = 100, LIST_LINES = 40, COLOURED = 262144, COLOURS = 60000;
const ELEMENTS = 500;  // of a block, and of one formula
const SPANS = 120;     // of lines of code that go together
const FORMULAS = 500;  // elements of the formulas of a block, if it has several
const HEAVY = 400;     // weight (below) of a block
const SHORT = 400;   // characters that are halved between paragraphs only,
const RICH = 5000;   // and only in the first so many elements of a text: then MathML is good enough
const SMALL = 1200, SMALL_LINES = 30; // blocks up to this size go together
let have = {};
const texts = new Map(); // number: state

const FENCE = /^ {0,3}(`{3,}|~{3,}) {0,8}([^`\n]{0,80})$/;
const ITEM = /^ {0,200}(?:[-*+]|\d{1,9}[.)])(?: |$)/;

function library(name) {
  if (have[name] === true) {
    importScripts({highlight: 'highlight.js', katex: 'katex.js', markdown: 'markdown-it.js'}[name]);
    have[name] = 'here';
    postMessage({}); // the time for it is not that of the block
  }
  return have[name] === 'here';
}

/* ---- prose ---- */

let md = null, mode = 'htmlAndMathml', coloured = true, formulas = [], inFormulas = 0, tooMany = false;

const escape = s => s.replace(/[&<>"]/g, c => ({'&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;'})[c]);

const elements = html => (html.match(/<[a-z]/g) ?? []).length;

// What a text costs to be laid out, in elements: marks that stand over letters, letters without a width (other fonts have
// them, so each ends a run), and changes of the direction cost most.
const RUN = /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Adlam}\u202a-\u202e\u2066-\u2069][^\p{Script=Latin}\n\u202a-\u202e\u2066-\u2069]*/gu;
function weight(text) {
  let n = text.length / 60;
  if (/[^\x00-\xff]/.test(text)) n += (text.match(/[\p{M}\p{Cf}]/gu) ?? []).length / 4 + (text.match(RUN) ?? []).length;
  return n;
}

// One formula, or the text that it was written as.
function formula(tex, display, source) {
  const plain = `<code class="tex">${escape(source)}</code>`;
  if (!mode || tooMany || tex.length > 4000 || !library('katex')) return plain;
  let out = '', n = 0;
  for (const output of mode === 'mathml' ? ['mathml'] : ['htmlAndMathml', 'mathml']) {
    try {
      out = katex.renderToString(tex, {displayMode: display, output, trust: false, strict: 'ignore', maxSize: 20, maxExpand: 200, throwOnError: true});
    } catch { return plain; }
    n = elements(out);
    if (n <= ELEMENTS && out.length <= 2 * MARKUP) break;
  }
  if (n > ELEMENTS || out.length > 2 * MARKUP) return plain;
  inFormulas += n;
  if (inFormulas > FORMULAS && formulas.length) tooMany = true;
  formulas.push(out);
  return '<code class="tex todo"></code>';
}

const DELIMITERS = [['$$', '$$', true], ['\\[', '\\]', true], ['\\(', '\\)', false], ['$', '$', false]];

// $...$ is a formula when it does not look like two prices: no blank inside at either end, no digit behind.
function dollars(src, from, to) {
  const inside = src.slice(from + 1, to);
  return inside && !/^\s|\s$/.test(inside) && !/^\d/.test(src.slice(to + 1, to + 2)) && !inside.includes('\n\n');
}

function inlineFormula(state, silent) {
  const src = state.src, pos = state.pos;
  if (src[pos] !== '$' && src[pos] !== '\\') return false;
  const kind = DELIMITERS.find(d => src.startsWith(d[0], pos));
  if (!kind) return false;
  const [begin, end, display] = kind;
  const cache = state.env.ends ??= new Map(); // an end that is not there is looked for once
  const from = pos + begin.length;
  if (cache.has(end) && cache.get(end) <= pos) return false;
  let to = src.indexOf(end, from);
  while (to > 0 && end[0] === '$' && src[to - 1] === '\\') to = src.indexOf(end, to + 1);
  if (to < 0) { cache.set(end, pos); return false; }
  if (to - from > 4000 || to >= state.posMax || to === from || (begin === '$' && !dollars(src, pos, to))) return false;
  if (!silent) {
    const t = state.push('formula', '', 0);
    t.content = src.slice(from, to);
    t.meta = {display, source: src.slice(pos, to + end.length)};
  }
  state.pos = to + end.length;
  return true;
}

// A formula of lines of its own, in which nothing is Markdown.
function blockFormula(state, start, last, silent) {
  const from = state.bMarks[start] + state.tShift[start];
  const src = state.src, kind = DELIMITERS.slice(0, 2).find(d => src.startsWith(d[0], from));
  const env = /^\\begin\{([a-z*]{1,20})\}/.exec(src.slice(from, from + 40));
  if (!kind && !env) return false;
  const end = kind ? kind[1] : `\\end{${env[1]}}`;
  let line = start;
  for (; line < last; line++) {
    const text = src.slice(line === start ? from + (kind ? 2 : 0) : state.bMarks[line], state.eMarks[line]);
    const at = text.indexOf(end);
    if (at < 0) continue;
    if (text.slice(at + end.length).trim()) return false; // text goes on behind it
    break;
  }
  if (line >= last) return false;
  if (silent) return true;
  const whole = src.slice(from, state.eMarks[line]).trim();
  const t = state.push('formula', '', 0);
  t.block = true;
  t.content = kind ? whole.slice(2, -2) : whole;
  t.meta = {display: true, source: whole};
  t.map = [start, state.line = line + 1];
  return true;
}

// "[ ]" and "[x]" at the start of an item.
function tasks(state) {
  for (let i = 2; i < state.tokens.length; i++) {
    const t = state.tokens[i];
    if (t.type !== 'inline' || state.tokens[i - 2].type !== 'list_item_open' || !t.children[0]) continue;
    const m = /^\[([ xX])\] /.exec(t.children[0].content);
    if (m) t.children[0].content = (m[1] === ' ' ? '\u2610 ' : '\u2611 ') + t.children[0].content.slice(4);
  }
}

// "[^1]" is a number above the line, also before its note, which stands where it was written.  Each leads to the other
// (render.js).
function footnote(state, silent) {
  const m = state.src[state.pos] === '[' && /^\[\^([\w.*-]{1,30})\](:?)/.exec(state.src.slice(state.pos, state.pos + 36));
  if (!m) return false;
  const first = state.pos === 0 || state.src[state.pos - 1] === '\n';
  if (!silent) {
    const link = [['class', first && m[2] ? 'note below' : 'note'], ['tabindex', '0'], ['role', 'link'], ['aria-label', `Note ${m[1]}`]];
    state.push('sup_open', 'sup', 1);
    state.push('note_open', 'a', 1).attrs = link;
    state.push('text', '', 0).content = m[1];
    state.push('note_close', 'a', -1);
    state.push('sup_close', 'sup', -1);
  }
  state.pos += m[0].length - (first ? 0 : m[2].length);
  return true;
}

// The way in which a text with Hebrew, Arabic and the like runs: that of its first letter.  (dir="auto" would have the
// browser look at all of an answer each time that a piece comes.)
const RTL = /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Adlam}]/u;

function direction(tokens, i) {
  while (i < tokens.length && !(tokens[i].type === 'inline' && /\p{L}/u.test(tokens[i].content))) i++;
  const letter = /\p{L}/u.exec(tokens[i]?.content ?? '');
  return letter && (RTL.test(letter[0]) ? 'rtl' : 'ltr');
}

function makeMarkdown() {
  md = markdownit({html: false, linkify: true, breaks: true, typographer: false});
  md.validateLink = url => /^https?:\/\//i.test(url);
  md.normalizeLinkText = text => text;
  md.linkify.set({fuzzyLink: false, fuzzyEmail: false});
  md.inline.ruler.before('escape', 'formula', inlineFormula);
  md.block.ruler.before('fence', 'formula', blockFormula, {alt: ['paragraph', 'reference', 'blockquote', 'list']});
  md.inline.ruler.before('link', 'footnote', footnote);
  const reference = md.block.ruler.__rules__.find(r => r.name === 'reference').fn;
  md.block.ruler.at('reference', (state, start, ...more) => state.src.startsWith('[^', state.bMarks[start] + state.tShift[start]) ? false : reference(state, start, ...more));
  md.core.ruler.push('tasks', tasks);
  const rules = md.renderer.rules;
  rules.formula = (tokens, i) => {
    const t = tokens[i], out = formula(t.content, t.meta.display, t.meta.source);
    return t.block ? `<p class="formula">${out}</p>\n` : out;
  };
  rules.image = (tokens, i) => { // nothing is fetched: the picture is a link
    const t = tokens[i], src = t.attrs.find(a => a[0] === 'src')?.[1] ?? '';
    return `<a href="${escape(src)}">${escape(t.content || src)}</a>`;
  };
  rules.fence = rules.code_block = (tokens, i) =>
    `<pre tabindex="0" dir="ltr"><code>${colours(tokens[i].info?.trim().split(/\s/)[0] ?? '', tokens[i].content)}</code></pre>\n`;
  for (const name of ['paragraph_open', 'heading_open', 'list_item_open', 'td_open', 'th_open', 'blockquote_open', 'bullet_list_open', 'ordered_list_open', 'table_open'])
    rules[name] = (tokens, i, options, env, self) => {
      const t = tokens[i];
      const dir = env.bidi && direction(tokens, i);
      if (dir) t.attrSet('dir', dir);
      if (name === 'heading_open') t.tag = 'h' + Math.min(6, Number(t.tag[1]) + 2);
      return (name === 'table_open' ? '<div class="wide" tabindex="0" role="group" aria-label="table">' : '') + self.renderToken(tokens, i, options);
    };
  rules.heading_close = (tokens, i, options, env, self) => {
    tokens[i].tag = 'h' + Math.min(6, Number(tokens[i].tag[1]) + 2);
    return self.renderToken(tokens, i, options);
  };
  rules.table_close = () => '</table></div>\n';
}

function colours(lang, text) {
  if (!coloured || text.length > BLOCK || !lang || text.split('\n').some(l => l.length > LINE) || !library('highlight') || !hljs.getLanguage(lang)) return escape(text);
  return hljs.highlight(lang, text, true).value;
}

// Shapes on which time or depth grow faster than the text: they are shown as they are.
function isHostile(text) {
  if (/([`*_[\](){}<>~!|$\\#&])\1{99}/.test(text.replace(/^[ \t]*[-*_=~`#|]{3,200}[ \t]*$/gm, ''))) return true;
  let marks = 0, deep = 0;
  for (const line of text.split('\n')) {
    const lead = /^[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+){0,40}/.exec(line)[0];
    if ((lead.match(/>/g) ?? []).length > 12 || (lead.match(/[-*+)]|\d\./g) ?? []).length > 12) return true;
    deep = Math.max(deep, lead.replace(/\t/g, '    ').length);
    for (const c of line) if ('`*_[]()<>~$\\!'.includes(c)) marks++;
  }
  return deep > 80 || marks > 2000;
}

// {html, formulas, n} (n: its elements), {text}, or {big}: it is to be halved.
function prose(state, text, offset) {
  if (state.bad.has(offset)) return {text, late: true};
  if (!library('markdown') || !have.purify || isHostile(text)) return {text};
  const may = text.length > SHORT; // be halved
  if (may && ((text.match(/\$|\\[([]/g) ?? []).length > 80 || weight(text) > HEAVY)) return {big: true};
  if (!md) makeMarkdown();
  tooMany = false;
  const lines = text.trim().includes('\n');
  for ([mode, coloured] of [['htmlAndMathml', true], ['htmlAndMathml', false], ['mathml', false], ['', false]]) {
    if (tooMany && mode === 'htmlAndMathml') continue;
    if ((may || (state.rich < RICH && betweenParagraphs(text))) && lines && (tooMany || mode !== 'htmlAndMathml')) return {big: true}; // a line alone tries MathML first
    if (may && !mode) return {big: true};
    formulas = [];
    inFormulas = 0;
    tooMany = false;
    let html;
    try { html = md.render(text, {bidi: RTL.test(text), references: state.links}); } catch { return {text}; }
    const n = elements(html);
    if (n <= ELEMENTS && html.length <= MARKUP && !tooMany) return {html, n: n + inFormulas, ...(formulas.length && {formulas})};
  }
  return {text};
}

// The end of a paragraph, the next one to the middle; no formula lies there.  0: there is none.
function betweenParagraphs(text) {
  const all = text.trimEnd().length, middle = all >> 1;
  let best = 0;
  for (let at = text.indexOf('\n\n'); at > 0 && at + 2 < all; at = text.indexOf('\n\n', at + 1)) {
    const before = text.slice(0, at), whole = before.replace(/\\\$/g, '').split('$').length % 2 && before.split('\\[').length === before.split('\\]').length;
    if (whole && before.trim() && /\S/.test(text[at + 2]) && (!best || Math.abs(at - middle) < Math.abs(best - middle))) best = at + 2;
  }
  return best;
}

// The first half of a block whose markup is too much for one piece; no formula is cut, if that can be.
function half(text) {
  if (text.length <= SHORT) return betweenParagraphs(text);
  const middle = text.length >> 1;
  let best = 0;
  for (const mark of ['\n\n', '\n', ' ']) {
    for (let at = text.indexOf(mark, middle); at > 0 && at < text.length - 100; at = text.indexOf(mark, at + 1)) {
      const end = at + mark.length, dollars = text.slice(0, end).replace(/\\\$/g, '').split('$').length - 1;
      if (dollars % 2 === 0) return end;
      best ||= end;
    }
  }
  if (best) return best;
  return /[\ud800-\udbff]/.test(text[middle - 1]) ? middle - 1 : middle;
}

/* ---- where a block ends ---- */

// How many bytes of the tail are a block; 0: it is not complete.  `end`: nothing more comes.
function cut(tail, end) {
  const limit = Math.min(tail.length, BLOCK);
  let at = 0, list = false, fence = null, mathEnd = null, first = true, lines = 0;
  while (at < limit) {
    const nl = tail.indexOf('\n', at);
    if (nl < 0 || nl >= limit) break;
    const line = tail.slice(at, nl), next = nl + 1;
    if (++lines > (list ? LIST_LINES : LINES) && !fence && !mathEnd) return at;
    if (fence) {
      if (line.trim().startsWith(fence) && !line.trim().slice(fence.length).replaceAll(fence[0], '')) fence = null;
      at = next;
      continue;
    }
    if (mathEnd) {
      if (line.includes(mathEnd)) mathEnd = null;
      at = next;
      continue;
    }
    if (first) {
      list = ITEM.test(line);
      const t = line.trimStart();
      mathEnd = t.startsWith('$$') ? '$$' : t.startsWith('\\[') ? '\\]' : null;
      if (mathEnd && t.indexOf(mathEnd, 2) >= 0) mathEnd = null;
      first = false;
    } else if (FENCE.test(line) && !(list && /^ {2,}/.test(line))) {
      return at; // code has a block of its own
    }
    if (list) {
      const inner = /^ {2,}(`{3,}|~{3,})/.exec(line);
      if (inner) fence = inner[1];
    }
    at = next;
    if (line.trim()) continue;
    // A blank line: what follows may belong to the list.
    let look = at;
    while (look < tail.length && tail[look] === '\n') look++;
    const stop = tail.indexOf('\n', look), after = tail.slice(look, stop < 0 ? tail.length : stop);
    if (!after.trim()) {
      if (end) return tail.length;
      return 0;
    }
    if (list && (/^ {2,}/.test(after) || ITEM.test(after))) continue;
    if (list && stop < 0 && !end && after.length < 12) return 0; // "1" may become "1."
    return at;
  }
  if (tail.length > BLOCK) { // cut it where it hurts least
    const blank = tail.lastIndexOf('\n\n', BLOCK), line = tail.lastIndexOf('\n', BLOCK), word = tail.lastIndexOf(' ', BLOCK);
    const where = blank > BLOCK / 2 ? blank + 2 : line > BLOCK / 2 ? line + 1 : word > BLOCK / 2 ? word + 1 : BLOCK;
    return /[\ud800-\udbff]/.test(tail[where - 1]) ? where - 1 : where;
  }
  return end ? tail.length : 0;
}

// The same for several small blocks: they go together.  A table begins a block of its own (its head is repeated).
function cutMany(tail, end) {
  let at = cut(tail, end);
  for (let lines = tail.slice(0, at).split('\n').length; at && at < SMALL && lines < SMALL_LINES && tail.slice(0, at).endsWith('\n\n');) {
    const rest = tail.slice(at, at + BLOCK), first = rest.split('\n', 1)[0];
    if (!rest || FENCE.test(first) || first.includes('|')) break;
    const n = cut(rest, end && at + rest.length === tail.length);
    if (!n || at + n > 2 * SMALL || !(rest.slice(0, n).endsWith('\n\n') || at + n === tail.length)) break;
    at += n;
    lines += rest.slice(0, n).split('\n').length;
  }
  return at;
}

/* ---- the texts ---- */

function step(state, ops) {
  if (state.code) return codeStep(state, ops);
  const blank = /^(?:[ \t]{0,200}\n)+/.exec(state.tail.slice(0, BLOCK));
  if (blank) eat(state, blank[0].length);
  if (!state.tail) return false;
  const nl = state.tail.indexOf('\n'), line = nl < 0 ? state.tail.slice(0, 200) : state.tail.slice(0, nl);
  const fence = FENCE.exec(line);
  if (fence && (nl >= 0 || state.end)) {
    const lang = (/^[\w+#.-]+/.exec(fence[2].trim()) ?? [''])[0];
    state.code = {mark: fence[1], lang, indent: /^ */.exec(line)[0].length, top: null, done: 0, colours: 0, label: lang};
    ops.push({op: 'code', i: state.index, lang});
    eat(state, nl < 0 ? state.tail.length : nl + 1);
    return true;
  }
  const n = cutMany(state.tail, state.end);
  if (!n && fence) return false;
  const done = show(state, ops, n ? state.tail.slice(0, n) : state.tail, n > 0);
  if (!done) return false;
  const text = state.tail.slice(0, done), rows = (state.head + text).split('\n', 2);
  eat(state, text.length);
  state.head = /^[ |:-]*-[ |:-]*$/.test(rows[1] ?? '') && rows[0].includes('|') && !text.endsWith('\n\n') ? rows.join('\n') + '\n' : '';
  state.index++;
  return true;
}

// How much of the text it has shown for good; `whole`: the block is complete.
function show(state, ops, text, whole) {
  postMessage({number: state.number, at: state.offset});
  if (state.head && !state.tail.split('\n', 1)[0].includes('|')) state.head = ''; // the table has ended
  const head = state.head;  // a table that was cut goes on with its head
  let made = prose(state, head + text, state.offset), more = whole && text.length >= BLOCK / 2 && !text.endsWith('\n');
  while (made.big) { // so is one that still grows
    const short = text.length <= SHORT;
    text = text.slice(0, half(text));
    made = short || text.length > 100 ? prose(state, head + text, state.offset) : {text};
    more = whole = true;
  }
  const seen = made.html?.replace(/<[^>]*>/g, '') ?? text; // a link has fewer letters than its source
  ops.push({op: 'prose', i: state.index, whole, more, ...made, lines: seen.split(/\n\s*/).length + seen.length / 100, n: (made.n ?? 0) + weight(text)});
  if (whole) state.rich += made.n ?? 0;
  return whole ? text.length : 0;
}

const isEnd = (line, code) => {
  const t = line.trim();
  return /^ {0,3}[`~]/.test(line) && t.startsWith(code.mark) && t === code.mark[0].repeat(t.length);
};

// How much of a long line is one piece: at most n, less of what is heavy, and no letter is cut.
function pieceOf(line, n) {
  while (n > 64 && weight(line.slice(0, n)) > HEAVY) n >>= 1;
  return /[\ud800-\udbff]/.test(line[n - 1]) ? n - 1 : n;
}

const lineOf = (line, code) => code.indent && line.startsWith(' '.repeat(code.indent)) ? line.slice(code.indent) : line;

// Lines of code up to CHUNK, or the end of the block.
function codeStep(state, ops) {
  const code = state.code;
  let out = '', at = 0, closed = false, heavy = 0;
  for (let lines = 0; at < state.tail.length && out.length < CHUNK && lines < CHUNK_LINES && heavy < HEAVY; lines++) {
    let nl = state.tail.indexOf('\n', at);
    if (nl < 0) {
      if (state.end) nl = state.tail.length;
      else break;
    }
    const line = state.tail.slice(at, nl);
    if (isEnd(line, code)) {
      closed = true;
      at = Math.min(nl + 1, state.tail.length);
      break;
    }
    if (out && out.length + line.length > CHUNK) break;
    if (line.length > LONG_LINE) { // in pieces, each a line of its own
      out = line.slice(0, pieceOf(line, LONG_LINE));
      at += out.length;
      break;
    }
    heavy += weight(line);
    if (out && heavy > HEAVY) break;
    out += lineOf(line, code) + '\n';
    at = nl + 1;
  }
  at = Math.min(at, state.tail.length);
  if (!at && state.tail.length > LONG_LINE) {
    out = state.tail.slice(0, pieceOf(state.tail, LONG_LINE));
    at = out.length;
  }
  if (out) chunk(state, ops, out);
  eat(state, at);
  if (closed || (state.end && !state.tail)) {
    ops.push({op: 'tail', i: state.index, text: '', whole: true});
    state.code = null;
    state.index++;
    return state.tail.length > 0;
  }
  if (at) return true;
  const rest = isEnd(state.tail, code) || /^ {0,3}[`~]{1,}$/.test(state.tail) ? '' : state.tail;
  ops.push({op: 'tail', i: state.index, text: lineOf(rest, code)});
  return false;
}

function chunk(state, ops, text) {
  const code = state.code, bare = {op: 'chunk', i: state.index, text, lines: text.split('\n').length, n: weight(text)};
  const can = have.purify && code.lang && code.done < COLOURED && code.colours < COLOURS && !state.bad.has(state.offset) && !text.split('\n').some(l => l.length > LINE);
  if (!can || !library('highlight') || !hljs.getLanguage(code.lang)) {
    code.done += text.length;
    ops.push(bare);
    return;
  }
  postMessage({number: state.number, at: state.offset});
  const r = hljs.highlight(code.lang, text, true, code.top ?? undefined), n = elements(r.value);
  const middle = text.indexOf('\n', text.length >> 1) + 1;
  if (n > SPANS && middle && middle < text.length) { // what it began with goes on in both halves
    chunk(state, ops, text.slice(0, middle));
    chunk(state, ops, text.slice(middle));
    return;
  }
  code.top = r.top;
  code.done += text.length;
  code.colours += n;
  ops.push(r.value.length <= MARKUP && n <= ELEMENTS ? {...bare, html: r.value, n: n + bare.n} : bare);
}

function eat(state, n) {
  state.tail = state.tail.slice(n);
  state.offset += n;
}

// As much as makes a good piece of work for the page; it asks for the rest.
function work(state) {
  const ops = [], begun = performance.now();
  let more = true;
  for (let i = 0; i < 40 && more && performance.now() - begun < 12; i++) more = step(state, ops);
  postMessage({number: state.number, ops, more: more && state.tail.length > 0});
}

// Targets of "[name]" whose definitions come later in the text: [name, address].
function linksOf(list) {
  const out = Object.create(null);
  if (!list.length || !library('markdown')) return out;
  if (!md) makeMarkdown();
  for (const [name, href] of list) out[md.utils.normalizeReference(name)] ??= {href: md.normalizeLink(href), title: ''};
  return out;
}

onmessage = e => {
  const m = e.data;
  if (m.have) have = m.have;
  else if (m.drop) texts.delete(m.drop);
  else if (m.begin) {
    const state = {number: m.begin, tail: '', offset: 0, index: 0, code: null, head: '', rich: 0, end: false, bad: new Set(m.bad), links: linksOf(m.links ?? [])};
    texts.set(m.begin, state);
  } else {
    const state = texts.get(m.number);
    if (!state) return;
    if (m.text) state.tail += m.text;
    if (m.end) state.end = true;
    work(state);
  }
};
