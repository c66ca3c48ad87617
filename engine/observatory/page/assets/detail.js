// What the pages of one thing have in common.
import { askToken, get, hasToken } from './api.js';
import { h, problem, replace } from './dom.js';
import { pretty } from './format.js';

const readEvery = 2000;
// What changes with every moment is no news.
const passing = ['due_in_seconds'];

export const fact = (title, content) => (content === null || content === undefined || content === false || content === '' ? null : h('div', null, h('dt', null, title), h('dd', null, content)));

// payload is what an answer carries, or why it doesn't.
export const payload = (answer) => (answer.payload_hidden
  ? h('p', null, h('span', { class: 'quiet' }, answer.payload_hidden, ' '), !hasToken() && h('button', { type: 'button', class: 'small', onclick: () => askToken() }, 'Enter the token'))
  : h('pre', { tabindex: '0', id: 'payload' }, pretty(answer.payload)));

// follow draws an answer into content, and again when it changes: what stays as it is is left alone, with its
// selection and its focus. It returns what reads at once.
export function follow(content, path, signal, draw) {
  let shown = '';
  async function load() {
    try {
      const answer = await get(path, signal);
      const text = JSON.stringify(answer, (name, value) => (passing.includes(name) ? undefined : value));
      if (text !== shown && (!shown || !document.querySelector('dialog[open]'))) {
        shown = text;
        draw(answer);
      }
    } catch (e) {
      if (signal.aborted) return;
      shown = '';
      replace(content, problem(e));
    }
    content.setAttribute('aria-busy', 'false');
  }
  document.addEventListener('waybill:token', load, { signal });
  const timer = setInterval(load, readEvery);
  signal.addEventListener('abort', () => clearInterval(timer));
  load();
  return load;
}
