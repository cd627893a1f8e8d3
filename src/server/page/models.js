// What answers: the models of the server, their states, and what an empty setting means there.
import {$, el, button, bytesText, nameText} from './dom.js';
import {settings, saveSettings, callJson} from './api.js';

let list = [];
let props = null;         // of the model that is chosen, where it is loaded
let propsOf = '';
let timer = 0;
let current = () => null; // the conversation
let changed = () => {};
let loading = () => {};  // says so where an answer waits for it

export const allModels = () => list;
export const isRouter = () => list.some(m => m.status);
export const chosen = chat => {
  const c = chat ?? current();
  return list.find(m => m.id === c?.model) ?? list.find(m => m.id === settings.model) ?? list.find(m => m.status?.value === 'loaded') ?? list[0];
};
export const serverProps = () => props;
export const contextOf = chat => chosen(chat)?.context_length ?? 0;
export const isResumable = () => !props || Number(props.options?.resumable ?? 0) > 0;

// What is added to an address so that it reaches the model; a look at a model loads none.
export const query = (chat, more = 'autoload=false') => {
  const m = chosen(chat);
  return m?.status ? `?model=${encodeURIComponent(m.id)}${more ? '&' + more : ''}` : '';
};

export function stateOf(m) {
  const s = m.status;
  if (!s) return '';
  if (s.failed) return 'failed';
  return s.value === 'loading' ? `loading ${Math.round(100 * (s.progress ?? 0))} %` : s.value;
}

// What drafts, and what has come of it.
function draftText(s) {
  if (!s) return '';
  if (!s.enabled) return 'no drafting';
  const by = s.proposer === 'ngram' ? 'from the text' : `by ${s.proposer}`;
  if (!s.drafted) return `drafts ${by}`;
  return `drafts ${by}: ${Math.round(100 * s.accepted / s.drafted)} % accepted, ${s.mean_length.toFixed(1)} tokens a step`;
}

function showPicker() {
  const select = $('model');
  select.hidden = !isRouter();
  $('open-models').hidden = !list.length;
  $('open-models').textContent = $('models-title').textContent = isRouter() ? 'Models' : 'Model';
  if (select.hidden || document.activeElement === select) return; // an open list stays as it is
  select.replaceChildren(...list.map(m => el('option', {value: m.id, textContent: `${m.id} (${stateOf(m)})`, title: m.status?.message ?? ''})));
  select.value = chosen()?.id ?? '';
}

async function readProps(m) {
  const loaded = !m.status || m.status.value === 'loaded';
  if (!loaded || !m.context_length) { props = null; propsOf = ''; return; }
  try {
    props = await callJson('props' + query());
    propsOf = m.id;
  } catch (e) {
    props = null;
    if (e.status !== 401) throw e;
  }
}

// The line at the foot; again while there is no answer, and all the time where models come and go.
export async function showMachine() {
  clearTimeout(timer);
  let done = false;
  try {
    list = (await callJson('v1/models')).data;
    const m = chosen();
    if (!m) throw new Error('no model');
    const n = m.context_length;
    const parts = [nameText(m.id)];
    if (n) parts.push(`${n.toLocaleString()} tokens of context`);
    if (m.status && m.status.value !== 'loaded') parts.push(stateOf(m));
    else if (!n) parts.push('is being loaded');
    await readProps(m);
    if (props) parts.push(draftText(props.speculative));
    const lost = current()?.model;
    if (lost && !list.some(x => x.id === lost)) parts.push(`${nameText(lost)}, which this conversation used, is not served here`);
    if (m.status?.value === 'loading') loading(`Loading ${m.id}: ${Math.round(100 * (m.status.progress ?? 0))} %`);
    $('machine').textContent = parts.filter(Boolean).join(' · ');
    showPicker();
    changed();
    done = !!n && !m.status;
  } catch (e) { $('machine').textContent = e.status === 401 ? 'This server needs a key.' : 'The server cannot be reached.'; }
  timer = setTimeout(showMachine, done ? 60000 : document.hidden ? 30000 : 3000);
}

/* ---- the router's models ---- */

let open = 0;

