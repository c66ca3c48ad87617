// A trace: all that has one correlation id, drawn from what began it to what it brought about, over contexts and
// databases. It is a list of lists, so that it can be read without seeing it; the lines between are a picture behind.
import { follow } from '../detail.js';
import { badge, h, replace } from '../dom.js';
import { brief, clock, count, found, hidden, plural, query, short, when } from '../format.js';
import { search } from '../search.js';
import { status as processStatus } from './processes.js';
import { draw } from './tracelines.js';

const path = 'traces';
const colours = 6;

// States, the worst first, with what they mean.
const states = {
  abandoned: 'given up by the outbox',
  parked: 'set aside by a subscription',
  failed: 'tried again later',
  waiting: 'for its time, or to be published',
  discarded: 'will not be handled',
  handled: '',
  published: 'no subscription here is known to have handled it',
  unknown: 'not in these databases',
};

export const traceLink = (messageID, text) => h('a', { href: `#/${path}${query({ message: messageID })}` }, text);

const kinds = { event: 'event', command: 'command', timer: 'timer', message: 'for a process', unknown: 'no row here' };

function contextChip(name, order) {
  const chip = h('span', { class: 'context' }, name || 'elsewhere');
  if (name) chip.style.setProperty('--colour', `var(--series-${(order.indexOf(name) % colours) + 1})`);
  return chip;
}

const to = (href, text) => h('a', { href }, text);

// after is how long after the first message something was, with the moment itself as a title.
const after = (at, began) => h('time', { datetime: at, title: at }, began === null ? clock(at) : `+${brief(Math.max(0, new Date(at) - began) / 1000)}`);

// fates are what became of a message, a line each.
function fates(m, began) {
  const line = (state, ...content) => h('li', { 'data-state': state }, content);
  const timer = m.timer && line({ sent: 'waiting', broken: 'abandoned' }[m.timer.status] ?? m.timer.status,
    to(`#/waiting${query({ id: m.message_id })}`, `timer ${m.timer.name}`), m.timer.status === 'sent' ? ', sent, not handled yet' : m.timer.status === 'broken' ? ', broken: it can\'t be sent' : [', due ', when(m.timer.available_at)]);
  const rows = m.rows.map((r) => line(r.status, 'to ', to(`#/messages/${encodeURIComponent(m.message_id)}`, r.target), ' ', badge(r.status), r.held && [' ', badge('held')],
    h('span', { class: 'quiet' }, ` in ${r.provider}`),
    r.status !== 'published' && r.attempts > 0 && h('div', { class: 'quiet' }, `${count(r.attempts)} of ${count(r.max_attempts)} attempts`, r.status === 'failed' && [', due ', when(r.available_at)]),
    r.status !== 'published' && r.last_error && h('div', { class: 'error', title: r.last_error }, short(r.last_error))));
  const consumed = m.consumed.map((c) => line('handled', 'handled by ', h('strong', null, c.subscription), h('span', { class: 'quiet' }, ` in ${c.provider} `, after(c.at, began))));
  const letters = m.dead_letters.map((l) => line('parked', to(`#/dead-letters/${encodeURIComponent(l.id)}`, 'dead letter'), ' of ', h('strong', null, l.subscription), ' ', badge(l.status),
    h('span', { class: 'quiet' }, ` in ${l.provider}`), l.error && h('div', { class: 'error', title: l.error }, short(l.error))));
  const processes = m.processes.map((p) => line('process', 'process ', p.id && p.status
    ? found(p.id, `#/processes/${encodeURIComponent(p.process)}/${encodeURIComponent(p.id)}${query({ provider: p.provider })}`, p.id) : h('span', { class: 'quiet' }, p.id ?? 'not known which'),
  ' ', p.status && processStatus(p), h('span', { class: 'quiet' }, ` ${p.process}`)));
  return [timer, ...rows, ...consumed, ...letters, ...processes].filter(Boolean);
}

function node(m, order, began) {
  const title = m.type || 'of no known type';
  const of = fates(m, began);
  return h('article', { class: 'traced', 'data-id': m.message_id, 'data-context': m.context, 'data-state': m.state, tabindex: '-1', 'aria-label': `${kinds[m.kind]} ${title}, ${m.state}` },
    h('div', { class: 'head' }, contextChip(m.context, order), ' ', h('span', { class: 'quiet' }, kinds[m.kind]), ' ', badge(m.state)),
    h('h3', null, m.rows.length ? to(`#/messages/${encodeURIComponent(m.message_id)}`, title) : title),
    h('p', { class: 'quiet' }, m.occurred_at ? [after(m.occurred_at, began), m.stream && m.stream !== hidden && h('span', { class: 'mono', title: m.stream }, ` ${short(m.stream, 32)}`)] : 'Done at once, from elsewhere, or its rows were removed.'),
    of.length > 0 && h('ul', { class: 'fates' }, of));
}

// tree makes lists of what is below what. Causes come first in the answer.
function tree(messages, order, began) {
  const below = Map.groupBy(messages, (m) => m.below ?? '');
  const item = (m) => h('li', null, node(m, order, began), below.has(m.message_id) && h('ul', null, below.get(m.message_id).map(item)));
  return h('ul', { class: 'trace' }, (below.get('') ?? []).map(item));
}

