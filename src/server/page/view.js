// How a message looks.
import {$, el, button, copyText, timeText, nameText} from './dom.js';
import {View, plainText, followNote, job, frameJob} from './render.js';
import {chip} from './files.js';
import {isWriting, isEmpty, runOf} from './answer.js';
import {Editor} from './edit.js';
import {contextOf} from './models.js';
import {settings} from './api.js';

const MAX_CALLS = 32;    // calls of tools that are shown
const MAX_ARGUMENTS = 8000;

let acts = {}; // {edit, regenerate, more, fork, remove, version, results}
export const initViews = a => { acts = a; };

export function statsText(s, chat) {
  const parts = [];
  if (s.answer) parts.push(`${s.answer.toLocaleString()} tokens`);
  if (s.rate) parts.push(`${s.rate.toFixed(1)} tokens/s`);
  if (s.ms) parts.push(timeText(s.ms / 1000));
  if (s.prompt !== undefined && (s.prompt || s.cached))
    parts.push(`prompt ${s.prompt.toLocaleString()}${s.promptRate ? ` at ${s.promptRate.toFixed(0)} tokens/s` : ''}, ${(s.cached ?? 0).toLocaleString()} from the cache`);
  if (s.drafted) parts.push(`${Math.round(100 * s.accepted / s.drafted)} % of ${s.drafted} drafts accepted`);
  if (s.context && contextOf(chat)) parts.push(`context ${s.context.toLocaleString()} of ${contextOf(chat).toLocaleString()}`);
  const ends = {length: 'cut: longest answer or end of the context reached', stopped: 'stopped', left: 'ended when the page was closed'};
  if (ends[s.finish]) parts.push(ends[s.finish]);
  return parts.join(' · ');
}

const isCut = n => n.role === 'assistant' && (n.content || n.reasoning) && !n.calls?.length && (n.error || n.edited || ['length', 'stopped', 'left'].includes(n.stats?.finish));

function callBox(into) {
  const who = el('p', {className: 'who'}), pre = el('pre', {tabIndex: 0, dir: 'ltr'}), box = el('div', {className: 'call'}, who, pre);
  pre.setAttribute('role', 'group');
  into.append(box);
  return {box, who, pre};
}

function showCall(b, c, args) {
  const name = nameText(c.name);
  b.size = c.name.length + c.arguments.length;
  b.who.textContent = `Call of ${name}`;
  b.pre.setAttribute('aria-label', `Arguments of ${name}`);
  plainText(b.pre, args.slice(0, MAX_ARGUMENTS) + (args.length > MAX_ARGUMENTS ? '\n…' : ''));
  return b;
}

export class MessageView {
  constructor(chat, node) {
    this.chat = chat;
    this.node = node;
    this.who = el('p', {className: 'who', dir: 'auto'});
    this.files = el('div', {className: 'with-files'});
    this.thought = el('div');
    this.summary = el('summary');
    this.details = el('details', {className: 'thought', hidden: true}, this.summary, this.thought);
    this.text = el('div', {className: 'text'});
    this.calls = el('div', {className: 'calls'});
    this.boxes = []; // of the calls that are being written
    this.phase = el('p', {className: 'phase', hidden: true});
    this.error = el('p', {className: 'error', hidden: true});
    this.error.setAttribute('role', 'alert');
    this.row = el('div', {className: 'acts'});
    this.stats = el('p', {className: 'stats'});
    this.root = el('article', {className: 'message ' + node.role}, this.who, this.files, this.details, this.text, this.calls, this.phase, this.error, this.row, this.stats);
    for (const type of ['click', 'keydown']) this.text.addEventListener(type, followNote);
    for (const f of node.files ?? []) this.files.append(chip(f));
  }

