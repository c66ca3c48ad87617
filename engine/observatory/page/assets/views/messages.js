// Messages: the rows of the outboxes, by any of their properties.
import { get } from '../api.js';
import { actionButton } from '../actions.js';
import { badge, h, problem, replace, table } from '../dom.js';
import { count, found, plural, query, short, when } from '../format.js';
import { lanes, providers } from '../live.js';
import { filterFrom, pages, search } from '../search.js';

const path = 'messages';
const statuses = ['pending', 'processing', 'published', 'failed', 'abandoned'];

// The names of an outbox.Filter for those of the address.
const filterNames = { target: 'target', type: 'type', stream: 'stream', key: 'partition_key', correlation: 'correlation_id', causation: 'causation_id', message: 'message_id', error: 'error', from: 'from', until: 'until' };

export const messageLink = (id, text) => h('a', { href: `#/messages/${encodeURIComponent(id)}`, class: 'mono' }, text ?? id);

export const rowStatus = (row) => [badge(row.status), row.held && [' ', badge('held')]];

function filterOf(params) {
  const filter = filterFrom(params, filterNames);
  if (params.get('held') === 'true') filter.held = true;
  return filter;
}

export function messages(main, { params, signal }) {
  const targets = [...new Set(lanes().map((l) => l.target))];
  const actions = h('div', { class: 'actions' });
  const list = h('div', { 'aria-live': 'polite', 'aria-busy': 'true' }, h('p', { class: 'quiet' }, 'Reading…'));
  main.append(h('h1', null, 'Messages'),
    search(path, params, [
      { name: 'message', title: 'Message id', wide: true },
      { name: 'status', title: 'Status', type: 'choices', options: statuses },
    ], [
      { name: 'provider', title: 'Database', type: 'select', options: providers() },
      { name: 'target', title: 'Target broker', type: 'select', options: targets },
      { name: 'type', title: 'Type', like: 'Ordering.OrderPlaced.v1' },
      { name: 'stream', title: 'Stream', like: 'ordering::order-17' },
      { name: 'key', title: 'Key' },
      { name: 'correlation', title: 'Correlation id' },
      { name: 'causation', title: 'Causation id' },
      { name: 'error', title: 'Part of the error' },
      { name: 'from', title: 'Stored from', type: 'moment' },
      { name: 'until', title: 'Stored until', type: 'moment' },
      { name: 'held', title: 'Holds its key', type: 'box' },
    ]), actions, list);

  // Rows that are chosen with their boxes, by provider.
  const chosen = new Map();
  const filter = filterOf(params);
  const filtered = Object.keys(filter).length > 0;
  const places = () => (params.get('provider') ? [params.get('provider')] : providers());
  const targetsOf = () => {
    if (!chosen.size) return places().map((provider) => ({ provider, filter }));
    const seqs = Map.groupBy([...chosen.values()], (row) => row.provider);
    return [...seqs].map(([provider, rows]) => ({ provider, filter: { seqs: rows.map((r) => r.seq) } }));
  };
  const drawActions = () => {
    const reload = () => load();
    const usable = chosen.size > 0 || filtered;
    replace(actions,
      h('span', { class: 'quiet' }, chosen.size ? `${plural(chosen.size, 'chosen row')}:` : filtered ? 'Everything that the search finds, on all pages:' : 'Select or search for rows to retry, abandon or skip them.'),
      usable && ['retry', 'abandon', 'skip'].map((verb) => actionButton(verb, targetsOf, reload)));
  };

  const rows = table({
    caption: 'Rows in storage order: one per message and target broker.',
    empty: 'No rows match. Published rows are removed after their retention.',
    key: (row) => `${row.provider} ${row.seq}`,
    columns: [
      {
        title: 'Choose', same: (row) => `${row.provider} ${row.seq} ${chosen.has(`${row.provider} ${row.seq}`)}`, cell: (row) => {
          const id = `${row.provider} ${row.seq}`;
          const box = h('input', { type: 'checkbox', 'aria-label': `Choose row ${row.seq} of ${row.provider}`, onchange: () => { if (box.checked) chosen.set(id, row); else chosen.delete(id); drawActions(); } });
          box.checked = chosen.has(id);
          return box;
        },
      },
      { title: 'Status', same: (row) => `${row.status} ${row.held}`, cell: rowStatus },
      { title: 'Message', cell: (row) => [messageLink(row.message_id), h('div', { class: 'quiet' }, row.type)] },
      { title: 'Lane', cell: (row) => `${row.provider} / ${row.target}` },
      { title: 'Key', cell: (row) => found(row.key, `#/messages${query({ provider: row.provider, target: row.target, key: row.key })}`, row.stream) },
      { title: 'Attempts', num: true, cell: (row) => `${count(row.attempts)} of ${count(row.max_attempts)}` },
      { title: 'Stored', cell: (row) => when(row.created_at) },
      { title: 'Last error', cell: (row) => (row.last_error ? [row.failure_class && [badge('class', row.failure_class), ' '], h('span', { class: 'error', title: row.last_error }, short(row.last_error))] : '–') },
    ],
  });

  async function load() {
    try {
      const names = ['provider', 'target', 'type', 'stream', 'key', 'correlation', 'causation', 'message', 'error', 'held', 'from', 'until', 'after'];
      const answer = await get(`api/outbox/messages${query({ ...Object.fromEntries(names.map((n) => [n, params.get(n)])), status: params.getAll('status'), limit: 50 })}`, signal);
      chosen.clear();
      rows.update(answer.messages ?? []);
      replace(list, rows.element, pages(path, params, answer.next));
      drawActions();
    } catch (e) {
      if (!signal.aborted) replace(list, problem(e));
    }
    list.setAttribute('aria-busy', 'false');
  }
  document.addEventListener('waybill:token', load, { signal });
  load();
}