const modelText = (m, words, ...more) =>
  el('span', {className: 'grow'}, el('strong', {textContent: m.id}), el('br'), el('span', {className: 'note', textContent: words.filter(Boolean).join(' · ')}), ...more);

// A server of one model says more of it.
function describe(m, p) {
  const meta = m.meta ?? {}, reads = m.architecture?.input_modalities, r = p.runtime;
  return [p.model_path ? `file ${p.model_path}` : '', meta.arch, meta.n_params ? `${(meta.n_params / 1e9).toPrecision(3)} billion parameters` : '',
    meta.size ? `weights ${bytesText(meta.size)}` : '', m.context_length ? `${m.context_length.toLocaleString()} tokens of context, trained with ${(meta.n_ctx_train ?? 0).toLocaleString()}` : '',
    reads?.length ? `reads ${reads.join(', ')}` : '', r ? `${r.threads} threads, ${r.instructions}, keys and values ${r.kv_cache_k}` : '', draftText(p.speculative),
    p.total_slots ? `${p.total_slots} answers at once` : '', p.server ? `ingle ${p.server.version}` : ''];
}

async function showBox() {
  try {
    const [p, models] = await Promise.all([callJson('props'), callJson('v1/models')]);
    list = models.data;
    $('models-pull').hidden = !p.page_pull;
    $('models-memory').textContent = p.memory ? `Memory planned: ${bytesText(p.memory.planned_bytes)} of ${bytesText(p.memory.budget_bytes)}; at most ${p.max_instances} models run.` : '';
    const planned = new Map((p.models ?? []).map(m => [m.id, m]));
    const focus = document.activeElement?.dataset?.model;
    $('models-list').replaceChildren(...list.map(m => {
      const here = planned.get(m.id);
      if (!m.status) return el('li', {}, modelText(m, describe(m, p)));
      const up = ['loaded', 'loading'].includes(m.status.value);
      const b = button(up ? 'Unload' : 'Load', () => change(m.id, up), {className: '', aria: `${up ? 'Unload' : 'Load'} ${m.id}`});
      b.dataset.model = m.id;
      const bar = el('progress', {max: 1, value: m.status.progress ?? 0, hidden: m.status.value !== 'loading'});
      bar.setAttribute('aria-label', `Loading ${m.id}`);
      const words = [stateOf(m), here?.planned_bytes ? `planned ${bytesText(here.planned_bytes)}` : '', m.context_length ? `${m.context_length.toLocaleString()} tokens of context` : '',
        m.meta?.size ? `weights ${bytesText(m.meta.size)}` : '', here?.running ? `${here.running} running` : '', m.status.message ?? ''];
      return el('li', {}, modelText(m, words, bar), b);
    }));
    if (focus) document.querySelector(`#models-list [data-model="${CSS.escape(focus)}"]`)?.focus();
    showPicker();
  } catch (e) { boxError(e.message); }
  clearTimeout(open);
  if ($('models-box').open) open = setTimeout(showBox, 1000);
}

function boxError(text) {
  $('models-error').hidden = !text;
  $('models-error').textContent = text;
}

async function change(id, unload) {
  boxError('');
  try { await callJson(unload ? 'models/unload' : 'models/load', {json: {model: id}}); }
  catch (e) { boxError(e.message); }
  showBox();
}

async function fetchModel() {
  const name = $('models-name').value.trim();
  if (!name) return;
  boxError('');
  try {
    await callJson('models/pull', {json: {model: name}});
    $('models-name').value = '';
  } catch (e) { boxError(e.message); }
  showBox();
}

export function initModels(getChat, onChange, onPick, onLoading) {
  loading = onLoading;
  current = getChat;
  changed = onChange;
  $('model').onchange = () => {
    settings.model = $('model').value;
    saveSettings();
    onPick($('model').value);
    $('model').blur();
    showMachine();
  };
  $('models-fetch').onclick = fetchModel;
  $('models-name').onkeydown = e => {
    if (e.key !== 'Enter') return;
    e.preventDefault(); // it would close the box
    fetchModel();
  };
  $('open-models').onclick = () => { boxError(''); $('models-box').showModal(); showBox(); };
}
