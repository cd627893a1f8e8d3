// A conversation as a tree of messages: an edited question or another answer is a sibling of the first one.
import {newId} from './dom.js';
import {write, messagesOf, opening} from './store.js';

export const newChat = (model = '') => ({id: newId(), title: '', named: false, pinned: false, order: 0, model, settings: {}, leaf: null, nodes: new Map()});

// Without what belongs to this tab only.
export function meta(chat) {
  const {nodes, next, ...rest} = chat;
  return rest;
}

export const saveChat = chat => write([['chats', meta(chat)]]);

const keptIn = new WeakMap(); // conversation: the opening of the store in which all of it is kept

export function saveNode(chat, ...nodes) {
  const whole = chat.nodes && keptIn.has(chat) && keptIn.get(chat) !== opening();
  keptIn.set(chat, opening());
  return write([...(whole ? [...chat.nodes.values()] : nodes).map(n => ['messages', n]), ['chats', meta(chat)]]);
}

export async function loadNodes(chat) {
  chat.nodes = new Map((await messagesOf(chat.id)).map(m => [m.id, m]));
  keptIn.set(chat, opening());
  mend(chat);
}

// A leaf that is not there (another version of the page, an import) is the last message of the newest branch.
export function mend(chat) {
  if (!chat.nodes.has(chat.leaf)) chat.leaf = chat.nodes.size ? lastLeaf(chat, null) : null;
}

const older = (a, b) => a.seq - b.seq || (a.id < b.id ? -1 : 1);

export function kids(chat, parent) {
  const out = [];
  for (const n of chat.nodes.values()) if ((n.parent ?? null) === parent && n.id !== parent) out.push(n);
  return out.sort(older);
}

// From the first message to the leaf.  A circle or a gap (a damaged import) ends it.
export function path(chat, leaf = chat.leaf) {
  const out = [], seen = new Set();
  for (let n = chat.nodes?.get(leaf); n && !seen.has(n.id); n = chat.nodes.get(n.parent)) {
    seen.add(n.id);
    out.push(n);
  }
  return out.reverse();
}

export function lastLeaf(chat, parent) {
  const index = new Map();
  for (const n of chat.nodes.values()) {
    const best = index.get(n.parent ?? null);
    if (!best || older(best, n) < 0) index.set(n.parent ?? null, n);
  }
  let at = parent;
  for (let i = 0; i <= chat.nodes.size && index.has(at); i++) at = index.get(at).id;
  return at;
}

export function add(chat, props) {
  const parent = props.parent ?? null;
  const siblings = kids(chat, parent);
  const node = {id: newId(), chat: chat.id, seq: (siblings.at(-1)?.seq ?? -1) + 1, content: '', reasoning: '', error: '', stats: {}, ...props, parent};
  chat.nodes.set(node.id, node);
  chat.leaf = node.id;
  return node;
}

// Parents and their children in order, all at once.
export function families(chat) {
  const by = new Map();
  for (const n of chat.nodes.values()) {
    const parent = n.parent ?? null;
    if (by.has(parent)) by.get(parent).push(n);
    else by.set(parent, [n]);
  }
  for (const list of by.values()) list.sort(older);
  return by;
}

// The node and all after it.
export function below(chat, id) {
  const by = families(chat), seen = new Set(), next = [id];
  for (let at; (at = next.pop()) !== undefined;) {
    if (seen.has(at) || !chat.nodes.has(at)) continue;
    seen.add(at);
    for (const k of by.get(at) ?? []) next.push(k.id);
  }
  return [...seen].map(n => chat.nodes.get(n));
}
