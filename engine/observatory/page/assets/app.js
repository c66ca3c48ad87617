// The frame: views by the address's hash, the line that says how things are, theme, shortcuts.
import { askToken, hasToken } from './api.js';
import { badge, dialog, h, replace, setText } from './dom.js';
import { clock } from './format.js';
import { again, listen, now, run } from './live.js';
import { redrawCharts } from './charts.js';
import { overview } from './views/overview.js';
import { lanes } from './views/lanes.js';
import { messages } from './views/messages.js';
import { message } from './views/message.js';
import { deadLetters } from './views/deadletters.js';
import { deadLetter } from './views/deadletter.js';
import { partitions } from './views/partitions.js';
import { waiting } from './views/waiting.js';
import { commands } from './views/commands.js';
import { processes } from './views/processes.js';
import { processOf } from './views/process.js';
import { projections } from './views/projections.js';
import { trace } from './views/trace.js';

const views = [
  { path: '', title: 'Overview', view: overview },
  { path: 'lanes', title: 'Lanes', view: lanes },
  { path: 'messages', title: 'Messages', view: messages, one: message },
  { path: 'dead-letters', title: 'Dead letters', view: deadLetters, one: deadLetter },
  { path: 'partitions', title: 'Partitions', view: partitions },
  { path: 'waiting', title: 'Waiting', view: waiting },
  { path: 'commands', title: 'Commands', view: commands },
  { path: 'processes', title: 'Processes', view: processes, one: processOf },
  { path: 'projections', title: 'Projections', view: projections },
  { path: 'traces', title: 'Trace', view: trace },
];

// The tenth view has the key 0.
const keyOf = (i) => String((i + 1) % 10);

const main = document.getElementById('main');
const line = document.getElementById('line');
const links = views.map((v, i) => h('a', { href: `#/${v.path}`, title: `${v.title} (${keyOf(i)})` }, v.title));
document.getElementById('nav').append(...links);

let leave = null;

// show draws the view of the address. A view gets its parameters and a signal that ends with it.
function show(focus) {
  leave?.abort();
  leave = new AbortController();
  const [path, search] = location.hash.replace(/^#\/?/, '').split('?');
  const [name, ...rest] = path.split('/').map(decode);
  const found = views.find((v) => v.path === name) ?? views[0];
  const chosen = rest.length && found.one ? found.one : found.view;
  links.forEach((link, i) => {
    if (views[i] === found) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  });
  document.title = `${found.title} · Waybill observatory`;
  replace(main);
  chosen(main, { params: new URLSearchParams(search), rest, signal: leave.signal });
  if (focus) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

// The line is announced by screen readers when it changes, so it changes only if the state does.
const lineState = line.querySelector('.badge');
const lineText = line.lastElementChild;

function drawLine() {
  const { health, error } = now;
  let state = health?.state ?? 'unknown';
  let text = health?.summary ?? (now.outbox ? 'Numbers are available, but the engine does not report its health.' : 'Asking the engine…');
  if (error) {
    state = error.status === 0 ? 'lost' : 'refused';
    text = `${error.title} ${error.message}`;
  }
  if (line.dataset.state !== state) {
    line.dataset.state = state;
    lineState.dataset.status = state;
  }
  setText(lineState, { lost: 'no connection', refused: 'no access' }[state] ?? state);
  setText(lineText, text);
  const at = now.at ? `Last numbers: ${clock(new Date(now.at).toISOString())}` : 'No numbers yet';
  setText(document.getElementById('connection'), `${at}${now.way && !error ? `, by ${now.way}` : ''}${hasToken() ? ' · with a token' : ''}`);
}

// Theme.
const root = document.documentElement;
const dark = matchMedia('(prefers-color-scheme: dark)');
const isDark = () => (root.dataset.theme ? root.dataset.theme === 'dark' : dark.matches);

function toggleTheme() {
  root.dataset.theme = isDark() ? 'light' : 'dark';
  remember('waybill.theme', root.dataset.theme);
  redrawCharts();
}
dark.addEventListener('change', redrawCharts);

function remember(key, value) {
  try { localStorage.setItem(key, value); } catch { /* storage is off */ }
}

// Shortcuts. They are single keys, so they can be turned off.
let shortcutsOn = true;
try { shortcutsOn = localStorage.getItem('waybill.shortcuts') !== 'off'; } catch { /* storage is off */ }

const shortcuts = [
  ...views.map((v, i) => ({ key: keyOf(i), text: v.title, run: () => { location.hash = `#/${v.path}`; } })),
  { key: '/', text: 'Focus the first search field', run: () => { document.querySelector('main form input, main form select')?.focus(); } },
  { key: 'r', text: 'Refresh', run: () => { again(); show(); } },
  { key: 't', text: 'Switch between light and dark', run: toggleTheme },
  { key: 'k', text: 'Enter the token', run: () => askToken() },
  { key: '?', text: 'Show this list', run: () => help() },
];

function help() {
  const on = h('input', { type: 'checkbox', id: 'shortcuts-on', onchange: () => { shortcutsOn = on.checked; remember('waybill.shortcuts', shortcutsOn ? 'on' : 'off'); } });
  on.checked = shortcutsOn;
  dialog('Keyboard shortcuts',
    h('table', { class: 'keys' }, h('tbody', null, shortcuts.map((s) => h('tr', null, h('th', { scope: 'row' }, h('kbd', null, s.key)), h('td', null, s.text))),
      h('tr', null, h('th', { scope: 'row' }, h('kbd', null, 'Esc')), h('td', null, 'Close a dialog')))),
    h('p', null, on, ' ', h('label', { for: 'shortcuts-on' }, 'Single keys are on')),
    h('div', { class: 'buttons' }, h('button', { class: 'primary', autofocus: true }, 'Close')));
}

document.addEventListener('keydown', (event) => {
  if (!shortcutsOn || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (document.querySelector('dialog[open]') || event.target.closest('input, select, textarea')) return;
  const shortcut = shortcuts.find((s) => s.key === event.key);
  if (!shortcut) return;
  event.preventDefault();
  shortcut.run();
});

document.getElementById('theme').addEventListener('click', toggleTheme);
document.getElementById('token').addEventListener('click', () => askToken());
document.getElementById('help').addEventListener('click', help);
document.getElementById('skip').addEventListener('click', (event) => { event.preventDefault(); main.focus(); });
addEventListener('hashchange', () => show(true));

// What the server tells those only who have a token is asked for once, and again after one that was wrong.
let asked = false;

function wantToken() {
  if (now.error?.status !== 401 || asked || document.querySelector('dialog[open]')) return;
  asked = true;
  askToken(hasToken() ? 'The server does not accept this token.' : 'The server requires a token.');
}
document.addEventListener('waybill:token', () => { asked = !hasToken(); });

listen(drawLine);
listen(wantToken);
show();
run();