function summary(t) {
  const contexts = new Set(t.messages.map((m) => m.context).filter(Boolean));
  const databases = new Set(t.messages.flatMap((m) => [...m.rows, ...m.consumed, ...m.dead_letters, ...m.processes].map((r) => r.provider)));
  const times = t.messages.map((m) => m.occurred_at).filter(Boolean).map((at) => new Date(at).getTime());
  const took = times.length > 1 ? (Math.max(...times) - Math.min(...times)) / 1000 : 0;
  return [
    h('p', { id: 'trace-summary' }, `${plural(t.messages.length, 'message')} in ${plural(contexts.size, 'context')} and ${plural(databases.size, 'database')}`,
      times.length > 0 && `, from ${clock(new Date(Math.min(...times)).toISOString())}`, took > 0 && `, over ${brief(took)}`, '.'),
    h('ul', { class: 'legend', 'aria-label': 'States' }, Object.entries(states)
      .map(([state, meaning]) => [state, meaning, t.messages.filter((m) => m.state === state).length])
      .filter(([, , n]) => n > 0)
      .map(([state, meaning, n]) => h('li', null, badge(state), ` ${count(n)}`, meaning && h('span', { class: 'quiet' }, ` ${meaning}`)))),
  ];
}

function notes(t) {
  const left = t.left_out > 0 && h('li', null, badge('degraded', 'cut'), ` The first ${count(t.messages.length)} messages are drawn, ${count(t.left_out)} later ones are left out. `,
    h('code', null, `waybill trace ${t.correlation_id === hidden ? '' : t.correlation_id}`), ' shows more.');
  const all = [left, ...t.missing.map((text) => h('li', null, badge('degraded', 'incomplete'), ' ', text))].filter(Boolean);
  return all.length > 0 && h('ul', { class: 'reasons' }, all);
}

// move goes by the arrows: up and down among what has one cause, left to the cause, right to what was caused.
function move(event) {
  const card = event.target.closest?.('.traced');
  if (!card || event.ctrlKey || event.metaKey || event.altKey) return;
  const item = card.parentElement;
  const next = {
    ArrowLeft: item.parentElement.closest('li'), ArrowRight: item.querySelector(':scope > ul > li'),
    ArrowUp: item.previousElementSibling, ArrowDown: item.nextElementSibling,
  }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  next?.firstElementChild.focus();
}

export function trace(main, { params, signal }) {
  const correlation = params.get('correlation') ?? '';
  const message = params.get('message') ?? '';
  const picture = h('div', { class: 'picture' });
  const region = h('div', { class: 'scroll traces', role: 'region', 'aria-label': 'Trace', tabindex: '0', onkeydown: move }, picture);
  const about = h('div');
  const content = h('div');
  main.append(h('h1', null, 'Trace'),
    search(path, params, [{ name: 'correlation', title: 'Correlation id', wide: true }, { name: 'message', title: 'or message id', wide: true }], []), content);
  if (!correlation && !message) {
    replace(content, h('p', { class: 'empty' }, 'A trace shows what a request, a command or an event led to: every message with its correlation id, in all databases of this engine, each to the right of the one that caused it. Give the correlation id, as it is in logs and traces, or the id of any message.'));
    return;
  }
  replace(content, h('p', { class: 'quiet' }, 'Reading…'));
  const first = { first: true };
  const lines = draw(picture, signal);

  function show(t) {
    if (!t.messages.length) {
      replace(content, notes(t), h('p', { class: 'empty' }, 'No message, timer or dead letter has this correlation id. Published rows are removed after their retention.'));
      return;
    }
    const focused = document.activeElement?.closest?.('.traced')?.dataset.id;
    const order = [...new Set(t.messages.map((m) => m.context).filter(Boolean))];
    const times = t.messages.map((m) => m.occurred_at).filter(Boolean).map((at) => new Date(at).getTime());
    replace(about, summary(t), notes(t),
      h('p', null, t.correlation_id !== hidden && ['Correlation ', found(t.correlation_id, `#/messages${query({ correlation: t.correlation_id })}`, t.correlation_id, Infinity), '. '],
        h('span', { class: 'quiet' }, 'What a message caused is to its right, or below it on a narrow screen; a thick line leads to another context. Times count from the first message. The arrow keys go from one to the next.')));
    replace(picture, lines.element, tree(t.messages, order, times.length ? Math.min(...times) : null));
    if (!content.contains(region)) replace(content, about, region);
    for (const card of picture.querySelectorAll('.traced')) {
      if (card.dataset.id === message) card.setAttribute('aria-current', 'true');
      if (card.dataset.id === focused) card.focus({ preventScroll: true });
    }
    lines.redraw();
    if (first.first && message) picture.querySelector('[aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'nearest' });
    first.first = false;
  }

  follow(content, correlation ? `api/traces/${encodeURIComponent(correlation)}` : `api/outbox/messages/${encodeURIComponent(message)}/trace`, signal, show);
}
