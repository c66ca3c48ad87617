// Projections: builds, which of them is in use, and how far each has come.
import { get } from '../api.js';
import { badge, h, problem, replace, table } from '../dom.js';
import { age, clock, count, when } from '../format.js';
import { now } from '../live.js';

const readEvery = 3000;
const codes = ['projection_stopped', 'projection_behind', 'projection_not_fed', 'projection_waits'];
const told = () => (now.health?.reasons ?? []).filter((r) => codes.includes(r.code));

const status = (p) => badge(p.failure ? 'stuck' : { live: 'healthy', building: 'held' }[p.status] ?? p.status, p.failure ? 'stopped' : p.status);

function left(p) {
  if (!p.behind) return null;
  return p.eta_seconds < 0 ? 'not known' : age(p.eta_seconds);
}

// progress is the part of the history that a build has read.
function progress(p) {
  const percent = p.head > 0 ? Math.floor((100 * Math.min(p.position, p.head)) / p.head) : 100;
  return [h('progress', { max: 100, value: percent, 'aria-label': `Progress of ${p.projection}, build ${p.build}` }), ` ${percent}%`];
}

const transaction = (t) => [t.pid ? `pid ${t.pid}, application “${t.application}”` : `prepared transaction “${t.prepared}”`, `user ${t.user}`, t.since && `open since ${clock(t.since)}`, t.state]
  .filter(Boolean).join(', ');

export function projections(main, { signal }) {
  const hints = h('ul', { class: 'reasons' });
  const failure = h('div');
  const list = table({
    caption: 'A projection has a build per version and per rebuild. The view shows the live one; a new build takes its place once it has caught up.',
    empty: 'There are no projections.',
    key: (p) => `${p.provider} ${p.projection} ${p.build}`,
    rowState: (p) => (p.failure || (p.status === 'live' && !p.fed) ? 'bad' : ''),
    columns: [
      { title: 'Projection', cell: (p) => p.projection },
      { title: 'Build', num: true, cell: (p) => count(p.build) },
      { title: 'Version', num: true, cell: (p) => count(p.version) },
      { title: 'Status', same: (p) => `${p.status} ${!!p.failure}`, cell: status },
      { title: 'Position', num: true, cell: (p) => count(p.position) },
      { title: 'Head', num: true, cell: (p) => count(p.head) },
      { title: 'Progress', same: (p) => `${p.position} ${p.head}`, cell: progress },
      { title: 'Behind', num: true, cell: (p) => (p.behind_seconds > 0 ? age(p.behind_seconds) : null) },
      { title: 'Events', num: true, cell: (p) => count(p.events) },
      { title: 'Per second', num: true, cell: (p) => count(Math.round(p.events_per_second)) },
      { title: 'Caught up in', num: true, cell: left },
      { title: 'Fed by', cell: (p) => (p.fed ? p.owners.join(', ') : 'none') },
      { title: 'Began', same: (p) => p.began_at, cell: (p) => when(p.began_at) },
      { title: 'Database', cell: (p) => p.provider },
    ],
  });
  const still = h('div');
  const content = h('section', { 'aria-label': 'List', 'aria-busy': 'true' }, h('p', { class: 'quiet' }, 'Reading…'));
  main.append(h('h1', null, 'Projections'), hints, failure, content, still,
    h('p', { class: 'quiet' }, 'To change them: ', h('code', null, 'waybill projections rebuild'), ' rebuilds the tables alongside those in use, ', h('code', null, 'switch'),
      ' switches to another build, ', h('code', null, 'skip'), ' continues without an event, ', h('code', null, 'retire'), ' removes what no program declares any more.'));

  let timer;
  let said = '';
  let turn = 0;
  async function load() {
    const mine = ++turn;
    clearTimeout(timer);
    try {
      const answer = await get('api/projections', signal);
      if (mine !== turn) return;
      list.update(answer.projections);
      const hint = h('ul', null, told().map((r) => h('li', null, badge(r.state, r.code), ' ', r.text)));
      if (hint.textContent !== said) {
        said = hint.textContent;
        replace(hints, ...hint.childNodes);
      }
      replace(failure);
      replace(still, ...answer.projections.filter((p) => p.failure).map((p) => h('p', null,
        `${p.projection}, build ${p.build}, stopped at position ${p.failure.position}: ${p.failure.event}, tried ${p.failure.tries} times: ${p.failure.error}`)),
        ...answer.projections.filter((p) => p.held).map((p) => h('p', null, `${p.projection}, build ${p.build}, waits since ${clock(p.held.since)} for `, p.held.by.map(transaction).join('; '),
          ': events that were committed behind what it has written can\'t be read before it ends.')));
      if (!content.contains(list.element)) replace(content, list.element);
    } catch (e) {
      if (signal.aborted || mine !== turn) return;
      replace(failure, problem(e));
      if (!content.contains(list.element)) replace(content);
    }
    content.setAttribute('aria-busy', 'false');
    timer = setTimeout(load, readEvery);
  }
  document.addEventListener('waybill:token', load, { signal });
  signal.addEventListener('abort', () => { turn++; clearTimeout(timer); });
  load();
}
