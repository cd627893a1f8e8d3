// Files that go with a question: text as it is, PDF by its text, pictures and sounds for models that read them.  What cannot go
// is said in a sentence.
import {$, el, button, say, bytesText, nameText} from './dom.js';
import {libraries} from './build.js';
import {plainText} from './render.js';

const MAX_TEXT = 4e6, MAX_PDF = 1e8, MAX_FILES = 50, MAX_MEDIUM = 20 * 1024 * 1024, MAX_MEDIA = 16, LONG_PASTE = 4000, MAX_INPUT = 20000, MAX_PAGES = 5000, PATIENCE = 60000;
const KINDS = [
  [/^image\/|\.(png|jpe?g|gif|webp|bmp|tiff?|heic|avif)$/i, 'an image'], [/^audio\/|\.(mp3|wav|ogg|flac|m4a|opus)$/i, 'sound'],
  [/^video\/|\.(mp4|mkv|webm|mov|avi)$/i, 'a video'],
];
let files = [];           // {name, text} or {name, media, size} of the next question; media: a data: URL
let reads = () => ['text'];
let listener = () => {};
let reading = 0;

export const attached = () => files;
export const isReading = () => reading > 0;
export const onFiles = fn => { listener = fn; };
export const onReads = fn => { reads = fn; }; // what the chosen model reads: text, image, audio

export function setFiles(list) {
  files = [...list];
  show();
}

function show() {
  $('files').hidden = !files.length;
  $('files').replaceChildren(...files.map((f, i) => el('li', {}, chip(f), button('×', () => {
    files.splice(i, 1);
    show();
    $('input').focus();
  }, {aria: `Remove ${f.name}`}))));
  listener();
}

const nameOf = f => nameText(f.name, 100);

// A name that opens to the text.
export function chip(f) {
  if (f.media) {
    const words = `${nameOf(f)} (${bytesText(f.size)})`;
    return el('span', {className: 'file', dir: 'auto'}, ...(f.thumb ? [el('img', {src: f.thumb, alt: '', className: 'thumb'})] : []), words);
  }
  const body = el('pre', {tabIndex: 0});
  const d = el('details', {className: 'file'}, el('summary', {textContent: `${nameOf(f)} (${bytesText(f.text.length)})`, dir: 'auto'}), body);
  d.addEventListener('toggle', () => {
    plainText(body, d.open ? f.text.slice(0, 8000) + (f.text.length > 8000 ? '\n…' : '') : '');
  });
  return d;
}

function decode(bytes) {
  const wide = bytes[0] === 0xff && bytes[1] === 0xfe ? 'utf-16le' : bytes[0] === 0xfe && bytes[1] === 0xff ? 'utf-16be' : null;
  const text = new TextDecoder(wide ?? 'utf-8', {fatal: true}).decode(bytes);
  if (text.includes('\0')) throw new Error('a zero byte');
  return text;
}

async function pdfLibrary() {
  if (!self.pdfjsLib) {
    await new Promise((done, fail) => document.head.append(el('script', {src: 'page/pdf.js', onload: done, onerror: () => fail(new Error('the reader of PDF files did not load'))})));
    self.pdfjsLib ??= self['pdfjs-dist/build/pdf'];
    self.pdfjsLib.GlobalWorkerOptions.workerSrc = 'page/pdf.worker.js';
  }
  return self.pdfjsLib;
}

