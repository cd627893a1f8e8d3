// Settings: for a conversation, or for all that have no own value; the fields say what the server takes when they
// are empty.
import {$, el, bytesText} from './dom.js';
import {settings, saveSettings} from './api.js';
import {room, isKept} from './store.js';
import {serverProps} from './models.js';
import {Editor} from './edit.js';

// [key, label, kind, limits or choices, name of the option whose value an empty field means]
const FIELDS = [
  ['system', 'System prompt', 'text'],
  ['thinking', 'Thinking', 'choice', ['', 'off', 'on', 'low', 'medium', 'high', 'max']],
  ['thinking_budget', 'Longest thought (tokens)', 'whole', {min: 0, placeholder: 'until it ends'}],
  ['max_tokens', 'Longest answer (tokens)', 'whole', {min: 1, option: 'predict'}],
  ['temperature', 'Temperature', 'number', {min: 0, max: 2, step: 0.05, option: 'temp'}],
  ['top_p', 'Top-p', 'number', {min: 0, max: 1, step: 0.01, option: 'top-p'}],
  ['top_k', 'Top-k', 'whole', {min: 0, option: 'top-k'}],
  ['min_p', 'Min-p', 'number', {min: 0, max: 1, step: 0.01, option: 'min-p'}],
  ['seed', 'Seed', 'whole', {min: 0, placeholder: 'random'}],
  ['stop', 'Stop texts (one a line)', 'lines'],
  ['More samplers'],
  ['typical_p', 'Typical-p', 'number', {min: 0, max: 1, step: 0.01, option: 'typical-p'}],
  ['repeat_penalty', 'Repeat penalty', 'number', {min: 0, max: 1000, step: 0.01, option: 'repeat-penalty'}],
  ['repeat_last_n', 'Tokens for penalties', 'whole', {min: -1, option: 'repeat-last-n'}],
  ['presence_penalty', 'Presence penalty', 'number', {min: -2, max: 2, step: 0.05, option: 'presence-penalty'}],
  ['frequency_penalty', 'Frequency penalty', 'number', {min: -2, max: 2, step: 0.05, option: 'frequency-penalty'}],
  ['dry_multiplier', 'DRY multiplier', 'number', {min: 0, max: 1000000, step: 0.05, option: 'dry-multiplier'}],
  ['dry_base', 'DRY base', 'number', {min: 0, max: 1000, step: 0.05, option: 'dry-base'}],
  ['dry_allowed_length', 'DRY allowed length', 'whole', {min: 0, option: 'dry-allowed-length'}],
  ['dry_penalty_last_n', 'DRY tokens', 'whole', {min: -1, option: 'dry-penalty-last-n'}],
  ['xtc_probability', 'XTC probability', 'number', {min: 0, max: 1, step: 0.01, option: 'xtc-probability'}],
  ['xtc_threshold', 'XTC threshold', 'number', {min: 0, max: 1, step: 0.01, option: 'xtc-threshold'}],
  ['samplers', 'Samplers in use', 'words', {placeholder: 'all, such as: top_k top_p temperature'}],
  ['For programs'],
  ['tools', 'Tools (a JSON list)', 'json', {placeholder: '[{"type": "function", "function": {"name": "..."}}]'}],
  ['extra', 'Further JSON', 'json', {placeholder: '{"logit_bias": {"42": -100}}'}],
];
const KEYS = new Map(FIELDS.filter(f => f.length > 1).map(f => [f[0], f]));

// Members that the page itself writes.
const OWN = ['system', 'thinking', 'extra', 'messages', 'model', 'stream', 'stream_options', 'return_progress', 'timings_per_token', 'resumable', 'n', 'prompt', 'input'];

// Other names of what fields set.
const SAME = {max_completion_tokens: 'max_tokens', n_predict: 'max_tokens', reasoning_effort: 'thinking', chat_template_kwargs: 'thinking', enable_thinking: 'thinking',
  typical: 'typical_p', typ_p: 'typical_p', repetition_penalty: 'repeat_penalty', functions: 'tools'};

