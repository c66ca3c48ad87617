// Dead letters: messages that a subscription could not handle.
import { get } from '../api.js';
import { actionButton } from '../actions.js';
import { badge, h, problem, replace, table } from '../dom.js';
import { count, found, needed, plural, query, short, when } from '../format.js';
import { now, providers } from '../live.js';
import { filterFrom, pages, search } from '../search.js';

const path = 'dead-letters';
const statuses = ['parked', 'held', 'waiting', 'early', 'replay', 'replayed', 'discarded'];
const reasons = ['undecodable', 'too_large', 'refused', 'newer_version', 'parked', 'failed', 'crashed', 'held', 'waiting', 'early'];
const names = ['provider', 'subscription', 'message', 'key', 'type', 'error_type', 'error', 'reason', 'from', 'until', 'after'];

// The names of a subscription.DeadLetterFilter for those of the address.
const filterNames = { subscription: 'subscription', message: 'message_id', key: 'key', type: 'type', error_type: 'error_type', error: 'error', reason: 'reason', from: 'from', until: 'until' };

export function deadLetters(main, { params, signal }) {
  const actions = h('div', { class: 'actions' });
  const list = h('div', { 'aria-live': 'polite', 'aria-busy': 'true' }, h('p', { class: 'quiet' }, 'Reading…'));
  main.append(h('h1', null, 'Dead letters'),
    search(path, params, [
      { name: 'subscription', title: 'Subscription', type: 'select', options: Object.keys(now.subscriptions ?? {}).sort() },
      { name: 'status', title: 'Status (none: open)', type: 'choices', options: statuses },
    ], [
      { name: 'provider', title: 'Database', type: 'select', options: providers() },
      { name: 'reason', title: 'Reason', type: 'select', options: reasons },
      { name: 'message', title: 'Message id' },
      { name: 'type', title: 'Type', like: 'Ordering.OrderPlaced.v1' },
      { name: 'key', title: 'Key' },
      { name: 'error', title: 'Part of the error' },
      { name: 'error_type', title: 'Go type of the error' },
      { name: 'from', title: 'Last tried from', type: 'moment' },
      { name: 'until', title: 'Last tried until', type: 'moment' },
    ]), actions, list);

  const chosen = new Map();
  const subscription = params.get('subscription');
  let places = [];
  const targetsOf = () => {
    if (!chosen.size) return places.map((provider) => ({ provider, filter: filterFrom(params, filterNames) }));
    // A change is to one subscription of one database.
    const parts = Map.groupBy([...chosen.values()], (l) => JSON.stringify([l.provider, l.subscription]));
    return [...parts.values()].map((letters) => ({ provider: letters[0].provider, filter: { subscription: letters[0].subscription, ids: letters.map((l) => l.id) } }));
  };
  const drawActions = () => replace(actions,
    h('span', { class: 'quiet' }, chosen.size ? `${plural(chosen.size, 'chosen message')}:` : subscription ? 'Everything that the search finds, on all pages:' : 'Select messages, or a subscription, to replay or discard them.'),
    (chosen.size > 0 || subscription) && ['replay', 'discard'].map((verb) => actionButton(verb, targetsOf, load)));

  const letters = table({
    caption: 'Dead letters in the order in which they were parked.',
    empty: 'No dead letters match.',
    key: (l) => `${l.provider} ${l.id}`,
    columns: [
      {
        title: 'Choose', same: (l) => `${l.id} ${chosen.has(l.id)}`, cell: (l) => {
          const box = h('input', { type: 'checkbox', 'aria-label': `Choose dead letter ${l.id}`, onchange: () => { if (box.checked) chosen.set(l.id, l); else chosen.delete(l.id); drawActions(); } });
          box.checked = chosen.has(l.id);
          return box;
        },
      },
      { title: 'Status', same: (l) => `${l.status} ${l.holds}`, cell: (l) => [badge(l.status), l.holds && l.status === 'parked' && [' ', badge('held', 'holds its key')]] },
      { title: 'Message', cell: (l) => [h('a', { class: 'mono', href: `#/dead-letters/${encodeURIComponent(l.id)}` }, l.message_id || l.id), h('div', { class: 'quiet' }, l.type || 'unknown type')] },
      { title: 'Subscription', cell: (l) => l.subscription },
      { title: 'Key', cell: (l) => found(l.key, `#/dead-letters${query({ provider: l.provider, subscription: l.subscription, key: l.key })}`, l.key) },
      { title: 'Reason', cell: (l) => [l.reason, l.needs && !['replayed', 'discarded'].includes(l.status) && h('div', { class: 'quiet' }, `needs ${needed(l.needs)}`)] },
      { title: 'Attempts', num: true, cell: (l) => count(l.attempts) },
      { title: 'Last tried', cell: (l) => when(l.last_at) },
      { title: 'Error', cell: (l) => h('span', { class: 'error', title: l.error }, short(l.error)) },
    ],
  });

  async function load() {
    try {
      const answer = await get(`api/dead-letters${query({ ...Object.fromEntries(names.map((n) => [n, params.get(n)])), status: params.getAll('status'), limit: 50 })}`, signal);
      chosen.clear();
      places = Object.keys(answer.total ?? {}).filter((p) => answer.total[p] > 0).sort();
      const total = Object.values(answer.total ?? {}).reduce((a, b) => a + b, 0);
      letters.update(answer.dead_letters ?? []);
      replace(list, h('p', { class: 'quiet', id: 'total' }, `${plural(total, 'message')} found.`), letters.element, pages(path, params, answer.next));
      drawActions();
    } catch (e) {
      if (!signal.aborted) replace(list, problem(e));
    }
    list.setAttribute('aria-busy', 'false');
  }
  document.addEventListener('waybill:token', load, { signal });
  load();
}