// A reader that is stuck is given up.
function soon(promise) {
  let timer;
  const late = new Promise((_, fail) => { timer = setTimeout(() => fail(new Error(`a page of it took longer than ${PATIENCE / 1000} s to read`)), PATIENCE); });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

async function readPdf(file) {
  if (!libraries.pdf) throw new Error('this build of ingle cannot read PDF files (it was built without libjs-pdf)');
  const lib = await pdfLibrary();
  const task = lib.getDocument({data: new Uint8Array(await file.arrayBuffer()), isEvalSupported: false, disableFontFace: true, useSystemFonts: false, verbosity: 0});
  try {
    const doc = await soon(task.promise);
    if (doc.numPages > MAX_PAGES) throw new Error(`it has ${doc.numPages.toLocaleString()} pages, and a PDF may have ${MAX_PAGES.toLocaleString()}`);
    let out = '';
    for (let i = 1; i <= doc.numPages && out.length <= MAX_TEXT; i++) {
      say(`Reading ${file.name}: page ${i} of ${doc.numPages}`);
      const page = await soon(doc.getPage(i)), content = await soon(page.getTextContent());
      out += content.items.map(t => (t.str ?? '') + (t.hasEOL ? '\n' : '')).join('').trimEnd() + '\n\n';
      page.cleanup();
    }
    say('');
    if (!out.trim()) throw new Error('it has no text: its pages are pictures');
    if (out.length > MAX_TEXT) throw new Error(`its text is longer than ${bytesText(MAX_TEXT)}`);
    return out.trim() + '\n';
  } catch (e) {
    say('');
    if (e?.name === 'PasswordException') throw new Error('it needs a password: save it without one first');
    if (e?.name === 'InvalidPDFException') throw new Error('it is no valid PDF file');
    throw e;
  } finally { task.destroy(); }
}

const asDataUrl = file => new Promise((done, fail) => {
  const r = new FileReader();
  r.onload = () => done(r.result);
  r.onerror = () => fail(new Error('the browser cannot read it'));
  r.readAsDataURL(file);
});

// A small picture of it, or ''.
async function thumbOf(file) {
  try {
    const bitmap = await createImageBitmap(file, {resizeHeight: 128}), canvas = new OffscreenCanvas(bitmap.width, 128);
    canvas.getContext('2d').drawImage(bitmap, 0, 0);
    const url = await asDataUrl(await canvas.convertToBlob({type: 'image/webp', quality: 0.7}));
    return isThumb(url) ? url : '';
  } catch { return ''; }
}
export const isThumb = url => typeof url === 'string' && url.length < 60000 && /^data:image\/(webp|png);base64,/.test(url);

// A picture or a sound: the server decodes it.
async function readMedium(file) {
  const sound = KINDS[1][0].test(file.type) || KINDS[1][0].test(file.name);
  if (file.size > MAX_MEDIUM) throw new Error(`it has ${bytesText(file.size)}, and ${sound ? 'a sound' : 'a picture'} may have ${bytesText(MAX_MEDIUM)}`);
  if (!file.size) throw new Error('it is empty');
  if (files.filter(f => f.media).length >= MAX_MEDIA) throw new Error(`no more than ${MAX_MEDIA} pictures and sounds go with a question`);
  const bytes = new Uint8Array(await file.slice(0, 16).arrayBuffer());
  const head = String.fromCharCode(...bytes), wav = head.startsWith('RIFF') && head.slice(8, 12) === 'WAVE';
  if (sound && !wav) throw new Error('it is no WAV file, and the server reads no other sound: convert it first');
  if (!sound && !/^(\x89PNG|\xff\xd8\xff|GIF8|RIFF....WEBP)/s.test(head)) throw new Error('it is no PNG, JPEG, WebP or GIF picture, and the server reads no others: convert it first');
  return {media: await asDataUrl(file), size: file.size, sound, thumb: sound ? '' : await thumbOf(file)};
}

async function readOne(file) {
  const kind = KINDS.find(k => k[0].test(file.type) || k[0].test(file.name)), can = reads();
  if (kind && file.type !== 'image/svg+xml' && file.type !== 'video/mp2t') {
    if (can.includes('image') && kind === KINDS[0] || can.includes('audio') && kind === KINDS[1]) return readMedium(file);
    const what = can.includes('image') ? can.includes('audio') ? 'text, pictures and sound' : 'text and pictures' : 'text';
    throw new Error(`it is ${kind[1]}, and the model reads ${what} only`);
  }
  const pdf = file.type === 'application/pdf' || /\.pdf$/i.test(file.name);
  const limit = pdf ? MAX_PDF : MAX_TEXT;
  if (file.size > limit) throw new Error(`it has ${bytesText(file.size)}, and ${pdf ? 'a PDF' : 'a text'} may have ${bytesText(limit)}`);
  if (!file.size) throw new Error('it is empty, or a folder');
  if (pdf) return {text: await readPdf(file)};
  try { return {text: decode(new Uint8Array(await file.arrayBuffer()))}; }
  catch (e) {
    if (e instanceof DOMException) throw new Error('the browser cannot read it');
    throw new Error('it is no text (UTF-8 or UTF-16)');
  }
}

export async function addFiles(list) {
  const bad = [];
  reading++;
  try {
    for (const file of list) {
      if (files.length >= MAX_FILES) { bad.push(`No more than ${MAX_FILES} files go with a question.`); break; }
      try {
        const read = await readOne(file);
        files.push({name: file.name || 'file', ...read});
        show();
      } catch (e) { bad.push(`${file.name || 'The file'} is not attached: ${e.message}.`); }
    }
  } finally { reading--; }
  if (bad.length) say(bad.slice(0, 5).join(' '));
  listener();
}

// Longer than any run of backticks in it; looked for once.
const fences = new WeakMap();
function fenceOf(f) {
  if (!fences.has(f)) {
    let longest = 2;
    for (const m of f.text.matchAll(/`{3,}/g)) longest = Math.max(longest, m[0].length);
    fences.set(f, '`'.repeat(longest + 1));
  }
  return fences.get(f);
}

// A question with its files, as the model gets it.
export function withFiles(text, list) {
  const out = [];
  for (const f of list ?? []) {
    if (f.media) continue;
    const fence = fenceOf(f);
    out.push(`File ${JSON.stringify(f.name)}:\n${fence}\n${f.text.replace(/\n$/, '')}\n${fence}`);
  }
  if (text) out.push(text);
  return out.join('\n\n');
}

// The content of a message: parts where pictures or sounds go with it.
export function contentWith(text, list) {
  const media = (list ?? []).filter(f => f.media), all = withFiles(text, list);
  if (!media.length) return all;
  const parts = media.map(f => f.sound ? {type: 'input_audio', input_audio: {data: f.media.slice(f.media.indexOf(',') + 1), format: 'wav'}}
    : {type: 'image_url', image_url: {url: f.media}});
  if (all) parts.push({type: 'text', text: all});
  return parts;
}

// A text that is too long for the field goes as a file.
function asFile(text, e) {
  if (text.length <= LONG_PASTE && (text.length < 100 || $('input').value.length + text.length <= MAX_INPUT)) return;
  e.preventDefault();
  if (text.length > MAX_TEXT) { say(`The pasted text is not attached: it has ${bytesText(text.length)}, and a text may have ${bytesText(MAX_TEXT)}.`); return; }
  if (files.length >= MAX_FILES) { say(`The pasted text is not attached: no more than ${MAX_FILES} files go with a question.`); return; }
  const n = files.filter(f => f.name.startsWith('pasted text')).length + 1;
  files.push({name: `pasted text ${n}.txt`, text});
  show();
}

export function initFiles() {
  $('attach').onclick = () => $('pick-files').click();
  $('pick-files').onchange = async () => {
    await addFiles([...$('pick-files').files]);
    $('pick-files').value = '';
    $('input').focus();
  };
  $('input').addEventListener('paste', e => {
    const list = [...(e.clipboardData?.files ?? [])], text = e.clipboardData?.getData('text/plain') ?? '';
    if (list.length && !text) {
      e.preventDefault();
      addFiles(list);
    } else asFile(text, e);
  });
  $('input').addEventListener('beforeinput', e => asFile(e.data ?? e.dataTransfer?.getData('text/plain') ?? '', e)); // dropped, or by a program
  let depth = 0;
  const has = e => [...(e.dataTransfer?.types ?? [])].includes('Files');
  const over = on => { $('drop').hidden = !on; };
  addEventListener('dragenter', e => { if (has(e)) { depth++; over(true); e.preventDefault(); } });
  addEventListener('dragleave', e => { if (has(e) && --depth <= 0) { depth = 0; over(false); } });
  addEventListener('dragover', e => { if (has(e)) e.preventDefault(); });
  addEventListener('drop', e => {
    if (!has(e)) return;
    e.preventDefault();
    depth = 0;
    over(false);
    addFiles([...e.dataTransfer.files]);
  });
}
