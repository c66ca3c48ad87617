// Processes: how many of each kind there are, and which.
import { get } from '../api.js';
import { badge, h, problem, replace, table } from '../dom.js';
import { age, count, found, hidden, query, when } from '../format.js';
import { now, providers } from '../live.js';
import { pages, search } from '../search.js';

const path = 'processes';
const readEvery = 3000;
// A search may go through all processes: the pause behind it is longer by so much.
const dear = 20;
const names = ['provider', 'process', 'id', 'status', 'from', 'until', 'idle', 'after'];

export const processLink = (p) => found(p.id, `#/${path}/${encodeURIComponent(p.process)}/${encodeURIComponent(p.id)}${query({ provider: p.provider })}`, p.id);

export const status = (p) => badge({ running: 'healthy', awaited: 'held' }[p.status] ?? p.status, p.status);

// kinds are rows of counts; null: those of a database are not known.
function kindsOf(counts) {
  const all = Object.entries(counts).flatMap(([provider, kinds]) => Object.entries(kinds ?? {}).map(([process, n]) => ({ provider, process, ...n })));
  return all.sort((a, b) => (a.process < b.process ? -1 : a.process > b.process ? 1 : a.provider < b.provider ? -1 : 1));
}

const told = () => (now.health?.reasons ?? []).filter((r) => ['processes_idle', 'processes_unheard', 'dead_letters_early'].includes(r.code));

export function processes(main, { params, signal }) {
  const hints = h('ul', { class: 'reasons' });
  const failure = h('div');
  const unknown = h('p', { class: 'quiet' });
  const number = (title, of, filter) => ({
    title, num: true, same: (k) => `${k[of]}`,
    cell: (k) => (k[of] > 0 ? h('a', { href: `#/${path}${query({ provider: k.provider, process: k.process, ...filter })}` }, count(k[of])) : count(k[of])),
  });
  const kinds = table({
    caption: 'By kind. Idle processes have had no message for 30 days and have no timer, so nothing will end them.',
    empty: 'There are no processes.',
    key: (k) => `${k.provider} ${k.process}`,
    rowState: (k) => (k.idle > 0 ? 'bad' : ''),
    columns: [
      { title: 'Process', cell: (k) => k.process },
      number('Running', 'running', { status: 'running' }),
      number('Awaited', 'awaited', { status: 'awaited' }),
      number('Ended', 'ended', { status: 'ended' }),
      number('Idle', 'idle', { idle: true }),
      { title: 'Oldest running', num: true, cell: (k) => age(k.oldest_seconds) },
      { title: 'Find', same: (k) => k.process, cell: (k) => h('a', { href: `#/dead-letters${query({ provider: k.provider, subscription: k.process })}` }, 'dead letters') },
      { title: 'Database', cell: (k) => k.provider },
    ],
  });
  const list = table({
    caption: 'Oldest first. A process is awaited if messages arrived before the one that starts it; one that has ended ignores later messages until it is removed.',
    empty: 'No processes match.',
    key: (p) => (p.id === hidden ? p.place : JSON.stringify([p.provider, p.process, p.id])),
    columns: [
      { title: 'Status', same: (p) => p.status, cell: status },
      { title: 'Process', cell: (p) => p.process },
      { title: 'Id', same: (p) => p.id, cell: processLink },
      { title: 'Heard', num: true, cell: (p) => count(p.version) },
      { title: 'Began', same: (p) => p.began_at, cell: (p) => when(p.began_at) },
      { title: 'Last heard', same: (p) => p.last_at, cell: (p) => when(p.last_at) },
      { title: 'Ended', same: (p) => `${p.ended_at}`, cell: (p) => when(p.ended_at) },
      { title: 'Database', cell: (p) => p.provider },
    ],
  });
  const following = h('div');
  const content = h('section', { 'aria-label': 'List', 'aria-busy': 'true' }, h('p', { class: 'quiet' }, 'Reading…'));
  main.append(h('h1', null, 'Processes'), hints, h('section', { 'aria-label': 'Kinds' }, kinds.element, unknown),
    search(path, params, [
      { name: 'id', title: 'Id', wide: true },
      { name: 'status', title: 'Status', type: 'select', options: ['running', 'awaited', 'ended'] },
    ], [
      { name: 'provider', title: 'Database', type: 'select', options: providers() },
      { name: 'process', title: 'Process', like: 'library.lending' },
      { name: 'from', title: 'Began from', type: 'moment' },
      { name: 'until', title: 'Began until', type: 'moment' },
      { name: 'idle', title: 'Idle', type: 'box' },
    ]), failure, content,
    h('p', { class: 'quiet' }, 'To change them: ', h('code', null, 'waybill processes end'), ' ends the processes that a filter selects, and stops their timers; ', h('code', null, 'wake'), ' fires a timer of one now.'));

  let timer;
  let said = '';
  let turn = 0;
  async function load() {
    const mine = ++turn;
    clearTimeout(timer);
    const began = Date.now();
    try {
      const answer = await get(`api/processes${query({ ...Object.fromEntries(names.map((n) => [n, params.get(n)])), limit: 50 })}`, signal);
      if (mine !== turn) return;
      kinds.update(kindsOf(answer.counts));
      unknown.textContent = Object.values(answer.counts).every(Boolean) ? '' : 'Counting them all took too long; it is tried again.';
      list.update(answer.processes.map((p, place) => ({ ...p, place })));
      const hint = h('ul', null, told().map((r) => h('li', null, badge(r.state, r.code), ' ', r.text)));
      if (hint.textContent !== said) {
        said = hint.textContent;
        replace(hints, ...hint.childNodes);
      }
      replace(failure);
      if (!content.contains(list.element)) replace(content, list.element, following);
      const more = Object.entries(answer.next).filter(([, after]) => after !== hidden);
      replace(following, pages(path, params, Object.fromEntries(more)),
        more.length < Object.keys(answer.next).length && h('p', { class: 'quiet' }, 'There are more. A token of role operate shows them.'));
    } catch (e) {
      if (signal.aborted || mine !== turn) return;
      replace(failure, problem(e));
      if (!content.contains(list.element)) replace(content);
    }
    content.setAttribute('aria-busy', 'false');
    timer = setTimeout(load, Math.max(readEvery, dear * (Date.now() - began)));
  }
  document.addEventListener('waybill:token', load, { signal });
  signal.addEventListener('abort', () => { turn++; clearTimeout(timer); });
  load();
}