const BOXES = ['thoughts', 'markdown', 'enterLine']; // of the browser: settings, and the elements that have them

let scope = 'chat';
let chat = null;
let save = () => {};

export const values = c => ({...settings.all, ...c?.settings});

const parse = text => { try { return [JSON.parse(text)]; } catch (e) { return [null, e.message]; } };

// What is wrong with a value; '' for nothing.
export function wrong(key, text) {
  const field = KEYS.get(key);
  if (!field || text === '' || text === undefined) return '';
  const [, label, kind, limits] = field;
  if (kind === 'whole' || kind === 'number') {
    const n = Number(text);
    if (!Number.isFinite(n) || (kind === 'whole' && !Number.isSafeInteger(n))) return `${label} is no ${kind === 'whole' ? 'whole ' : ''}number.`;
    if (limits.min !== undefined && n < limits.min) return `${label} is ${text}, below ${limits.min}.`;
    if (limits.max !== undefined && n > limits.max) return `${label} is ${text}, above ${limits.max}.`;
  }
  if (kind === 'json') {
    const [value, why] = parse(text);
    if (why) return `${label}: ${why}`;
    if (key === 'tools') return Array.isArray(value) ? '' : 'Tools are no JSON list: [ ... ].';
    if (!value || typeof value !== 'object' || Array.isArray(value)) return 'Further JSON is no object: { ... }.';
    for (const name of Object.keys(value)) {
      if (OWN.includes(name)) return `Further JSON names '${name}', which the page sets itself.`;
      const field = SAME[name] ?? name;
      if (KEYS.has(field) && values(chat)[field])
        return `Further JSON names '${name}', which a field above sets, too.`;
    }
  }
  return '';
}

// Into a request.  Throws a sentence if a value is wrong.
export function apply(c, body) {
  const v = values(c);
  chat = c;
  for (const [key, field] of KEYS) {
    const text = v[key], kind = field[2];
    if (text === undefined || text === '') continue;
    const why = wrong(key, text);
    if (why) throw new Error(`Settings: ${why}`);
    if (kind === 'whole' || kind === 'number') body[key] = Number(text);
    else if (kind === 'text') body[key] = text;
    else if (kind === 'lines') body[key] = text.split('\n').filter(Boolean);
    else if (kind === 'words') body[key] = text.split(/[\s,;]+/).filter(Boolean);
    else if (key === 'tools') body.tools = parse(text)[0];
  }
  if (body.stop && !body.stop.length) delete body.stop;
  if (v.thinking === 'on' || v.thinking === 'off') body.chat_template_kwargs = {enable_thinking: v.thinking === 'on'};
  else if (v.thinking) body.reasoning_effort = v.thinking;
  if (v.extra) Object.assign(body, parse(v.extra)[0]);
  return body;
}

/* ---- the dialog ---- */

const store = () => scope === 'all' ? settings.all : chat.settings ??= {};

function usual(field) {
  const [key, , , limits] = field;
  if (scope === 'chat' && settings.all[key]) return settings.all[key];
  const p = serverProps(), params = p?.default_generation_settings?.params ?? {};
  const value = params[key] ?? p?.options?.[limits?.option];
  if (limits?.placeholder) return limits.placeholder;
  if (key === 'max_tokens') return value > 0 ? value : 'until it ends';
  return value ?? '';
}

function choiceText(value) {
  if (value) return value;
  if (scope === 'chat' && settings.all.thinking) return `as for all conversations (${settings.all.thinking})`;
  const p = serverProps();
  return p?.reasoning ? `server default (${p.reasoning.default ? 'on' : 'off'})` : 'server default';
}

let editors = [];