  // place: its number; siblings: versions of it; last: nothing comes after it.
  refresh({place, siblings, last, unanswered}) {
    const n = this.node, chat = this.chat, near = siblings.indexOf(n);
    const state = [place, siblings.length, siblings[near - 1]?.id, siblings[near + 1]?.id, last, unanswered, n.content.length, n.reasoning?.length, n.error,
      n.stats?.finish, n.stats?.answer, n.calls?.length, n.model, n.edited, !!n.run, isWriting(n), contextOf(chat)].join();
    if (state === this.state) return; // nothing of it has changed
    this.state = state;
    const who = n.role === 'user' ? 'You' : n.role === 'tool' ? `Result of ${nameText(n.call?.name ?? 'a tool')}` : nameText(n.model || 'Model');
    this.who.textContent = who + (n.edited ? ' (edited)' : '');
    this.root.setAttribute('aria-label', who);
    this.row.replaceChildren();
    const act = (label, fn) => this.row.append(button(label, fn, {aria: `${label}: message ${place}`}));
    if (siblings.length > 1) {
      const step = (label, d, words) => {
        const b = button(label, () => acts.version(siblings[near + d], n.id, d), {aria: `${words} version: message ${place}`});
        b.disabled = !siblings[near + d];
        return b;
      };
      this.row.append(el('span', {className: 'versions'}, step('‹', -1, 'Previous'), el('span', {textContent: `${near + 1}/${siblings.length}`}), step('›', 1, 'Next')));
    }
    act('Copy', b => copyText(n.content, b));
    if (n.role !== 'tool') act('Edit', () => acts.edit(this));
    if (n.role === 'assistant') act('Regenerate', () => acts.regenerate(n));
    if (last && isCut(n)) act('Continue', () => acts.more(n));
    act('Fork', () => acts.fork(n));
    act('Delete', () => acts.remove(n));
    this.note = unanswered ? 'Not answered: left out of what follows.' : '';
    this.last = last;
    this.drawCalls(last);
    this.paint(chat);
  }

  paint() {
    const n = this.node, writing = isWriting(n), run = runOf(this.chat);
    const elsewhere = n.run && !writing && !n.unread;
    if (n.role === 'assistant' || (n.role === 'user' && settings.markdown)) {
      this.view ??= new View(this.text);
      this.view.set(n.content, !writing && !elsewhere);
    } else plainText(this.text, n.content);
    this.text.hidden = !n.content;
    this.details.hidden = !n.reasoning;
    if (n.reasoning) plainText(this.thought, n.reasoning);
    this.summary.textContent = writing && !n.content ? 'Thinking…' : n.stats?.thought >= 1000 ? `Thought for ${timeText(n.stats.thought / 1000)}` : 'Thought';
    const silent = n.reasoning && isEmpty(n) && !writing && !elsewhere && !n.error;
    if ((silent || (writing && n.reasoning && settings.thoughts)) && !this.opened) this.opened = this.details.open = true;
    const phase = writing ? run.phase : elsewhere ? 'This answer is being written in another tab.' : silent ? '(no answer after the thought)' : '';
    this.phase.hidden = !phase;
    this.phase.textContent = phase;
    const error = nameText(n.error || this.note || '', 2000);
    this.error.hidden = !error;
    this.error.textContent = error;
    this.stats.textContent = statsText(n.stats ?? {}, this.chat);
    this.stats.hidden = !this.stats.textContent;
    this.row.hidden = writing;
    if (writing && n.calls) this.drawCalls(false);
  }

  // Calls of tools, and fields for their results where nothing comes after them.  While they are written, only what has
  // grown is shown again; then each is shown in its turn.
  drawCalls(last) {
    const n = this.node, list = (n.calls ?? []).filter(Boolean), shown = list.slice(0, MAX_CALLS), round = this.round = (this.round ?? 0) + 1;
    if (isWriting(n)) {
      shown.forEach((c, i) => {
        const b = this.boxes[i] ??= callBox(this.calls);
        if (b.size !== c.name.length + c.arguments.length) showCall(b, c, c.arguments);
      });
      return;
    }
    this.boxes = [];
    this.calls.replaceChildren();
    const open = last && list.length, fields = [];
    const turn = (fn, go = job) => go(() => { if (round === this.round) fn(); });
    shown.forEach((c, i) => turn(() => {
      let args = c.arguments;
      if (args.length < 20000) try { args = JSON.stringify(JSON.parse(args), null, 2); } catch { /* as it came */ }
      const {box} = showCall(callBox(this.calls), c, args);
      if (!open) return;
      const f = new Editor(`Result of ${nameText(c.name)}, call ${i + 1}`, '', {props: {rows: 2, placeholder: 'What the tool returns'}, root: $('log')});
      fields.push(f);
      box.append(f.box);
    }, c.arguments.length > 500 ? frameJob : job)); // a long one has a frame of its own
    if (list.length > MAX_CALLS) turn(() => this.calls.append(el('p', {className: 'note', textContent:
      `${(list.length - MAX_CALLS).toLocaleString()} more calls are not shown` + (open ? '; their results are sent empty.' : '.')})));
    if (open) turn(() => this.calls.append(button('Send results', () => acts.results(n, fields.map(f => f.value)), {className: 'main'})));
  }

  drop() { this.view?.drop(); }
}

export const atEnd = () => $('log').scrollHeight - $('log').scrollTop - $('log').clientHeight < 80;
export const toEnd = () => { $('log').scrollTop = $('log').scrollHeight; };
