// Elements, the status line, copying.
export const $ = id => document.getElementById(id);

export function el(tag, props = {}, ...kids) {
  const e = Object.assign(document.createElement(tag), props);
  e.append(...kids);
  return e;
}

export function button(label, onclick, props = {}) {
  const {aria, ...rest} = props;
  const b = el('button', {type: 'button', className: 'plain', textContent: label, ...rest});
  b.onclick = () => onclick(b);
  if (aria) b.setAttribute('aria-label', aria);
  return b;
}

let undo = null;

// A sentence for everybody, also for who listens.
export function say(text) {
  $('status').textContent = nameText(text, 2000);
  $('undo').hidden = true;
  undo = null;
}

// The same, with a way back.
export function sayUndo(text, fn) {
  say(text);
  undo = fn;
  $('undo').hidden = false;
}

export function initUndo() {
  $('undo').onclick = async () => {
    const fn = undo;
    say('');
    await fn?.();
    $('input').focus();
  };
}

// Runs the rest of a long job when the page has answered its user.
export const rest = () => new Promise(go => {
  const {port1, port2} = new MessageChannel();
  port1.onmessage = () => { port1.close(); go(); };
  port2.postMessage(0);
});

// Rests in a loop, when it has worked for some milliseconds.
export function rester() {
  let begun = performance.now();
  return async () => {
    if (performance.now() - begun < 8) return;
    await rest();
    begun = performance.now();
  };
}

// A file of many strings, made a piece at a time.
export function blobOf(type) {
  const blobs = [], pause = rester();
  let parts = [], size = 0;
  const flush = () => { blobs.push(new Blob(parts)); parts = []; size = 0; };
  return {
    async add(text) {
      parts.push(text);
      size += text.length;
      if (size > 262144) flush();
      await pause();
    },
    whole() { flush(); return new Blob(blobs, {type}); },
  };
}

export async function copyText(text, b) {
  let done = true;
  try { await navigator.clipboard.writeText(text); }
  catch { // an address without TLS has no clipboard
    let given = false;
    const give = e => { e.preventDefault(); e.stopPropagation(); e.clipboardData.setData('text/plain', text); given = true; };
    document.addEventListener('copy', give, true);
    const some = el('span', {textContent: '.', className: 'hidden-text'}); // there is no event without a selection
    b.after(some);
    getSelection().selectAllChildren(some);
    done = document.execCommand('copy') && given;
    document.removeEventListener('copy', give, true);
    getSelection().removeAllRanges();
    some.remove();
    b.focus();
    if (!done && text.length < 100000) { // a browser that copies only what is selected
      const t = el('textarea', {value: text, className: 'hidden-text'});
      (document.querySelector('dialog[open]') ?? document.body).append(t);
      t.select();
      done = document.execCommand('copy');
      t.remove();
      b.focus();
    }
  }
  const was = b.dataset.was ?? b.textContent;
  b.dataset.was = was;
  b.textContent = done ? 'Copied' : 'The browser refuses';
  setTimeout(() => { b.textContent = was; }, 1200);
}

export function download(name, blob) {
  const url = URL.createObjectURL(blob);
  el('a', {href: url, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

// A name as it is shown: short, and no pile of marks on a letter that reaches into other lines.
export const nameText = (name, n = 200) => String(name).slice(0, n).replace(/(\p{M}{4})\p{M}+/gu, '$1');

export const newId = () => [...crypto.getRandomValues(new Uint8Array(16))].map(b => b.toString(16).padStart(2, '0')).join('');

export function bytesText(n) {
  const units = ['bytes', 'KB', 'MB', 'GB', 'TB'];
  let i = 0;
  for (; n >= 1000 && i < 4; i++) n /= 1000;
  return `${i && n < 100 ? n.toFixed(1) : Math.round(n)} ${units[i]}`;
}

export function timeText(seconds) {
  const s = Math.max(0, Math.round(seconds));
  return s < 90 ? `${s} s` : s < 5400 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`;
}
