// Overview: is it well, and if not, why; numbers of now and of the last half hour.
import { badge, h, replace } from '../dom.js';
import { age, count, rate } from '../format.js';
import { chart, legend } from '../charts.js';
import { history, lanes, listen, now } from '../live.js';

const charts = [
  { signal: 'pending', title: 'Waiting', format: count, whole: true },
  { signal: 'rate', title: 'Published per second', format: rate },
  { signal: 'oldest', title: 'Age of the oldest', format: age },
  { signal: 'failed', title: 'Failed, waiting for a retry', format: count, whole: true },
  { signal: 'abandoned', title: 'Abandoned', format: count, whole: true },
];

// sum is null if any part is not known.
const sum = (values) => (values.length && values.every((v) => typeof v === 'number') ? values.reduce((a, b) => a + b, 0) : null);

export function overview(main, { signal }) {
  const reasons = h('ul', { class: 'reasons' });
  const cards = h('dl', { class: 'cards' });
  const names = h('ul', { class: 'legend', 'aria-label': 'Lanes' });
  const plots = charts.map((c) => chart(c, signal));
  const figures = {};
  const card = (id, title, href) => {
    figures[id] = h('dd', null, '–');
    return h('div', { class: 'card', 'data-card': id }, h('dt', null, href ? h('a', { href }, title) : title), figures[id]);
  };
  cards.append(
    card('pending', 'Waiting', '#/messages?status=pending'), card('processing', 'Processing', '#/messages?status=processing'),
    card('failed', 'Failed', '#/messages?status=failed'), card('abandoned', 'Abandoned', '#/messages?status=abandoned'),
    card('rate', 'Published / s', '#/lanes'), card('oldest', 'Oldest', '#/lanes'), card('dead', 'Dead letters', '#/dead-letters'));
  main.append(h('h1', null, 'Overview'), reasons, cards,
    h('section', { 'aria-label': 'The last half hour' }, h('h2', null, 'The last half hour'), names, h('div', { class: 'charts' }, plots.map((p) => p.element))));

  let shown = '';
  const draw = () => {
    const all = lanes();
    const known = {
      pending: sum(all.map((l) => l.counts?.pending)), processing: sum(all.map((l) => l.counts?.processing)),
      failed: sum(all.map((l) => l.counts?.failed)), abandoned: sum(all.map((l) => l.counts?.abandoned)),
      dead: sum([...new Map(Object.values(now.subscriptions ?? {}).map((s) => [`${s.provider} ${s.dead_letters_of}`, s.dead_letters])).values()]),
    };
    for (const [id, n] of Object.entries(known)) {
      figures[id].textContent = count(n);
      figures[id].parentElement.dataset.alarm = (id === 'failed' || id === 'abandoned' || id === 'dead') && n > 0;
    }
    figures.rate.textContent = rate(sum(all.map((l) => l.published_per_second)));
    const oldest = all.map((l) => l.oldest_pending_seconds).filter((s) => typeof s === 'number');
    figures.oldest.textContent = oldest.length ? age(Math.max(...oldest)) : all.length ? 'none' : '–';

    const said = JSON.stringify(now.health?.reasons ?? []);
    if (said !== shown) {
      shown = said;
      replace(reasons, (now.health?.reasons ?? []).map((r) => h('li', null,
        badge(r.state ?? now.health.state, r.code), ' ', r.text)));
    }
    const lanesNow = [...history.lanes.keys()].sort();
    if (names.dataset.of !== lanesNow.join('\n')) {
      names.dataset.of = lanesNow.join('\n');
      replace(names, legend(lanesNow));
    }
    for (const p of plots) p.update();
  };
  signal.addEventListener('abort', listen(draw));
  draw();
}
