// Waiting: timers by when they are due, so what should have happened comes first.
import { get } from '../api.js';
import { badge, h, problem, replace, table } from '../dom.js';
import { age, count, found, query, when } from '../format.js';
import { now, providers } from '../live.js';
import { messageLink } from './messages.js';
import { pages, search } from '../search.js';

const path = 'waiting';
const readEvery = 3000;
const names = ['provider', 'owner', 'name', 'type', 'status', 'tenant', 'correlation', 'id', 'from', 'until', 'after'];

// A timer is sent within a second, and its message handled soon: what takes longer is marked.
const lateAfter = 10;
const longOnItsWay = 60;

const isLate = (t) => t.due_in_seconds !== null && t.due_in_seconds < -lateAfter;
const onItsWay = (t) => (t.sent_at ? (Date.now() - new Date(t.sent_at)) / 1000 : 0);
const isStuck = (t) => onItsWay(t) > longOnItsWay;

const due = (t) => [when(t.available_at), h('div', { class: isLate(t) ? 'error' : 'quiet' },
  t.due_in_seconds === null ? '' : t.due_in_seconds > 0 ? `in ${age(t.due_in_seconds)}` : `${age(-t.due_in_seconds)} ago`)];

// status of one that is sent leads to where its message may be.
const status = (t) => {
  if (t.status === 'broken') return [badge('degraded', 'broken'), h('div', { class: 'error' }, t.error)];
  if (t.status === 'waiting') return isLate(t) ? badge('stuck', 'late') : badge('waiting');
  return [badge(isStuck(t) ? 'degraded' : 'sent', 'sent'), ' ', h('span', { class: 'quiet' }, `${age(onItsWay(t))} ago`),
    h('div', null, messageLink(t.id, 'its message'), isStuck(t) && [' · ', h('a', { href: `#/dead-letters${query({ message: t.id })}` }, 'dead letters')])];
};

const told = () => (now.health?.reasons ?? []).filter((r) => r.code.startsWith('timers_'));

// help is what is to be done about what is marked on this page.
const help = (timers) => [
  ...told().map((r) => h('li', null, badge(r.state, r.code), ' ', r.text)),
  !told().some((r) => r.code.startsWith('timers_late')) && timers.some(isLate) && h('li', null, badge('stuck', 'late'), ' These should have been sent. An engine of their database sends them: check that one runs, and what ',
    h('a', { href: '#/' }, 'the overview'), ' says about it. It pauses while 50,000 of their messages are unpublished: ', h('a', { href: '#/lanes' }, 'the lanes'), ' show that.'),
  timers.some(isStuck) && h('li', null, badge('degraded', 'sent'), ' These were sent a while ago and are not handled. Their message is waiting in the outbox, at the broker or for its key, or is a dead letter: the links show where.'),
];

export function waiting(main, { params, signal }) {
  const cards = h('dl', { class: 'cards' });
  const figures = {};
  const card = (id, title, href) => {
    figures[id] = h('dd', null, '–');
    cards.append(h('div', { class: 'card', 'data-card': `timers-${id}` }, h('dt', null, href ? h('a', { href }, title) : title), figures[id]));
  };
  card('waiting', 'Waiting', `#/${path}?status=waiting`);
  card('due', 'Due, not sent', `#/${path}?status=waiting`);
  card('late', 'Late by');
  card('sent', 'Sent, not handled', `#/${path}?status=sent`);
  card('broken', 'Broken', `#/${path}?status=broken`);
  const hints = h('ul', { class: 'reasons' });
  const failure = h('div');
  const timers = table({
    caption: 'By due time. A timer disappears when its message was handled or it was stopped.',
    empty: 'No timers match.',
    key: (t) => `${t.provider} ${t.id}`,
    rowState: (t) => (isLate(t) || isStuck(t) || t.status === 'broken' ? 'bad' : ''),
    columns: [
      { title: 'Status', cell: status },
      { title: 'Due', cell: due },
      { title: 'Owner', same: (t) => t.owner, cell: (t) => found(t.owner, `#/${path}${query({ provider: t.provider, owner: t.owner })}`, t.owner) },
      { title: 'Name', cell: (t) => t.name },
      { title: 'Message', same: (t) => t.id, cell: (t) => [t.type, h('div', { class: 'quiet mono' }, t.id)] },
      { title: 'Set', same: (t) => t.set_at, cell: (t) => when(t.set_at) },
      { title: 'Correlation', same: (t) => t.correlation_id ?? '', cell: (t) => (t.correlation_id ? found(t.correlation_id, `#/traces${query({ correlation: t.correlation_id })}`, t.correlation_id) : '–') },
      { title: 'Database', cell: (t) => t.provider },
    ],
  });
  const following = h('div');
  const list = h('div', { 'aria-busy': 'true' }, h('p', { class: 'quiet' }, 'Reading…'));
  main.append(h('h1', null, 'Waiting timers'), hints, cards,
    search(path, params, [
      { name: 'owner', title: 'Owner', wide: true, like: 'library::loan-7' },
      { name: 'status', title: 'Status', type: 'select', options: ['waiting', 'sent', 'broken'] },
    ], [
      { name: 'provider', title: 'Database', type: 'select', options: providers() },
      { name: 'name', title: 'Name' },
      { name: 'type', title: 'Type', like: 'Library.MarkOverdue.v1' },
      { name: 'id', title: 'Message id' },
      { name: 'tenant', title: 'Tenant' },
      { name: 'correlation', title: 'Correlation id' },
      { name: 'from', title: 'Due from', type: 'moment' },
      { name: 'until', title: 'Due until', type: 'moment' },
    ]), failure, list,
    h('p', { class: 'quiet' }, 'To change them: ', h('code', null, 'waybill timers fire'), ', ', h('code', null, 'move'), ' or ', h('code', null, 'stop'), ', each with ', h('code', null, '--id'), ', ', h('code', null, '--owner'), ' or another filter.'));

  // sum is null if any part is not known.
  const sum = (all, of) => (all.length && all.every(Boolean) ? all.reduce((a, c) => a + c[of], 0) : null);

  let said = '';
  async function load() {
    try {
      const answer = await get(`api/timers${query({ ...Object.fromEntries(names.map((n) => [n, params.get(n)])), limit: 50 })}`, signal);
      const all = Object.values(answer.counts);
      for (const id of ['waiting', 'due', 'sent', 'broken']) figures[id].textContent = count(sum(all, id));
      const late = all.length && all.every(Boolean) ? Math.max(...all.map((c) => c.late_seconds)) : null;
      figures.late.textContent = late === null ? '–' : late > 0 ? age(late) : 'none';
      figures.late.parentElement.dataset.alarm = late > lateAfter;
      figures.broken.parentElement.dataset.alarm = sum(all, 'broken') > 0;
      timers.update(answer.timers);
      const hint = h('ul', null, ...help(answer.timers).filter(Boolean));
      if (hint.textContent !== said) {
        said = hint.textContent;
        replace(hints, ...hint.childNodes);
      }
      replace(failure);
      if (!list.contains(timers.element)) replace(list, timers.element, following);
      replace(following, pages(path, params, answer.next));
    } catch (e) {
      if (signal.aborted) return;
      replace(failure, problem(e));
      if (!list.contains(timers.element)) replace(list);
    }
    list.setAttribute('aria-busy', 'false');
  }
  document.addEventListener('waybill:token', load, { signal });
  const timer = setInterval(load, readEvery);
  signal.addEventListener('abort', () => clearInterval(timer));
  load();
}