function input(field) {
  const [key, label, kind, limits] = field, long = ['text', 'lines', 'json'].includes(kind), kept = store()[key] ?? '';
  const error = el('span', {className: 'error', id: 'error-' + key, hidden: true});
  const placeholder = kind === 'choice' ? '' : String(usual(field));
  let f;
  if (kind === 'choice') f = el('select', {}, ...limits.map(v => el('option', {value: v, textContent: choiceText(v)})));
  else if (long) {
    f = new Editor(label, kept, {props: {rows: kind === 'text' ? 3 : 2, dir: kind === 'json' ? 'ltr' : 'auto', spellcheck: kind === 'text',
      placeholder: placeholder.slice(0, 1000)}});
    editors.push(f);
    f.first.dataset.key = key;
  } else f = el('input', {type: kind === 'words' ? 'text' : 'number', autocomplete: 'off', placeholder, maxLength: 1000});
  if (kind === 'number' || kind === 'whole') {
    for (const name of ['min', 'max']) if (limits[name] !== undefined) f[name] = limits[name];
    f.step = kind === 'whole' ? 1 : 'any';
  }
  if (!long) {
    f.dataset.key = key;
    f.value = kept;
  }
  f.setAttribute('aria-describedby', error.id);
  (f.box ?? f).addEventListener('input', () => take(key, f, error));
  if (kept) take(key, f, error, kept);
  return el('label', {className: long ? 'above' : ''}, label, f.box ?? f, error);
}

// What is wrong is said at its place, and not kept.
function take(key, f, error, value = f.value) {
  const why = f.validity?.badInput ? `${KEYS.get(key)[1]} is no number.` : wrong(key, value.trim());
  error.hidden = !why;
  error.textContent = why;
  f.setAttribute('aria-invalid', !!why);
  if (why || value === (store()[key] ?? '')) return;
  if (value === '') delete store()[key];
  else store()[key] = value;
  if (scope !== 'all') save(chat);
  else if (!saveSettings()) {
    error.hidden = false;
    error.textContent = 'This browser has no room for it: it holds until the page is closed.';
  }
}

function fields() {
  const out = [];
  let box = out;
  for (const field of FIELDS) {
    if (field.length > 1) { box.push(input(field)); continue; }
    const inside = [];
    box = inside;
    out.push([field[0], inside]);
  }
  return out.map(x => Array.isArray(x) ? el('details', {open: x[1].some(l => l.querySelector('[data-key]').value)}, el('summary', {textContent: x[0]}), ...x[1]) : x);
}

export function showFields() {
  $('scope').value = scope;
  for (const e of editors) e.drop();
  editors = [];
  $('fields').replaceChildren(...fields());
  $('key').value = settings.key ?? '';
  for (const name of BOXES) $(name).checked = !!settings[name];
  $('settings-error').hidden = true;
}

async function showRoom() {
  const e = await room();
  $('room').textContent = !isKept() ? 'This browser keeps no conversations here.'
    : e?.quota ? `Conversations are kept in this browser only: ${bytesText(e.usage)} of ${bytesText(e.quota)} in use.` : 'Conversations are kept in this browser only.';
}

function sayUnkept(kept) {
  $('settings-error').hidden = kept;
  $('settings-error').textContent = kept ? '' : 'This browser does not keep settings here: they hold until the page is closed.';
}

export function openSettings(c) {
  chat = c;
  showFields();
  showRoom();
  $('settings').showModal();
}

export function initSettings(onSave, onMarkdown) {
  save = onSave;
  $('scope').onchange = () => { scope = $('scope').value; showFields(); };
  $('key').oninput = () => {
    settings.key = $('key').value.trim();
    sayUnkept(saveSettings());
  };
  for (const name of BOXES) $(name).onchange = () => {
    settings[name] = $(name).checked || undefined;
    sayUnkept(saveSettings());
    if (name === 'markdown') onMarkdown();
  };
  $('reset').onclick = () => {
    for (const k of Object.keys(store())) delete store()[k];
    const kept = scope !== 'all' || saveSettings();
    if (scope !== 'all') save(chat);
    showFields();
    sayUnkept(kept);
  };
  $('settings').querySelector('form').addEventListener('submit', e => {
    const bad = $('fields').querySelector('[aria-invalid=true]');
    if (!bad) return;
    e.preventDefault();
    bad.closest('details')?.setAttribute('open', '');
    bad.focus();
  });
}
