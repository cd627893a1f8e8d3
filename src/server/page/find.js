// Where a conversation has what was searched for: the message, and the place in it.
import {$, rester} from './dom.js';
import {path} from './tree.js';
import {isIdle} from './render.js';

const PATIENCE = 10000; // milliseconds until a message is on the page

// Whether a text has the word (in small letters).  Several words are also found as they are shown: without marks of Markdown
// between them, and over the end of a line.
export function has(content, word) {
  const text = content.toLowerCase();
  return text.includes(word) || (/\s/.test(word) && text.replace(/[*_`~]+/g, '').replace(/([^\n])\n(?!\n)/g, '$1 ').includes(word));
}

// The last message that has the word (in small letters), of the branch that is shown if one of it has; null: none.
export async function messageWith(chat, word) {
  const pause = rester(), shown = path(chat), here = new Set(shown.map(n => n.id));
  for (const n of [...shown.reverse(), ...[...chat.nodes.values()].filter(n => !here.has(n.id)).reverse()]) {
    if (has(n.content, word)) {
      return n;
    }
    await pause();
  }
  return null;
}

// The place in an element, which may go over bold words and the like, but not over blocks.
async function rangeOf(root, word) {
  const pause = rester(), wanted = new RegExp(word.replace(/[.*+?^${}()|[\]\\]/g, '\\$&').replace(/\s+/g, '\\s+'), 'iu');
  for (const box of root.querySelectorAll('p, li, td, th, h3, h4, h5, h6, .lines, .plain-text, .block')) {
    await pause();
    const m = wanted.exec(box.textContent);
    if (!m || box.querySelector('p, li, td')) continue;
    const walk = document.createTreeWalker(box, NodeFilter.SHOW_TEXT), range = document.createRange();
    let at = 0;
    for (let t; (t = walk.nextNode()); at += t.length) {
      if (m.index >= at && m.index < at + t.length) range.setStart(t, m.index - at);
      if (m.index + m[0].length <= at + t.length) { range.setEnd(t, m.index + m[0].length - at); break; }
    }
    return range;
  }
  return null;
}

// Scrolls to the word in the message, and marks it; stays(): whether the user has not gone elsewhere.
export async function showWord(root, word, stays) {
  root.scrollIntoView({block: 'start'});
  CSS.highlights?.delete('found');
  const end = performance.now() + PATIENCE;
  let range = null;
  while (stays() && performance.now() < end) {
    const idle = isIdle();
    range = await rangeOf(root, word);
    if (range || idle) break;
    await new Promise(go => setTimeout(go, 50));
  }
  if (!range || !stays()) return;
  const first = range.startContainer.parentElement;
  for (let box = first; (box = box.closest('[hidden]')); ) box.hidden = false;
  if (self.Highlight) CSS.highlights.set('found', new Highlight(range));
  for (let i = 0; i < 5 && stays(); i++) { // what was not laid out before has another height now
    const at = range.getBoundingClientRect(), log = $('log'), box = log.getBoundingClientRect();
    if (at.height) log.scrollTop += at.top - box.top - box.height / 3;
    else first.scrollIntoView({block: 'center'});
    await new Promise(requestAnimationFrame);
  }
}
