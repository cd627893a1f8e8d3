// Fields for texts of any length.  The browser lays out a textarea as a whole, so a long text has several, one for each
// part.  A part is a plain text that is not laid out until it comes near; then it becomes a textarea.
import {el} from './dom.js';
import {job, frameJob, pieceEnd} from './render.js';

const WHOLE = 6000;   // characters that one field may hold
const PART = 2000;    // characters of a part of a longer text
const AT_ONCE = 8;    // parts that a turn of work adds
const CHAPTER = 30;   // parts that are out of sight together

const isWhole = text => pieceEnd(text, 0, WHOLE) === text.length;

export class Editor {
  // props: of each textarea; root: what scrolls, if it is not the box; ready(yes): whether all parts are there.
  constructor(label, text, {props = {}, root = null, ready = () => {}} = {}) {
    const box = el('div', {className: 'fields'});
    Object.assign(this, {label, props, ready, box, parts: [], marks: {}});
    this.eye = 'IntersectionObserver' in self ? new IntersectionObserver(list => this.near(list), {root: root ?? box, rootMargin: '300px 0px'}) : null;
    this.fill(0, text);
  }

  get value() { return this.parts.map(p => p.field?.value ?? p.text).join(''); }

  get first() { return this.parts[0].field; }

  // An attribute of all textareas.
  setAttribute(name, value) {
    this.marks[name] = value;
    for (const p of this.parts) p.field?.setAttribute(name, value);
  }

  // Puts parts of the text before the part with that number; then() when the last one is there.
  fill(index, text, then = () => {}) {
    if (!this.parts.length && isWhole(text)) {
      this.add(0, text);
      this.make(this.parts[0]);
      then();
      this.ready(true);
      return;
    }
    let at = 0;
    const more = () => {
      for (let n = 0; n < AT_ONCE && at < text.length; n++) {
        const end = pieceEnd(text, at, PART);
        this.add(index++, text.slice(at, end));
        at = end;
      }
      if (at < text.length) { job(more); return; }
      then();
      this.ready(true);
    };
    this.ready(false);
    more();
    if (!this.parts[0].field) this.make(this.parts[0]);
  }

  // After the part before it, which is the last one of its chapter.
  add(index, text) {
    const part = {text, field: null, box: el('div', {className: 'field', textContent: text})};
    part.box.ofField = part;
    let chapter = this.parts[index - 1]?.box.parentNode;
    if (!chapter || chapter.children.length >= CHAPTER) {
      const made = el('div', {className: 'chapter'});
      if (chapter) chapter.after(made);
      else this.box.prepend(made);
      chapter = made;
    }
    this.parts.splice(index, 0, part);
    if (this.parts.length > 1) {
      part.box.classList.add('later');
      if ('onbeforematch' in part.box) part.box.hidden = 'until-found'; // the browser's search finds it
    }
    chapter.append(part.box);
    if (this.parts.length === 1) return;
    if (this.eye) this.eye.observe(part.box);
    else this.make(part);
  }

  near(list) {
    for (const e of list) {
      const part = e.target.ofField;
      if (!e.isIntersecting || part.field) continue;
      frameJob(() => { if (e.target.isConnected) this.make(part); });
    }
  }

  make(part) {
    if (part.field) return;
    part.field = el('textarea', {dir: 'auto', ...this.props});
    part.field.value = part.text;
    const n = this.parts.indexOf(part);
    part.field.setAttribute('aria-label', n || this.parts.length > 1 ? `${this.label}, part ${n + 1}` : this.label);
    for (const [name, value] of Object.entries(this.marks)) part.field.setAttribute(name, value);
    part.field.addEventListener('beforeinput', e => this.longer(part, e));
    part.box.hidden = false;
    part.box.classList.remove('later');
    part.box.replaceChildren(part.field);
    this.eye?.unobserve(part.box);
  }

  // A long text is pasted or dropped: more parts.
  longer(part, e) {
    const text = e.data ?? e.dataTransfer?.getData('text/plain') ?? '', f = part.field;
    if (text.length < 100 || isWhole(f.value + text)) return;
    e.preventDefault();
    const before = f.value.slice(0, f.selectionStart) + text.replace(/\r\n?/g, '\n'), after = f.value.slice(f.selectionEnd);
    const index = this.parts.indexOf(part) + 1, next = this.parts[index], end = pieceEnd(before, 0, PART);
    if (part.box.nextSibling) {
      const rest = el('div', {className: 'chapter'});
      while (part.box.nextSibling) rest.append(part.box.nextSibling);
      part.box.parentNode.after(rest);
    }
    // The focus stays in this field: without one, the browser looks for a place of the caret in all that is hidden.
    f.value = before.slice(0, end);
    this.fill(index, before.slice(end), () => {
      const last = this.parts[(next ? this.parts.indexOf(next) : this.parts.length) - 1];
      this.make(last);
      const n = last.field.value.length;
      last.field.value += after;
      last.field.focus();
      last.field.setSelectionRange(n, n);
      this.box.dispatchEvent(new Event('input', {bubbles: true}));
    });
  }

  drop() { this.eye?.disconnect(); }
}
